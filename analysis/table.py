"""The one result type that every exporter reads: columns, rows, notes and provenance of a sweep's table."""

from __future__ import annotations

import datetime
from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from analysis.holes import MEASURED, REJECTED, explain, gpu_hours
from analysis.reduce import PROFILE_FIELDS, Reduced, reduce_cell
from analysis.scaling import Entry, Standing, scale
from sweep.core.cells.axis import AUTO
from sweep.core.cells.batch import BatchRule
from sweep.core.cells.cell import Cell
from sweep.core.cells.model_shape import flops_per_token
from sweep.core.cells.parallelism import DEGREES
from sweep.core.grids.combination import LEFT_OUT
from sweep.core.grids.grid import Rejection
from sweep.core.grids.series import SeriesKind, varied_axes
from sweep.core.records.layout import attempt_dir

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from analysis.bootstrap import Interval
    from analysis.load import RunData
    from sweep.core.cells.axis import AxisValue
    from sweep.core.records.sweep_file import SweepFile

Value = str | int | float | bool | None

COLUMN_KINDS: Mapping[str, str] = {
    "series": "string",
    "cell": "string",
    "status": "string",
    "reason": "string",
    "source": "string",
    "model": "string",
    "n_params": "Int64",
    "gpu": "string",
    "nodes": "Int64",
    "gpus": "Int64",
    "dp_replicate": "Int64",
    "dp_shard": "Int64",
    "tp": "Int64",
    "pp": "Int64",
    "cp": "Int64",
    "schedule": "string",
    "virtual_stages": "Int64",
    "micro_batch": "Int64",
    "grad_accum": "Int64",
    "global_batch": "Int64",
    "batch_rule": "string",
    "sequences_per_gpu": "Float64",
    "seq_len": "Int64",
    "precision": "string",
    "compile": "boolean",
    "activation_checkpointing": "string",
    "reshard_after_forward": "boolean",
    "async_tp": "boolean",
    "repeats": "Int64",
    "baseline": "string",
    "step_time_s": "Float64",
    "step_time_s_ci_low": "Float64",
    "step_time_s_ci_high": "Float64",
    "tokens_per_s": "Float64",
    "tokens_per_s_per_gpu": "Float64",
    "speedup": "Float64",
    "efficiency": "Float64",
    "efficiency_ci_low": "Float64",
    "efficiency_ci_high": "Float64",
    "tflops_per_gpu": "Float64",
    "mfu": "Float64",
    "flop_convention": "string",
    "peak_tflops": "Float64",
    "compute_s": "Float64",
    "comm_s": "Float64",
    "comm_merged_s": "Float64",
    "exposed_comm_s": "Float64",
    "idle_s": "Float64",
    "profiled_step_time_s": "Float64",
    "peak_memory_gib": "Float64",
    "power_w_per_gpu": "Float64",
    "tokens_per_j": "Float64",
    "gpu_hours": "Float64",
    "throttled": "boolean",
    "oversubscribed": "boolean",
    "predicted_step_time_s": "Float64",
    "prediction_error": "Float64",
    "fingerprint": "string",
    "attempt": "string",
}
"""Columns of every table, each with pandas' name for its kind; all can hold blanks."""

COLUMNS = tuple(COLUMN_KINDS)
"""Before them comes one for each varied axis that is not among them."""

_YEAR_10000 = 253402300800


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Row:
    """One grid point.

    Attributes:
        values: By column; what is not known is None or absent.
        axes: The point's axis values.
        rate_ci: Interval of ``tokens_per_s``, for figures.
        is_chosen: Whether it stands for its number of GPUs (always, without an envelope).
        is_baseline: Whether it is the baseline of its series.
    """

    values: Mapping[str, Value]
    axes: Mapping[str, AxisValue]
    rate_ci: Interval | None = None
    is_chosen: bool = True
    is_baseline: bool = False

    def __getitem__(self, column: str) -> Value:
        """The value of a column; None where it is blank."""
        return self.values.get(column)

    def number(self, column: str) -> float | None:
        """The value of a column of numbers; None where it is blank."""
        value = self.values.get(column)
        return float(value) if isinstance(value, int | float) else None

    @property
    def is_measured(self) -> bool:
        """Whether it is no hole."""
        return self.values["status"] == MEASURED


@dataclass(frozen=True, kw_only=True, slots=True)
class Provenance:
    """What the numbers come from.

    Attributes:
        sources: Kinds of source.
        devices: Devices as they reported themselves.
        fingerprints: Recorded fields by fingerprint.
        newest: UTC date and time of the newest result; empty where there is none.
    """

    sources: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    fingerprints: Mapping[str, Mapping[str, str | None]] = field(default_factory=dict)
    newest: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """A sweep's table.

    Attributes:
        sweep: What was asked for.
        columns: Names, in order.
        varied: The axes that vary.
        series_axes: Those that tell the series apart.
        rows: By series, then GPUs, then the order of the grid.
        holes: How many rows have which status other than measured.
        left_out: How many combinations the grid's own conditions left out.
        notes: What a reader must know of the numbers.
        warnings: What is wrong with records, or keeps series from being compared.
        refused: Whether a series has no speed-up because it mixes what must not be mixed.
        provenance: What the numbers come from.
    """

    sweep: SweepFile
    columns: tuple[str, ...]
    varied: tuple[str, ...]
    series_axes: tuple[str, ...]
    rows: tuple[Row, ...]
    holes: Mapping[str, int]
    left_out: int
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    refused: bool
    provenance: Provenance


def build(run: RunData, *, mix_fingerprints: bool = False) -> Table:
    """The table of a run directory."""
    sweep = run.sweep
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
    points, refused = scaled.standings[: len(sweep.points)], scaled.standings[len(sweep.points) :]
    hours = gpu_hours(run)
    rows = [_row(run, entry, standing, hours) for entry, standing in zip(entries, points, strict=False)]
    rows += [_rejected(sweep, item, standing) for item, standing in zip(rejections, refused, strict=True)]
    rows = _sorted(rows)
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


def _sorted(rows: Sequence[Row]) -> list[Row]:
    order = {label: index for index, label in enumerate(dict.fromkeys(row["series"] for row in rows))}
    return sorted(rows, key=lambda row: (order[row["series"]], row.number("gpus") or 0))


def _row(run: RunData, entry: Entry, standing: Standing, hours: Mapping[str, float | None]) -> Row:
    assert entry.cell_id is not None, "a point has a cell"
    cell_id, reduced = entry.cell_id, entry.reduced
    cell = run.sweep.cells[cell_id]
    measured = [item.result.key.repeat for item in run.measurements[cell_id]]
    status, why = explain(run, cell_id, measured)
    said = [why, *run.problems[cell_id], standing.remark]
    values: dict[str, Value] = {**entry.axes, **_of_cell(run.sweep, cell), **_of_standing(standing)}
    values |= {
        "cell": cell_id,
        "status": status,
        "reason": "; ".join(text for text in said if text),
        "repeats": len(measured),
        "gpu_hours": hours[cell_id],
        "attempt": _last_attempt(run, cell_id),
        "predicted_step_time_s": run.sweep.predictions.get(cell_id),
    }
    if reduced is not None:
        values |= _of_reduced(run.sweep, reduced)
        values["prediction_error"] = _prediction_error(run.sweep.predictions.get(cell_id), reduced.step_time_s)
    return Row(
        values=values,
        axes=entry.axes,
        rate_ci=None if reduced is None else reduced.rate_ci,
        is_chosen=standing.is_chosen,
        is_baseline=standing.baseline == cell_id,
    )


def _of_cell(sweep: SweepFile, cell: Cell) -> dict[str, Value]:
    layout = cell.parallelism
    return {
        "model": cell.model.name,
        "n_params": cell.model.n_params,
        "nodes": cell.nodes,
        "gpus": cell.gpus,
        **{name: getattr(layout, name) for name in (*DEGREES, "schedule", "virtual_stages", "async_tp")},
        "micro_batch": cell.micro_batch,
        "grad_accum": _plain(cell.grad_accum),
        "global_batch": cell.global_batch,
        "batch_rule": sweep.batch_kind,
        "sequences_per_gpu": _plain(cell.sequences_per_gpu),
        "seq_len": cell.seq_len,
        "precision": cell.precision,
        "compile": cell.compile,
        "activation_checkpointing": cell.activation_checkpointing,
        "reshard_after_forward": cell.reshard_after_forward,
        "flop_convention": sweep.flop_convention,
    }


def _plain(value: Fraction) -> int | float:
    return value.numerator if value.denominator == 1 else float(value)


def _of_standing(standing: Standing) -> dict[str, Value]:
    low, high = standing.efficiency_ci or (None, None)
    return {
        "series": standing.series,
        "baseline": standing.baseline,
        "speedup": standing.speedup,
        "efficiency": standing.efficiency,
        "efficiency_ci_low": low,
        "efficiency_ci_high": high,
    }


def _of_reduced(sweep: SweepFile, reduced: Reduced) -> dict[str, Value]:
    low, high = reduced.step_time_ci or (None, None)
    flops = flops_per_token(reduced.cell.model, reduced.cell.seq_len, sweep.flop_convention)
    tflops = flops * reduced.tokens_per_s_per_gpu / 1e12
    return {
        "source": ";".join(reduced.sources),
        "gpu": ";".join(reduced.device_names),
        "step_time_s": reduced.step_time_s,
        "step_time_s_ci_low": low,
        "step_time_s_ci_high": high,
        "tokens_per_s": reduced.tokens_per_s,
        "tokens_per_s_per_gpu": reduced.tokens_per_s_per_gpu,
        "tflops_per_gpu": tflops,
        "mfu": None if reduced.peak_tflops is None else tflops / reduced.peak_tflops,
        "peak_tflops": reduced.peak_tflops,
        **{name: reduced.profile[name] for name in PROFILE_FIELDS},
        "peak_memory_gib": reduced.peak_memory_gib,
        "power_w_per_gpu": reduced.power_w_per_gpu,
        "tokens_per_j": reduced.tokens_per_j,
        "throttled": reduced.throttled,
        "oversubscribed": reduced.oversubscribed,
        "fingerprint": ";".join(reduced.fingerprints),
        "attempt": ";".join(reduced.folders),
    }


def _prediction_error(predicted: float | None, measured: float | None) -> float | None:
    return None if predicted is None or measured is None else predicted / measured - 1


def _last_attempt(run: RunData, cell_id: str) -> str | None:
    """The attempt that explains a hole: the last of the last repeat that was tried."""
    for repeat in range(run.sweep.repeats, 0, -1):
        last = run.history.of(cell_id, repeat).last
        if last is not None:
            return attempt_dir(last.key).as_posix()
    return None


def _rejected(sweep: SweepFile, item: Rejection, standing: Standing) -> Row:
    axes: dict[str, Any] = dict(item.axes)
    values: dict[str, Value] = {**axes, **_of_standing(standing)}
    values |= {name: None for name in DEGREES if axes.get(name) == AUTO}
    shapes = {cell.model.name: cell.model for cell in sweep.cells.values()}
    shape = shapes.get(axes.get("model", ""))
    gpus = axes["nodes"] * axes["gpus_per_node"]
    rule = BatchRule(kind=sweep.batch_kind, value=Fraction(str(axes[sweep.batch_kind])))
    batch = rule.global_batch(gpus=gpus, seq_len=axes["seq_len"])
    values |= {
        "status": REJECTED,
        "reason": f"{item.rule}: {item.reason}",
        "n_params": None if shape is None else shape.n_params,
        "gpus": gpus,
        "global_batch": batch.numerator if batch.denominator == 1 else None,
        "batch_rule": sweep.batch_kind,
        "sequences_per_gpu": _plain(batch / gpus),
        "flop_convention": sweep.flop_convention,
    }
    return Row(values=values, axes=item.axes)


def is_on_cpu(row: Row, sweep: SweepFile) -> bool:
    """Whether a row's ranks are processes on CPUs, no GPUs."""
    device = sweep.devices.get(str(row.axes.get("device")))
    return device is not None and device.type == "cpu"


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
    # A damaged time must not cost the table: what is no date of this calendar is left aside.
    times = [item.newest for item in reduced if 0 <= item.newest < _YEAR_10000]
    newest = datetime.datetime.fromtimestamp(max(times), tz=datetime.UTC) if times else None
    return Provenance(
        sources=tuple(sorted({source for item in reduced for source in item.sources})),
        devices=tuple(sorted({name for item in reduced for name in item.device_names})),
        fingerprints={name: fields for item in reduced for name, fields in item.fingerprints.items()},
        newest="" if newest is None else newest.strftime("%Y-%m-%d %H:%M UTC"),
    )
