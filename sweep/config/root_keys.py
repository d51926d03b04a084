"""Reads a grid's series, checked against its axes, and the root's own keys (conf/config.yaml) into their types."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from sweep.config.declared import Declared, check_axis, texts, values_of
from sweep.config.errors import ConfigError, explained, listed
from sweep.config.keys import RootKeys, fit
from sweep.core.attempts.attempt import Outcome
from sweep.core.cells.axes import normalise_axis
from sweep.core.cells.axis import AxisValue
from sweep.core.cells.model_shape import ModelShape
from sweep.core.encoding.codec import build, convert_value
from sweep.core.encoding.frozen import dataclass
from sweep.core.encoding.message import did_you_mean
from sweep.core.grids.series import Envelope, SeriesKind, SeriesSpec


def root_keys_of(root: Mapping[str, Any]) -> RootKeys:
    """The root's own keys.

    Raises:
        ConfigError: If one has a value that it cannot have.
    """
    names = [item.name for item in dataclasses.fields(RootKeys)]
    values: dict[str, Any] = {name: root[name] for name in names if root.get(name) is not None}
    for name in ("exclude", "require", "notify"):
        values[name] = texts(root.get(name), name)
    values["retry"] = _outcomes(root.get("retry"))
    if "repeats" in values:
        repeats(values["repeats"])
    with explained():
        fitted = fit(RootKeys, values, "the command line")
        typed: dict[str, Any] = {name: convert_value(RootKeys, name, value, name) for name, value in fitted.items()}
    return RootKeys(**typed)


def _outcomes(value: object) -> tuple[str, ...]:
    found = tuple(str(item).upper() for item in (value if isinstance(value, list) else [value] if value else []))
    for item in found:
        if item not in set(Outcome):
            near = did_you_mean(item, Outcome)
            raise ConfigError(f"retry={item} is not an outcome. {near}Known are: {listed(Outcome)}.")
    return found


def repeats(value: object) -> int:
    """The number of independent runs of each cell; 1 for None.

    Raises:
        ConfigError: If it is not a positive integer.
    """
    if value is None:
        return 1
    if type(value) is not int or value < 1:
        raise ConfigError(f"repeats={value!r} is not a positive integer. Give a whole number >= 1.")
    return value


@dataclass(frozen=True, kw_only=True, slots=True)
class _Words:
    """The keys of a series whose value is one of a few words."""

    kind: SeriesKind
    envelope: Envelope | None


def series_of(
    data: Mapping[str, Any], grid: Declared, models: Mapping[str, ModelShape], open_axes: Collection[str]
) -> SeriesSpec:
    """The series that the keys describe.

    Args:
        data: The keys of a series.
        grid: The grid that it is a view of.
        models: Shapes by the names that the grid uses.
        open_axes: Axes whose baseline value need not be in the grid (it may have been measured before).

    Raises:
        ConfigError: If a key has a value that it cannot have.
    """
    if data.get("kind") is None:
        raise ConfigError(f"series.kind is missing. Use {listed(SeriesKind)}.")
    words = build(_Words, {"kind": data["kind"], "envelope": data.get("envelope")}, "series")
    by = None if data.get("by") is None else texts(data["by"], "series.by")
    for name in by or ():
        check_axis(name, grid.batch_kind, "series.by")
    baseline = _baseline(data.get("baseline") or {}, grid, models)
    for name, value in baseline.items():
        values = grid.values(name)
        if name not in open_axes and values and value not in values:
            raise ConfigError(f"series.baseline.{name}={value!r} is none of the grid's values {list(values)}.")
    return SeriesSpec(kind=words.kind, baseline=baseline, envelope=words.envelope, by=by)


def _baseline(data: object, grid: Declared, models: Mapping[str, ModelShape]) -> dict[str, AxisValue]:
    if not isinstance(data, dict):
        raise ConfigError(f"series.baseline={data!r} is not a mapping. Say for example {{nodes: 1}}.")
    found: dict[str, AxisValue] = {}
    for name, value in data.items():
        check_axis(name, grid.batch_kind, "series.baseline")
        if isinstance(value, list) or len(values_of(f"series.baseline.{name}", value)) != 1:
            raise ConfigError(f"series.baseline.{name}={value!r} is not one value: the baseline is one cell.")
        found[name] = normalise_axis(name, value, models)
    return found
