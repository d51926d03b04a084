"""How a grid's table is read: its series, checked against its axes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sweep.config.declared import check_axis, texts, values_of
from sweep.config.errors import ConfigError, listed
from sweep.core.cells.axes import normalise_axis
from sweep.core.encoding.codec import build
from sweep.core.encoding.frozen import dataclass
from sweep.core.grids.series import Envelope, SeriesKind, SeriesSpec

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from sweep.config.declared import Declared
    from sweep.core.cells.axis import AxisValue
    from sweep.core.cells.model_shape import ModelShape


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
