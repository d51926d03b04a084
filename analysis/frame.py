"""The table as a pandas frame: what the CSV is written from, and what a notebook starts from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from analysis.table import COLUMNS

if TYPE_CHECKING:
    from analysis.table import Table, Value

_FLAGS = ("compile", "reshard_after_forward", "async_tp", "throttled", "oversubscribed")
_COUNTS = (
    "n_params",
    "nodes",
    "gpus",
    "dp_replicate",
    "dp_shard",
    "tp",
    "pp",
    "cp",
    "virtual_stages",
    "micro_batch",
    "grad_accum",
    "global_batch",
    "seq_len",
    "repeats",
)
_TEXTS = (
    "series",
    "cell",
    "status",
    "reason",
    "source",
    "model",
    "gpu",
    "schedule",
    "batch_rule",
    "precision",
    "activation_checkpointing",
    "baseline",
    "flop_convention",
    "fingerprint",
    "attempt",
)
DTYPES: dict[str, str] = {
    **dict.fromkeys(COLUMNS, "Float64"),
    **dict.fromkeys(_FLAGS, "boolean"),
    **dict.fromkeys(_COUNTS, "Int64"),
    **dict.fromkeys(_TEXTS, "string"),
}
"""Kind of every column that all tables have; each can hold blanks."""


def to_frame(table: Table) -> pd.DataFrame:
    """One row per grid point, columns and rows in the table's order, NA where nothing is known.

    Columns that all tables have are of the kinds in :data:`DTYPES`, whatever the run, so that frames of several runs
    can be concatenated. Those of the grid's other axes have the narrowest kind that holds their values.
    """
    columns = {}
    for name in table.columns:
        # An enumeration's member is its text.
        values = [str(value) if isinstance(value, str) else value for row in table.rows for value in [row[name]]]
        kind: Any = DTYPES.get(name) or _narrowest(values)
        columns[name] = pd.Series(values, dtype=kind)
    return pd.DataFrame(columns)


def _narrowest(values: list[Value]) -> str:
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {bool}:
        return "boolean"
    if kinds <= {int}:
        return "Int64"
    return "Float64" if kinds <= {int, float} else "string"
