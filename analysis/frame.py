"""The table as a pandas frame, from which the CSV is written and a notebook starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from analysis.columns import COLUMNS

if TYPE_CHECKING:
    from analysis.rows import Value
    from analysis.table import Table


def to_frame(table: Table) -> pd.DataFrame:
    """One row per grid point, columns and rows in the table's order, NA where nothing is known.

    Columns that all tables have are of the same kinds whatever the run (:data:`analysis.columns.COLUMNS`), so that
    frames of several runs can be concatenated. Those of the grid's other axes have the narrowest kind that holds them.
    """
    columns = {}
    for name in table.columns:
        # An enumeration's member is its text.
        values = [str(value) if isinstance(value, str) else value for row in table.rows for value in [row[name]]]
        kind: Any = COLUMNS[name].kind if name in COLUMNS else _narrowest(values)
        columns[name] = pd.Series(values, dtype=kind)
    return pd.DataFrame(columns)


def _narrowest(values: list[Value]) -> str:
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {bool}:
        return "boolean"
    if kinds <= {int}:
        return "Int64"
    return "Float64" if kinds <= {int, float} else "string"
