"""The columns of every table, each declared once: its name, kind and place, and how people read it."""

from __future__ import annotations

import typing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from analysis.given_away import one_line
from sweep.core.cells.axes import ALL_AXES
from sweep.core.cells.axis import AUTO

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from analysis.rows import Row, Value

_Show = typing.Callable[["Row", str], str]
"""Text of a row's value, given the row and the column's name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """One column of every table."""

    name: str
    """Its name, with the unit."""
    kind: str = "string"
    """pandas' name for its kind; every kind can hold blanks."""
    title: str = ""
    """Its title for people, with the unit; empty: they do not see it, or only where it is a varied axis."""
    show: _Show = lambda row, name: text_of(row[name])
    """How people read its value in a row."""
    is_measure: bool = False
    """True if people see it in every table in which it is not wholly blank."""

    def takes(self, value: Value) -> bool:
        """True if a value of a record is of the column's kind; a degree that was not settled is ``auto``."""
        return value is None or value == AUTO or isinstance(value, _TAKEN[self.kind])


def text_of(value: Value) -> str:
    """A value as people read it; blank where it is not known."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else one_line(str(value))


def significant(value: float | None, digits: int = 4) -> str:
    """A number rounded for reading, never in exponent form from a thousand on."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 10 ** (digits - 1) else f"{value:#.{digits}g}".rstrip(".")


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


def _rounded(digits: int) -> _Show:
    return lambda row, name: significant(row.number(name), digits)


def _with_interval(show: Callable[[float | None], str]) -> _Show:
    def shown(row: Row, name: str) -> str:
        low, high = (show(row.number(f"{name}_ci_{end}")) for end in ("low", "high"))
        return f"{show(row.number(name))} [{low}, {high}]" if low and high else show(row.number(name))

    return shown


def _mfu(row: Row, name: str) -> str:
    value = row.number(name)
    return "<0.1" if value is not None and value < 0.001 else _percent(value)


def _speedup(row: Row, name: str) -> str:
    value = row.number(name)
    return "" if value is None else f"{value:.2f}"


def _flags(row: Row, name: str) -> str:
    return ", ".join(flag for flag in ("throttled", "oversubscribed") if row[flag] is True)


def _texts(*names: str) -> Iterator[Column]:
    return (Column(name=name) for name in names)


def _numbers(*names: str) -> Iterator[Column]:
    return (Column(name=name, kind="Float64") for name in names)


def _measure(name: str, title: str, show: _Show) -> Column:
    return Column(name=name, kind="Float64", title=title, show=show, is_measure=True)


_OWN = (
    *_texts("series", "cell"),
    Column(name="status", title="status"),
    *_texts("reason", "source"),
    Column(name="n_params", kind="Int64"),
    Column(name="gpu"),
    Column(name="gpus", kind="Int64", title="GPUs"),
    Column(name="grad_accum", kind="Int64"),
    Column(name="batch_rule"),
    Column(name="sequences_per_gpu", kind="Float64"),
    Column(name="repeats", kind="Int64"),
    Column(name="baseline"),
    _measure("step_time_s", "step time (s)", _with_interval(significant)),
    *_numbers("step_time_s_ci_low", "step_time_s_ci_high"),
    _measure("tokens_per_s", "tokens/s", _rounded(5)),
    _measure("tokens_per_s_per_gpu", "tokens/s/GPU", _rounded(5)),
    _measure("speedup", "speed-up", _speedup),
    _measure("efficiency", "efficiency (%)", _with_interval(_percent)),
    *_numbers("efficiency_ci_low", "efficiency_ci_high"),
    _measure("tflops_per_gpu", "TFLOP/s/GPU", _rounded(4)),
    _measure("mfu", "MFU (%)", _mfu),
    Column(name="flop_convention"),
    *_numbers("peak_tflops", "compute_s", "comm_s", "comm_merged_s"),
    _measure("exposed_comm_s", "exposed comm. (s)", _rounded(3)),
    *_numbers("idle_s", "profiled_step_time_s"),
    _measure("peak_memory_gib", "memory (GiB)", _rounded(3)),
    _measure("power_w_per_gpu", "power (W/GPU)", _rounded(3)),
    _measure("tokens_per_j", "tokens/J", _rounded(3)),
    _measure("gpu_hours", "GPU-hours", _rounded(3)),
    Column(name="throttled", kind="boolean"),
    Column(name="oversubscribed", kind="boolean"),
    *_numbers("predicted_step_time_s", "prediction_error"),
    *_texts("fingerprint", "attempt"),
)
"""The columns that are no axes, in order."""
_FLAGS = Column(name="flags", title="flags", show=_flags)
"""Shown to people in place of two columns."""
_KINDS: Mapping[object, str] = {int: "Int64", float: "Float64", bool: "boolean"}
_TAKEN: Mapping[str, Any] = {"Int64": int, "Float64": int | float, "boolean": bool, "string": object}


def axis_column(name: str) -> Column:
    """The column of an axis: of the kind of the field that it sets."""
    if name not in ALL_AXES:
        return Column(name=name, title=name)  # of a run directory that a newer version wrote
    axis = ALL_AXES[name]
    hint = typing.get_type_hints(axis.owner)[axis.field]
    kinds = [_KINDS[option] for option in (hint, *typing.get_args(hint)) if option in _KINDS]
    return Column(name=name, kind=kinds[0] if kinds else "string", title=axis.title or name)


def _in_order() -> list[Column]:
    """The columns that are no axes, and the axes that have a column in every table, each at its place."""
    columns = list(_OWN)
    placed = {axis.column: name for name, axis in ALL_AXES.items() if axis.column is not None}
    for place, name in sorted(placed.items()):
        columns.insert(place, axis_column(name))
    return columns


COLUMNS: Mapping[str, Column] = {column.name: column for column in _in_order()}
"""Columns of every table by name, in order; before them comes one for each varied axis that is not among them."""


def readable_columns(varied: Sequence[str]) -> list[Column]:
    """The columns that people read in a table in which these axes vary: the axes, then the measures."""
    axes = [axis_column(name) for name in varied if name != "nodes"]
    measures = [column for column in _OWN if column.is_measure]
    return [COLUMNS["nodes"], COLUMNS["gpus"], *axes, COLUMNS["status"], *measures, _FLAGS]
