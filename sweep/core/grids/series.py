"""Series: a weak, strong or free view over the points of a grid, with its named baseline."""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum
from typing import TYPE_CHECKING

from sweep.core.cells.axes import AUTO, AXES, DEGREES
from sweep.core.encoding.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sweep.core.cells.axis import AxisValue


class SeriesKind(StrEnum):
    """What is compared along the number of GPUs."""

    WEAK = "weak"
    STRONG = "strong"
    FREE = "free"


class Envelope(StrEnum):
    """Which of several layouts at one number of GPUs stands for a series."""

    BEST = "best"


SeriesKey = tuple[tuple[str, "AxisValue"], ...]

_X_AXES = ("nodes", "gpus_per_node")
_LAYOUT_AXES = (
    *DEGREES,
    "schedule",
    "virtual_stages",
    "async_tp",
    "sequence_parallel",
    "micro_batch",
    "activation_checkpointing",
    "reshard_after_forward",
)


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
    """Axes with more than one value over the points, in the order of :data:`sweep.core.cells.axes.AXES`."""
    values: dict[str, set[AxisValue]] = {}
    for axes in points:
        for name, value in axes.items():
            values.setdefault(name, set()).add(value)
    varied = [name for name, found in values.items() if len(found) > 1]
    return tuple(sorted(varied, key=_order))


def _order(name: str) -> tuple[int, str]:
    return (AXES.index(name) if name in AXES else len(AXES), name)


def key_axes(spec: SeriesSpec, points: Sequence[Mapping[str, AxisValue]]) -> tuple[str, ...]:
    """The axes whose values tell the series of these points apart.

    A degree that is ``auto`` anywhere follows from the others and tells nothing apart; under an envelope the layout
    is what is chosen, so it does not either.
    """
    if spec.by is not None:
        return spec.by
    if spec.kind is SeriesKind.FREE:
        return ()
    left_out = {*_X_AXES, *(_LAYOUT_AXES if spec.envelope else ())}
    left_out |= {name for name in DEGREES if any(axes.get(name) == AUTO for axes in points)}
    return tuple(name for name in varied_axes(points) if name not in left_out)


def key_of(axes: Mapping[str, AxisValue], names: Iterable[str]) -> SeriesKey:
    """The series that a point belongs to."""
    return tuple((name, axes.get(name)) for name in names)


def label_of(key: SeriesKey) -> str:
    """A series' name for tables and legends: ``model=llama2_7b, tp=2``; ``all`` where nothing tells series apart."""
    return ", ".join(f"{name}={'none' if value is None else value}" for name, value in key) or "all"


def is_baseline(axes: Mapping[str, AxisValue], spec: SeriesSpec) -> bool:
    """Whether a point has the baseline's axis values (a grid without a named baseline has none)."""
    return bool(spec.baseline) and all(axes.get(name) == value for name, value in spec.baseline.items())
