"""``sweep.json``: what a run directory is for and every point and rejection that was ever asked of it."""

from __future__ import annotations

import json
from dataclasses import field, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from sweep.core.cells.axes import axis_default
from sweep.core.cells.axis import AxisValue
from sweep.core.cells.batch import BatchKind, BatchRule
from sweep.core.cells.cell import Cell, cell_from_json, cell_id, cell_to_json
from sweep.core.cells.device import Device
from sweep.core.cells.model_shape import FlopConvention
from sweep.core.encoding.codec import convert_value
from sweep.core.encoding.frozen import dataclass
from sweep.core.encoding.record import RecordError, parse_object, render
from sweep.core.grids.combination import LEFT_OUT
from sweep.core.grids.grid import Point, Rejection
from sweep.core.grids.series import Envelope, SeriesKind, SeriesSpec
from sweep.core.settings.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepFile:
    """The content of ``sweep.json``.

    Attributes:
        grid: Name of the grid.
        cluster: Name of the cluster.
        scale: ``laptop`` or ``paper``.
        batch_kind: What the grid holds fixed.
        repeats: Independent runs asked of each cell.
        series: How the table is read.
        flop_convention: How FLOPs are counted in it.
        devices: Profiles by name, with their peaks.
        cells: Every cell by id.
        points: Every combination that is a cell.
        rejections: Every combination that is not, with its rule and reason.
        predictions: Predicted seconds a step by cell id, where there are predictions.
        policy: The policy of the command that ran last.
        scheduler: Who ran its jobs (``slurm``, ``local``); None in files of earlier versions.
        accounting: Whether that scheduler's accounting may be asked.
        own_name: What the cluster calls itself (Slurm's ClusterName); None where it does not, or was not asked.
    """

    grid: str
    cluster: str
    scale: str
    batch_kind: BatchKind
    repeats: int
    series: SeriesSpec
    flop_convention: FlopConvention
    devices: Mapping[str, Device]
    cells: Mapping[str, Cell]
    points: tuple[Point, ...]
    rejections: tuple[Rejection, ...]
    predictions: Mapping[str, float] = field(default_factory=dict)
    policy: Policy = field(default_factory=Policy)
    scheduler: str | None = None
    accounting: bool = True
    own_name: str | None = None

    @property
    def blame_name(self) -> str:
        """The cluster's name for the book of blame: its own, since configurations call many `slurm`."""
        return self.own_name or self.cluster

    def render(self) -> str:
        """Text of the file."""
        series = self.series
        body = {
            "grid": self.grid,
            "cluster": self.cluster,
            "scale": self.scale,
            "batch_kind": self.batch_kind,
            "repeats": self.repeats,
            "series": {
                "kind": series.kind,
                "baseline": dict(series.baseline),
                "envelope": series.envelope,
                "by": None if series.by is None else list(series.by),
            },
            "flop_convention": self.flop_convention,
            "devices": {name: device.to_json() for name, device in self.devices.items()},
            "predictions": dict(self.predictions),
            "policy": self.policy.to_json(),
            "scheduler": self.scheduler,
            "accounting": self.accounting,
            "own_name": self.own_name,
        }
        # What there may be 100,000 of is written one a line: a tenth of the time and size that indenting it takes.
        encode = json.JSONEncoder(allow_nan=False).encode
        cells = [f"{encode(name)}: {encode(cell_to_json(cell))}" for name, cell in self.cells.items()]
        points = [encode({"axes": point.axes, "cell": point.cell_id}) for point in self.points]
        rejections = [encode({"axes": item.axes, "rule": item.rule, "reason": item.reason}) for item in self.rejections]
        many = (_block("cells", "{}", cells), _block("points", "[]", points), _block("rejections", "[]", rejections))
        return ",\n".join((render("sweep", body).removesuffix("\n}\n"), *many)) + "\n}\n"

    @classmethod
    def parse(cls, text: str) -> SweepFile:
        """Read the file back.

        Raises:
            RecordError: If it is damaged, of another schema version, or a cell's id is not its own.
        """
        data = parse_object(text, "sweep")
        try:
            return cls._from_data(data)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise RecordError(f"sweep.json is damaged: {type(error).__name__}: {error}") from error

    @classmethod
    def _from_data(cls, data: Mapping[str, Any]) -> SweepFile:
        series = data["series"]
        cells = {name: cell_from_json(value) for name, value in data["cells"].items()}
        for name, cell in cells.items():
            if cell_id(cell) != name:
                raise ValueError(f"the cell under {name} has the id {cell_id(cell)}")
        points = tuple(Point(axes=_axes(item["axes"]), cell_id=item["cell"]) for item in data["points"])
        for point in points:
            if point.cell_id not in cells:
                raise ValueError(f"a point names the cell {point.cell_id}, which is not there")
        names = [
            "grid",
            "cluster",
            "scale",
            "batch_kind",
            "repeats",
            "flop_convention",
            "predictions",
            "scheduler",
            "accounting",
            "own_name",
        ]
        # Files of earlier versions lack the last three, and have the budget where the policy is now.
        values = {"scheduler": None, "accounting": True, "own_name": None, **data}
        policy = data.get("policy", {"budget_gpu_hours": data.get("budget_gpu_hours")})
        simple: dict[str, Any] = {name: convert_value(cls, name, values[name], name) for name in names}
        rejections = tuple(
            Rejection(axes=_axes(item["axes"]), rule=str(item["rule"]), reason=str(item["reason"]))
            for item in data["rejections"]
        )
        for rejection in rejections:
            _check_size(rejection.axes, simple["batch_kind"])
        return cls(
            **simple,
            policy=Policy.from_json(policy),
            series=SeriesSpec(
                kind=SeriesKind(series["kind"]),
                baseline=_axes(series["baseline"]),
                envelope=None if series["envelope"] is None else Envelope(series["envelope"]),
                by=None if series["by"] is None else tuple(map(str, series["by"])),
            ),
            devices={name: Device.from_json(value) for name, value in data["devices"].items()},
            cells=cells,
            points=points,
            rejections=rejections,
        )


def _axes(data: Any) -> dict[str, AxisValue]:
    for value in data.values():
        if isinstance(value, dict | list):
            raise ValueError(f"an axis has the value {value!r}")
    return dict(data)


def _check_size(axes: Mapping[str, AxisValue], batch_kind: BatchKind) -> None:
    """Raises ValueError where the axes of a rejection do not say how many GPUs and tokens it would have had."""
    for name in ("nodes", "gpus_per_node", "seq_len"):
        if type(axes.get(name)) is not int:
            raise ValueError(f"a rejection has {name}={axes.get(name)!r}")
    BatchRule(kind=batch_kind, value=Fraction(str(axes.get(batch_kind))))


def _block(name: str, brackets: str, lines: list[str]) -> str:
    return f' "{name}": {brackets[0]}\n  ' + ",\n  ".join(lines) + f"\n {brackets[1]}"


class PinError(ValueError):
    """A run directory belongs to another grid, cluster or batch rule than was asked for."""


def extended(old: SweepFile, new: SweepFile) -> SweepFile:
    """The old content with the new points, rejections and cells added; what is read from it is the new one's.

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
        devices={**old.devices, **new.devices},
        cells={**old.cells, **new.cells},
        points=tuple(held.points.values()),
        rejections=tuple(held.rejections.values()),
        predictions={**old.predictions, **new.predictions},
    )


class _Held:
    """Points and rejections by their axis values; what is added later counts."""

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
