"""``sweep.json``: what a run directory is for and every point and rejection that was ever asked of it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from sweep.core.cell import AxisValue, BatchKind, Cell, cell_from_json, cell_id, cell_to_json
from sweep.core.device import Device
from sweep.core.grid import Point, Rejection
from sweep.core.model import FlopConvention
from sweep.core.record import RecordError, parse_object, render
from sweep.core.series import Envelope, SeriesKind, SeriesSpec

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
            "cells": {name: cell_to_json(cell) for name, cell in self.cells.items()},
            "points": [{"axes": dict(point.axes), "cell": point.cell_id} for point in self.points],
            "rejections": [
                {"axes": dict(item.axes), "rule": item.rule, "reason": item.reason} for item in self.rejections
            ],
            "predictions": dict(self.predictions),
        }
        return render("sweep", body)

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
        return cls(
            grid=data["grid"],
            cluster=data["cluster"],
            scale=data["scale"],
            batch_kind=BatchKind(data["batch_kind"]),
            repeats=data["repeats"],
            series=SeriesSpec(
                kind=SeriesKind(series["kind"]),
                baseline=series["baseline"],
                envelope=None if series["envelope"] is None else Envelope(series["envelope"]),
                by=None if series["by"] is None else tuple(series["by"]),
            ),
            flop_convention=FlopConvention(data["flop_convention"]),
            devices={name: Device.from_json(value) for name, value in data["devices"].items()},
            cells=cells,
            points=tuple(Point(axes=item["axes"], cell_id=item["cell"]) for item in data["points"]),
            rejections=tuple(
                Rejection(axes=item["axes"], rule=item["rule"], reason=item["reason"]) for item in data["rejections"]
            ),
            predictions=data.get("predictions", {}),
        )


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
    points = {_axes_key(point.axes): point for point in (*old.points, *new.points)}
    rejections = {_axes_key(item.axes): item for item in (*old.rejections, *new.rejections)}
    # A combination that was rejected once and is a cell now (a newer trainer can do more) is a cell, and vice versa.
    for point in new.points:
        rejections.pop(_axes_key(point.axes), None)
    for item in new.rejections:
        points.pop(_axes_key(item.axes), None)
    return replace(
        new,
        repeats=max(old.repeats, new.repeats),
        devices={**old.devices, **new.devices},
        cells={**old.cells, **new.cells},
        points=tuple(points.values()),
        rejections=tuple(rejections.values()),
        predictions={**old.predictions, **new.predictions},
    )


def _axes_key(axes: Mapping[str, AxisValue]) -> str:
    return json.dumps(dict(axes), sort_keys=True)
