"""Series: a weak, strong or free view over the points of a grid, with its named baseline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from enum import StrEnum

from sweep.core.cells.axes import ALL_AXES, AXES
from sweep.core.cells.axis import AUTO, AxisValue
from sweep.core.encoding.frozen import dataclass


class SeriesKind(StrEnum):
    """The comparison along the number of GPUs."""

    WEAK = "weak"
    STRONG = "strong"
    FREE = "free"


class Envelope(StrEnum):
    """Which of several layouts at one number of GPUs stands for a series."""

    BEST = "best"


SeriesKey = tuple[tuple[str, "AxisValue"], ...]

_X_AXES = ("nodes", "gpus_per_node")


@dataclass(frozen=True, kw_only=True, slots=True)
class SeriesSpec:
    """How the points of a grid fall into series.

    Attributes:
        kind: weak, strong or free.
        baseline: Axis values that single out the baseline of each series.
        envelope: ``best``: at each number of GPUs the fastest layout stands for the series.
        by: The axes that tell series apart; None: every varied axis but those of x (weak, strong), none (free).
    """

    kind: SeriesKind
    baseline: Mapping[str, AxisValue] = field(default_factory=dict)
    envelope: Envelope | None = None
    by: tuple[str, ...] | None = None


def varied_axes(points: Sequence[Mapping[str, AxisValue]]) -> tuple[str, ...]:
    """Axes with more than one value over the points, in the order of AXES; settings of the trainer follow by name."""
    values: dict[str, set[AxisValue]] = {}
    for axes in points:
        for name, value in axes.items():
            values.setdefault(name, set()).add(value)
    varied = [name for name, found in values.items() if len(found) > 1]
    order = {name: place for place, name in enumerate(AXES)}
    return tuple(sorted(varied, key=lambda name: (order.get(name, len(order)), name)))


def key_axes(spec: SeriesSpec, points: Sequence[Mapping[str, AxisValue]]) -> tuple[str, ...]:
    """The axes whose values tell the series of these points apart.

    A degree that is ``auto`` anywhere follows from the others and tells nothing apart; under an envelope the layout
    is what is chosen, so it does not either.
    """
    if spec.by is not None:
        return spec.by
    if spec.kind is SeriesKind.FREE:
        return ()
    left_out = {*_X_AXES, *(name for name, axis in ALL_AXES.items() if spec.envelope and axis.is_layout)}
    left_out |= {
        name for name, axis in ALL_AXES.items() if axis.is_degree and any(axes.get(name) == AUTO for axes in points)
    }
    return tuple(name for name in varied_axes(points) if name not in left_out)


def key_of(axes: Mapping[str, AxisValue], names: Iterable[str]) -> SeriesKey:
    """The series that a point belongs to."""
    return tuple((name, axes.get(name)) for name in names)


def label_of(key: SeriesKey) -> str:
    """A series' name for tables and legends: ``model=llama2_7b, tp=2``; ``all`` where nothing tells series apart."""
    return ", ".join(f"{name}={'none' if value is None else value}" for name, value in key) or "all"


def is_baseline(axes: Mapping[str, AxisValue], spec: SeriesSpec) -> bool:
    """True if a point has the baseline's axis values (False in a grid that names no baseline)."""
    return bool(spec.baseline) and all(axes.get(name) == value for name, value in spec.baseline.items())
