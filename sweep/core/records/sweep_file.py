"""``sweep.json``: the sweep of a run directory, with every point and rejection of all its commands."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import field, fields, replace
from fractions import Fraction
from typing import Any

from sweep.core.attempts.outcome_rules import OUTCOME_RULES
from sweep.core.cells.axes import ALL_AXES, REQUIRED, axis_default
from sweep.core.cells.axis import COUNT, AxisValue
from sweep.core.cells.batch import BatchKind, BatchRule
from sweep.core.cells.cell import Cell, cell_id
from sweep.core.cells.device import Device
from sweep.core.cells.model_shape import FlopConvention
from sweep.core.encoding.frozen import dataclass
from sweep.core.encoding.names import CellId, FileName
from sweep.core.encoding.plain import plain
from sweep.core.encoding.record import Record, RecordError, render
from sweep.core.grids.combination import LEFT_OUT
from sweep.core.grids.grid import Point, Rejection
from sweep.core.grids.series import SeriesSpec
from sweep.core.records.layout import SWEEP_FILE
from sweep.core.settings.policy import Policy
from sweep.core.settings.spec import SchedulerKind


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepFile(Record):
    """The content of ``sweep.json``.

    Attributes:
        grid: Name of the grid.
        cluster: Name of the cluster.
        scale: ``laptop`` or ``paper``.
        batch_kind: The batch rule: what stays fixed as GPUs are added.
        repeats: Independent runs asked of each cell.
        series: How cells are compared in tables.
        flop_convention: How FLOPs are counted in it.
        devices: Profiles by name, with their peaks.
        cells: Every cell by id.
        points: Every combination that is a cell.
        rejections: Every combination that is not, with its rule and reason.
        predictions: Predicted seconds a step by cell id, where there are predictions.
        policy: The policy of the command that ran last.
        scheduler: The scheduler of its jobs (``slurm``, ``local``); None in files of earlier versions.
        accounting: True if that scheduler's accounting may be asked.
        own_name: The cluster's own name (Slurm's ClusterName); None where it has none or was not asked.
        order_seed: Seed of the order in which cells are submitted; None: the grid's order.
    """

    KIND = "sweep"
    FILE = SWEEP_FILE

    grid: FileName
    cluster: FileName
    scale: str
    batch_kind: BatchKind
    repeats: int
    series: SeriesSpec
    flop_convention: FlopConvention
    devices: Mapping[str, Device]
    cells: Mapping[CellId, Cell]
    points: tuple[Point, ...]
    rejections: tuple[Rejection, ...]
    predictions: Mapping[str, float] = field(default_factory=dict)
    policy: Policy = field(default_factory=Policy)
    scheduler: SchedulerKind | None = None
    accounting: bool = True
    own_name: FileName | None = None
    order_seed: int | None = None

    @property
    def blame_name(self) -> str:
        """The cluster's name for the record of blame: its own, since many configurations are called `slurm`."""
        return self.own_name or self.cluster

    def render(self) -> str:
        """Text of the file, with each cell, point and rejection on a line of its own."""
        # There may be 100,000 of them: a tenth of the time and size that indenting them takes.
        few = plain(replace(self, cells={}, points=(), rejections=()))
        del few["cells"], few["points"], few["rejections"]
        encode = json.JSONEncoder(allow_nan=False).encode
        cells = [f"{encode(name)}: {encode(plain(cell))}" for name, cell in self.cells.items()]
        points = [encode({"axes": point.axes, "cell": point.cell_id}) for point in self.points]
        rejections = [encode(plain(item)) for item in self.rejections]
        many = (_block("cells", "{}", cells), _block("points", "[]", points), _block("rejections", "[]", rejections))
        return ",\n".join((render(self.KIND, few).removesuffix("\n}\n"), *many)) + "\n}\n"

    @classmethod
    def upgraded(cls, data: dict[str, Any]) -> dict[str, Any]:
        """The object of the file. Earlier versions had a budget in place of the policy, and fewer outcomes.

        Raises:
            RecordError: If the series does not say how cells are compared: a default could draw another figure.
        """
        series = data.get("series")
        lacking = [item.name for item in fields(SeriesSpec) if isinstance(series, dict) and item.name not in series]
        if lacking:
            raise RecordError(f"{cls.FILE} is damaged: series lacks {', '.join(lacking)}")
        policy = data.get("policy", {"budget_gpu_hours": data.get("budget_gpu_hours")})
        if isinstance(policy, dict) and isinstance(policy.get("outcomes", {}), dict):
            policy = {**policy, "outcomes": {**_OUTCOMES, **policy.get("outcomes", {})}}
        points = data.get("points")
        if isinstance(points, list):
            points = [{**item, "cell_id": item.get("cell")} if type(item) is dict else item for item in points]
        return {**data, "policy": policy, "points": points}

    def check(self) -> None:
        """Refuse cells under another id, points without their cell, and rejections without their sizes.

        Raises:
            RecordError: If there are any.
        """
        try:
            for name, cell in self.cells.items():
                if cell_id(cell) != name:
                    raise ValueError(f"the cell under {name} has the id {cell_id(cell)}")
            for point in self.points:
                if point.cell_id not in self.cells:
                    raise ValueError(f"a point names the cell {point.cell_id}, which is not there")
            for rejection in self.rejections:
                _check_size(rejection.axes, self.batch_kind)
        except (ValueError, ArithmeticError) as error:
            raise RecordError(f"{self.FILE} is damaged: {error}") from error


_OUTCOMES = {outcome.value: plain(rule) for outcome, rule in OUTCOME_RULES.items()}


def _check_size(axes: Mapping[str, AxisValue], batch_kind: BatchKind) -> None:
    """Raises ValueError where the axes of a rejection do not say how many GPUs and tokens it would have had."""
    for name in (name for name in REQUIRED if ALL_AXES[name].check is COUNT):
        if type(axes.get(name)) is not int:
            raise ValueError(f"a rejection has {name}={axes.get(name)!r}")
    BatchRule(kind=batch_kind, value=Fraction(str(axes.get(batch_kind))))


def _block(name: str, brackets: str, lines: list[str]) -> str:
    return f' "{name}": {brackets[0]}\n  ' + ",\n  ".join(lines) + f"\n {brackets[1]}"


class PinError(ValueError):
    """A run directory belongs to another grid, cluster or batch rule than was asked for."""


def extended(old: SweepFile, new: SweepFile) -> SweepFile:
    """The old content with the new points, rejections and cells added; settings are those of the new one.

    Raises:
        PinError: If the two are not of the same grid, cluster and batch rule.
    """
    for name in ("grid", "cluster", "batch_kind"):
        if getattr(old, name) != getattr(new, name):
            raise PinError(
                f"the run directory holds {name.replace('_', ' ')} {getattr(old, name)!r}; "
                f"{getattr(new, name)!r} was asked for. Give another run_dir=..., or the one that belongs to it."
            )
    # A run that varies an axis for the first time, or a newer version with one axis more: the others had its default.
    items: tuple[Point | Rejection, ...] = (*old.points, *old.rejections, *new.rejections, *new.points)
    held = _Held(tuple(dict.fromkeys(name for item in items for name in item.axes)))
    for item in items:
        held.add(item)
    return replace(
        new,
        repeats=max(old.repeats, new.repeats),
        own_name=new.own_name or old.own_name,
        # A run that is resumed goes on in its order, even if its folder was renamed.
        order_seed=new.order_seed if None in (old.order_seed, new.order_seed) else old.order_seed,
        devices={**old.devices, **new.devices},
        cells={**old.cells, **new.cells},
        points=tuple(held.points.values()),
        rejections=tuple(held.rejections.values()),
        predictions={**old.predictions, **new.predictions},
    )


class _Held:
    """Points and rejections by their axis values; a later one replaces an earlier one."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names
        self.points: dict[tuple[AxisValue, ...], Point] = {}
        self.rejections: dict[tuple[AxisValue, ...], Rejection] = {}

    def add(self, item: Point | Rejection) -> None:
        axes = {name: item.axes[name] if name in item.axes else axis_default(name) for name in self._names}
        key, whole = tuple(axes.values()), replace(item, axes=axes)
        if isinstance(whole, Point):
            # What was rejected once may be a cell now: a newer trainer can do more.
            self.rejections.pop(key, None)
            self.points[key] = whole
        elif key not in self.points or whole.rule not in LEFT_OUT:
            self.points.pop(key, None)
            self.rejections[key] = whole
        # Else: a condition leaves out of this command what another one asked for; what it measured stays in the table.
