"""Reads a grid's file strictly, at one scale, and puts the command line's values over it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from sweep.config.errors import ConfigError, listed
from sweep.config.keys import SERIES, check_fields
from sweep.core.cells.axes import axis_names
from sweep.core.cells.axis import AUTO, AxisValue
from sweep.core.cells.batch import BatchKind
from sweep.core.cells.parallelism import DEGREES
from sweep.core.encoding.frozen import dataclass
from sweep.core.encoding.message import did_you_mean

Values = dict[str, tuple["AxisValue", ...]]
_PARTS = ("series", "repeats", "axes", "zip", "cells", "exclude", "require")
_TOP = ("name", "description", "batch_rule", "scales", *_PARTS)


@dataclass(frozen=True, kw_only=True, slots=True)
class Declared:
    """A grid at one scale, as its file declares it."""

    batch_kind: BatchKind
    axes: Values
    """Values by axis."""
    zips: tuple[Values, ...]
    """Groups of axes that advance together."""
    cells: tuple[Values, ...]
    """Explicit cells."""
    exclude: tuple[str, ...]
    """Conditions whose combinations are left out."""
    require: tuple[str, ...]
    """Conditions that every combination must meet."""
    series: Mapping[str, Any]
    """Keys of the series, not yet read."""
    repeats: Any
    """Independent runs of each cell, not yet read; None if the file has no such key."""

    def groups(self) -> Iterator[Values]:
        """Every mapping of axes to values: axes, zips and explicit cells."""
        yield self.axes
        yield from self.zips
        yield from self.cells

    def values(self, name: str) -> tuple[AxisValue, ...]:
        """Every value that the axis has anywhere; none where nothing names it."""
        return tuple(dict.fromkeys(value for group in self.groups() for value in group.get(name, ())))

    def has_default(self, name: str) -> bool:
        """True if the axes or a zip give this axis a value, which an explicit cell may replace."""
        return name in self.axes or any(name in group for group in self.zips)


def declared(data: Mapping[str, Any], name: str, scale: str) -> Declared:
    """A grid's file at one scale.

    Raises:
        ConfigError: If a key or a value is not as docs/grids.md says.
    """
    check_fields(data, _TOP, "the grid")
    if data.get("name", name) != name:
        raise ConfigError(f"name is {data['name']!r}, but the file is called {name}. Make them the same.")
    scales = _mapping(data.get("scales", {}), "scales")
    if scales and scale not in scales:
        raise ConfigError(f"there is no scale {scale!r}. {did_you_mean(scale, scales)}It has {listed(scales)}.")
    at_scale = _mapping(scales.get(scale, {}), f"scales.{scale}")
    for which, part in scales.items():
        check_fields(_mapping(part, f"scales.{which}"), _PARTS, f"scales.{which}")
    batch_kind = _batch_kind(data.get("batch_rule"))

    def either(part: str) -> Any:
        return at_scale[part] if at_scale.get(part) is not None else data.get(part)

    def both(part: str) -> dict[str, Any]:
        return {**_mapping(data.get(part), part), **_mapping(at_scale.get(part), f"scales.{scale}.{part}")}

    series = both("series")
    check_fields(series, SERIES, "series")
    return Declared(
        batch_kind=batch_kind,
        axes=_axes(both("axes"), "axes", batch_kind),
        zips=tuple(_axes(group, "zip", batch_kind) for group in _list(either("zip"), "zip")),
        cells=tuple(_axes(cell, "cells", batch_kind) for cell in _list(either("cells"), "cells")),
        exclude=(*texts(data.get("exclude"), "exclude"), *texts(at_scale.get("exclude"), "exclude")),
        require=(*texts(data.get("require"), "require"), *texts(at_scale.get("require"), "require")),
        series=series,
        repeats=either("repeats"),
    )


def _batch_kind(value: object) -> BatchKind:
    if value is None:
        raise ConfigError(f"batch_rule is missing. Say what stays fixed as GPUs are added: {listed(BatchKind)}.")
    if value not in set(BatchKind):
        raise ConfigError(
            f"batch_rule={value!r} is unknown. {did_you_mean(str(value), list(BatchKind))}Use {listed(BatchKind)}."
        )
    return BatchKind(str(value))


def _mapping(value: object, where: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f"{where}={value!r} is not a mapping. Write `name: value` lines below it.")
    return {str(key): item for key, item in value.items()}


def _list(value: object, where: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise ConfigError(f"{where} is not a list. Begin each of its entries with a dash.")
    return value


def texts(value: object, where: str) -> tuple[str, ...]:
    """One text or a list of them.

    Raises:
        ConfigError: If it is neither.
    """
    found = [value] if isinstance(value, str) else _list(value, where)
    for item in found:
        if not isinstance(item, str):
            raise ConfigError(f"{where}: {item!r} is not text. Put it in quotes, for example 'tp * pp > 8'.")
    return tuple(found)


def _axes(value: object, where: str, batch_kind: BatchKind) -> Values:
    found: Values = {}
    for name, item in _mapping(value, where).items():
        check_axis(name, batch_kind, where)
        found[name] = values_of(f"{where}.{name}", item)
    return found


def check_axis(name: str, batch_kind: BatchKind, where: str) -> None:
    """Refuse an axis that a grid with this batch rule does not have.

    Raises:
        ConfigError: Naming the nearest axes.
    """
    known = axis_names(batch_kind)
    if name in known:
        return
    if name in set(BatchKind):
        raise ConfigError(
            f"{where} names {name}, but the grid holds {batch_kind} fixed: one batch rule per grid. "
            f"Set {batch_kind}, or choose a grid with batch_rule {name}."
        )
    near = did_you_mean(name, known) or f"Known are: {', '.join(known)}."
    raise ConfigError(f"{where} names the unknown axis {name!r}. {near}")


def values_of(where: str, value: object) -> tuple[AxisValue, ...]:
    """The values of an axis: a list varies it, anything else fixes it.

    Raises:
        ConfigError: If there is no value, or one that is not plain.
    """
    items = value if isinstance(value, list | tuple) else [value]
    if not items:
        raise ConfigError(f"{where}=[] has no value. Give at least one.")
    for item in items:
        if not isinstance(item, str | int | float | bool | None):
            raise ConfigError(f"{where}: {item!r} is not one plain value. A list of values is [1,2,4].")
    return tuple(items)


def override(grid: Declared, given: Values) -> Declared:
    """The grid with the command line's values for some axes.

    One value takes an axis out of its zip; a list must be as long as the zip, unless all its other axes have left it.
    In explicit cells the value takes the place of theirs.

    Raises:
        ConfigError: If a list does not fit a zip, or a second degree would be ``auto``.
    """
    for name in given:
        check_axis(name, grid.batch_kind, "the command line")
    axes = {**grid.axes, **given}
    zips = []
    for group in grid.zips:
        # One value fixes an axis and takes it out of the zip; an axis left alone in it is no longer zipped.
        open_axes = {name: values for name, values in group.items() if len(given.get(name, ())) != 1}
        if len(open_axes) == 1 and set(open_axes) <= set(given):
            continue
        zips.append({name: _zipped(name, values, given, open_axes) for name, values in open_axes.items()})
        axes = {name: values for name, values in axes.items() if name not in given or name not in open_axes}
    cells = tuple({name: values for name, values in cell.items() if name not in given} for cell in grid.cells)
    changed = replace(grid, axes=axes, zips=tuple(group for group in zips if group), cells=cells)
    _refuse_second_auto(changed, given)
    return changed


def _zipped(name: str, values: tuple[AxisValue, ...], given: Values, group: Values) -> tuple[AxisValue, ...]:
    asked = given.get(name, values)
    if len(asked) == len(values):
        return asked
    raise ConfigError(
        f"{name}={_shown(asked)} has {len(asked)} values, but the grid zips {' with '.join(group)}: "
        f"{len(values)} values each. Give {len(values)} values, or one for all of them."
    )


def _refuse_second_auto(grid: Declared, given: Values) -> None:
    for name in DEGREES:
        if AUTO not in given.get(name, ()):
            continue
        for other in DEGREES:
            if other != name and AUTO in grid.values(other):
                raise ConfigError(
                    f"{name}=auto, but {other} is auto too, and only one degree can be what remains of the GPUs. "
                    f"Give {other} a number as well, for example {other}=1."
                )


def _shown(values: tuple[AxisValue, ...]) -> str:
    return f"[{','.join('null' if value is None else str(value) for value in values)}]"
