"""The table of a sweep: the one result type that every exporter reads, built from the records of a run."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from analysis.columns import COLUMNS
from analysis.load import LoadError, RunData
from analysis.reduce import Reduced, reduce_cell
from analysis.rows import Row, gpu_hours, is_on_cpu, row_of, row_of_rejection
from analysis.scaling import Entry, scale
from sweep.core.grids.combination import LEFT_OUT
from sweep.core.grids.series import SeriesKind, varied_axes
from sweep.core.records.layout import SWEEP_FILE
from sweep.core.records.sweep_file import SweepFile

_YEAR_10000 = 253402300800


@dataclass(frozen=True, kw_only=True, slots=True)
class Provenance:
    """The origin of the numbers of a table."""

    sources: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    """Devices as they reported themselves."""
    fingerprints: Mapping[str, Mapping[str, str | None]] = field(default_factory=dict)
    """Recorded fields by fingerprint."""
    newest: str = ""
    """UTC date and time of the newest result; empty where there is none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """A sweep's table."""

    sweep: SweepFile
    columns: tuple[str, ...]
    varied: tuple[str, ...]
    series_axes: tuple[str, ...]
    """The axes that tell the series apart."""
    rows: tuple[Row, ...]
    """By series, then GPUs, then the order of the grid."""
    holes: Mapping[str, int]
    """Numbers of rows by status, measured ones not counted."""
    left_out: int
    """Number of combinations that the grid's own conditions left out."""
    notes: tuple[str, ...]
    """Sentences about the numbers that a reader must know."""
    warnings: tuple[str, ...]
    """Faults of records, and reasons why series are not compared."""
    refused: bool
    """True if a series has no speed-up because it mixes fingerprints or kinds of source."""
    provenance: Provenance


def build(run: RunData, *, mix_fingerprints: bool = False) -> Table:
    """The table of a run directory.

    Raises:
        LoadError: If the values of a rejection are not those of its axes.
    """
    sweep = run.sweep
    for item in sweep.rejections:
        for name, value in item.axes.items():
            if name in COLUMNS and name != sweep.batch_kind and not COLUMNS[name].takes(value):
                raise LoadError(f"{SWEEP_FILE} cannot be used: a rejection has {name}={value!r}")
    reduced = {
        cell_id: reduce_cell(
            sweep.cells[cell_id], found, cell_id=cell_id, device=sweep.devices.get(sweep.cells[cell_id].device)
        )
        for cell_id, found in run.measurements.items()
        if found
    }
    rejections = [item for item in sweep.rejections if item.rule not in LEFT_OUT]
    entries = [Entry(axes=p.axes, cell_id=p.cell_id, reduced=reduced.get(p.cell_id)) for p in sweep.points]
    entries += [Entry(axes=item.axes) for item in rejections]
    scaled = scale(entries, sweep.series, mix_fingerprints=mix_fingerprints)
    points, rejected = scaled.comparisons[: len(sweep.points)], scaled.comparisons[len(sweep.points) :]
    hours = gpu_hours(run)
    rows = [row_of(run, entry, comparison, hours) for entry, comparison in zip(entries, points, strict=False)]
    rows += [row_of_rejection(sweep, item, comparison) for item, comparison in zip(rejections, rejected, strict=True)]
    order = {label: index for index, label in enumerate(dict.fromkeys(row["series"] for row in rows))}
    rows.sort(key=lambda row: (order[row["series"]], row.number("gpus") or 0))
    varied = varied_axes([entry.axes for entry in entries])
    damaged = [f"cell {cell_id}: {problem}" for cell_id, found in run.problems.items() for problem in found]
    return Table(
        sweep=sweep,
        columns=(*(name for name in varied if name not in COLUMNS), *COLUMNS),
        varied=varied,
        series_axes=scaled.axes,
        rows=tuple(rows),
        holes=Counter(str(row["status"]) for row in rows if not row.is_measured),
        left_out=len(sweep.rejections) - len(rejections),
        notes=(*scaled.refusals, *scaled.notes, *_remarks(rows, reduced, sweep), *run.notes),
        warnings=(*run.notes, *damaged, *scaled.refusals),
        refused=bool(scaled.refusals),
        provenance=_provenance(list(reduced.values())),
    )


def _remarks(rows: Sequence[Row], reduced: Mapping[str, Reduced], sweep: SweepFile) -> list[str]:
    """Notes that hold for several rows, each with how many."""
    measured = [row for row in rows if row.is_measured]
    shared = Counter(str(row["cell"]) for row in rows if row["cell"] is not None)
    of_n = f"of {len(measured)} measured points"
    counted = {
        "oversubscribed: more ranks than devices or cores; a demonstration, not a measurement": sum(
            row["oversubscribed"] is True for row in measured
        ),
        "on CPUs: what this table calls a GPU is a process there": sum(is_on_cpu(row, sweep) for row in measured),
        "throttled: a device said that it slowed down in the window": sum(row["throttled"] is True for row in measured),
        "without every repeat that was asked for (see their reasons)": sum(
            (row.number("repeats") or 0) < sweep.repeats for row in measured
        ),
        "with a reported device that is not of the kind the cell names: no MFU": sum(
            reduced[str(row["cell"])].is_mismatched for row in measured
        ),
        "without an interval: too few steps": sum(row["step_time_s_ci_low"] is None for row in measured),
        "above 100 % efficiency with their whole interval: was the baseline disturbed?": sum(
            sweep.series.kind is not SeriesKind.FREE and (row.number("efficiency_ci_low") or 0) > 1 for row in measured
        ),
    }
    notes = [f"{count} {of_n} {text}" for text, count in counted.items() if count]
    twice = sum(count > 1 for count in shared.values())
    return [*notes, f"{twice} cells stand for more than one grid point each"] if twice else notes


def _provenance(reduced: Sequence[Reduced]) -> Provenance:
    if not reduced:
        return Provenance()
    # A damaged time must not cost the table: a time that is no date of this calendar is left out.
    times = [item.newest for item in reduced if 0 <= item.newest < _YEAR_10000]
    newest = datetime.datetime.fromtimestamp(max(times), tz=datetime.UTC) if times else None
    return Provenance(
        sources=tuple(sorted({source for item in reduced for source in item.sources})),
        devices=tuple(sorted({name for item in reduced for name in item.device_names})),
        fingerprints={name: fields for item in reduced for name, fields in item.fingerprints.items()},
        newest="" if newest is None else newest.strftime("%Y-%m-%d %H:%M UTC"),
    )
