"""One axis of a grid: the values that it can have, and the metadata by which a field of the cell declares it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

AUTO = "auto"
"""The value of a degree that takes what the other degrees leave of the GPUs."""

AxisValue = str | int | float | bool | None


class ValueCheck(NamedTuple):
    """A condition on the values of a field.

    Attributes:
        holds: True for a value that meets it.
        problem: What is wrong with a value that does not.
        wanted: The values that meet it.
    """

    holds: Callable[[Any], bool]
    problem: str
    wanted: str

    def refuse(self, name: str, value: object) -> None:
        """Raise the ValueError for a value that does not meet the condition."""
        raise ValueError(f"{name}={value!r} {self.problem}. Give {self.wanted}.")


COUNT = ValueCheck(lambda value: type(value) is int and value >= 1, "is not a positive integer", "a whole number >= 1")
ABOVE_ZERO = ValueCheck(lambda value: value > 0, "is out of range", "a number above 0")
NOT_NEGATIVE = ValueCheck(lambda value: value >= 0, "is out of range", "0 or more")
BELOW_ONE = ValueCheck(lambda value: 0 <= value < 1, "is out of range", "0 or more, and less than 1")


def one_of(*words: str) -> ValueCheck:
    """The condition that a text is one of a few words."""
    return ValueCheck(lambda value: value in words, "is not known", " or ".join(words))


class Axis(NamedTuple):
    """One axis of a grid.

    Attributes:
        name: Its name in grids, conditions and tables, for example ``tp`` or ``trainer.lr``.
        owner: The dataclass whose field it sets.
        field: Name of that field.
        default: Its value in a combination that does not name it.
        is_required: True if there is no default, so that a grid must name it.
        place: Its place among the axes of a grid, whose points vary the last one fastest; None: after those with one.
        title: Its title in tables for people; empty: its name.
        column: Its position among the columns of every table, which never changes; None: it has a column only
            in tables of grids that vary it.
        check: The condition on its values.
        is_degree: True if the number of GPUs is the product of its value and of the other degrees; it may be ``auto``.
        is_layout: True if it says how a cell is computed, not what: an envelope takes the best of its values.
    """

    name: str
    owner: type
    field: str
    default: AxisValue
    is_required: bool = False
    place: int | None = None
    title: str = ""
    column: int | None = None
    check: ValueCheck | None = None
    is_degree: bool = False
    is_layout: bool = False


def axis(
    *,
    place: int | None = None,
    title: str = "",
    column: int | None = None,
    check: ValueCheck | None = None,
    is_degree: bool = False,
    is_layout: bool = False,
    default: Any = dataclasses.MISSING,
) -> Mapping[str, Any]:
    """Metadata of a field of the cell: what its :class:`Axis` does not take from the field itself.

    Args:
        place: As in the axis.
        title: As in the axis.
        column: As in the axis.
        check: As in the axis; the cell itself refuses other values too.
        is_degree: As in the axis.
        is_layout: As in the axis.
        default: The default of the axis, where it is another than that of the field.
    """
    declared: dict[str, Any] = {
        "place": place,
        "title": title,
        "column": column,
        "check": COUNT if is_degree else check,
    }
    declared |= {"is_degree": is_degree, "is_layout": is_layout}
    return {"axis": declared if default is dataclasses.MISSING else {**declared, "default": default}}


def axes_of(owner: type, prefix: str = "") -> tuple[Axis, ...]:
    """The axes that the fields of a dataclass declare, in their order; their names begin with the prefix."""
    found = []
    for item in dataclasses.fields(owner):
        declared = {"default": item.default, **item.metadata.get("axis", {})}
        if declared["default"] is dataclasses.MISSING:
            declared |= {"default": None, "is_required": True}
        found.append(Axis(name=prefix + item.name, owner=owner, field=item.name, **declared))
    return tuple(found)


def check_fields(part: object, axes: Iterable[Axis]) -> None:
    """Refuse a part of a cell with a value that its axis cannot have.

    Raises:
        ValueError: If a value does not meet its condition; it names the axis.
    """
    for item in axes:
        if item.check is not None and not item.check.holds(value := getattr(part, item.field)):
            item.check.refuse(item.name, value)
