"""The axes that a grid can vary, in the order of its points, and how their values are read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

from sweep.core.cells.axis import AUTO, Axis, AxisValue, axes_of
from sweep.core.cells.batch import BATCH_TITLES, BatchKind
from sweep.core.cells.cell import Cell
from sweep.core.cells.model_shape import ModelShape
from sweep.core.cells.parallelism import LAYOUT
from sweep.core.cells.trainer_settings import SETTINGS_AXES
from sweep.core.encoding.codec import convert_value
from sweep.core.encoding.message import did_you_mean


def _in_order() -> Iterator[Axis]:
    """The axes that the fields of a cell stand for: first those with a place, then the others as they are declared."""
    for item in sorted(axes_of(Cell), key=lambda item: math.inf if item.place is None else item.place):
        if item.field == "parallelism":
            yield from LAYOUT
        elif item.field == "trainer":
            yield from SETTINGS_AXES
        elif item.field == "global_batch":
            for kind, title in BATCH_TITLES.items():
                yield item._replace(name=kind.value, title=title, column=item.column if kind == item.field else None)
        else:
            yield item


ALL_AXES: Mapping[str, Axis] = {item.name: item for item in _in_order()}
"""Every axis by its name."""
SETTINGS = tuple(item.name for item in SETTINGS_AXES)
"""Names of the axes that are settings of the trainer."""
AXES = tuple(name for name in ALL_AXES if name not in SETTINGS)
"""Names of all other axes, in the order in which tables show them."""
REQUIRED = tuple(item.name for item in ALL_AXES.values() if item.is_required and item.name not in set(BatchKind))
"""Names of the axes that a grid must give a value, besides that of its batch rule."""


class GridError(ValueError):
    """A grid cannot be read or expanded; the message says what to change."""


def axis_default(name: str) -> AxisValue:
    """The value of an axis in a combination that does not name it; None where it has no default, as ``nodes``."""
    return ALL_AXES[name].default if name in ALL_AXES else None


def axis_names(batch_kind: BatchKind) -> tuple[str, ...]:
    """The axes that a grid with this batch rule may use, the trainer's settings included."""
    other = set(BatchKind) - {batch_kind}
    return tuple(name for name in ALL_AXES if name not in other)


def normalise_axis(name: str, value: object, models: Mapping[str, ModelShape]) -> AxisValue:
    """One axis value, checked and brought to its type.

    Raises:
        GridError: If it is of the wrong type or not among the values that the axis has.
    """
    try:
        return _normalise(ALL_AXES[name], value, models)
    except ValueError as error:
        raise GridError(str(error)) from error


def _normalise(axis: Axis, value: Any, models: Mapping[str, ModelShape]) -> AxisValue:
    if axis.name == "model":
        return _known("model", value, models)
    if axis.name in set(BatchKind):
        return _batch_value(axis.name, value)
    if axis.is_degree and value == AUTO:
        return AUTO
    is_optional = axis.default is None and not axis.is_required
    if is_optional and value is None:
        return None
    # A count that may be None, such as micro_batch, is left to its check: only that says all that the count may be.
    is_left = is_optional and axis.check is not None
    checked: Any = value if is_left else convert_value(axis.owner, axis.field, value, axis.name)
    # The trainer's settings are checked together, when a cell is made: those that do not fit are a rejection.
    if axis.check is not None and axis.name not in SETTINGS and not axis.check.holds(checked):
        axis.check.refuse(axis.name, checked)
    return checked  # type: ignore[no-any-return]  # of the field's type


def _known(name: str, value: object, known: Mapping[str, object]) -> str:
    if isinstance(value, str) and value in known:
        return value
    raise ValueError(
        f"{name}={value!r} is not known. {did_you_mean(str(value), known)}Known are: {', '.join(sorted(known))}."
    )


def _batch_value(name: str, value: object) -> AxisValue:
    try:
        exact = Fraction(str(value))
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"{name}={value!r} is not a number or a fraction such as 1/2.") from None
    if exact <= 0:
        raise ValueError(f"{name}={value!r} is not positive. Give a number above 0.")
    if exact.denominator == 1:
        return exact.numerator
    if name != BatchKind.SEQUENCES_PER_GPU:
        raise ValueError(f"{name}={value!r} is not a whole number.")
    return str(exact)
