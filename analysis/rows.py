"""The rows of a table: one for each point and each rejection of a sweep, with status and reason of what is missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from analysis.bootstrap import Interval
from analysis.load import RunData
from analysis.reduce import PROFILE_FIELDS, Reduced
from analysis.scaling import Comparison, Entry
from sweep.core.attempts.attempt import AttemptKey, Outcome
from sweep.core.attempts.outcome_rules import OUTCOME_RULES
from sweep.core.attempts.verdict import first_cause
from sweep.core.cells.axes import ALL_AXES
from sweep.core.cells.axis import AUTO, AxisValue
from sweep.core.cells.batch import BatchRule
from sweep.core.cells.cell import Cell
from sweep.core.cells.model_shape import flops_per_token
from sweep.core.cells.parallelism import DEGREES
from sweep.core.decisions.plan import TO_SUBMIT, Action, ActionKind, decide
from sweep.core.grids.grid import Rejection
from sweep.core.records.layout import attempt_dir
from sweep.core.records.sweep_file import SweepFile

if TYPE_CHECKING:
    from collections.abc import Collection

    from analysis.load import RunData
    from sweep.core.attempts.history import AttemptState

# Columns with the values of a cell's figures under the same names.
_TAKEN = (
    *("step_time_s", "tokens_per_s", "tokens_per_s_per_gpu", "tokens_per_j", "power_w_per_gpu"),
    *("peak_memory_gib", "peak_tflops", "throttled", "oversubscribed"),
)
Value = str | int | float | bool | None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Row:
    """One grid point: a cell's point or a rejection."""

    values: Mapping[str, Value]
    """By column; an unknown value is None or absent."""
    axes: Mapping[str, AxisValue]
    rate_ci: Interval | None = None
    """Interval of ``tokens_per_s``, for figures."""
    is_chosen: bool = True
    """True if its layout is the one compared at its number of GPUs (always, without an envelope)."""
    is_baseline: bool = False
    """True if the other rows of its series are compared with it."""

    def __getitem__(self, column: str) -> Value:
        """The value of a column; None where it is blank."""
        return self.values.get(column)

    def number(self, column: str) -> float | None:
        """The value of a column of numbers; None where it is blank."""
        value = self.values.get(column)
        return float(value) if isinstance(value, int | float) else None

    @property
    def is_measured(self) -> bool:
        """True if the row is no hole."""
        return self.values["status"] == MEASURED


def row_of(run: RunData, entry: Entry, comparison: Comparison, hours: Mapping[str, float | None]) -> Row:
    """The row of a point, measured or not."""
    assert entry.cell_id is not None, "a point has a cell"
    cell_id, reduced = entry.cell_id, entry.reduced
    cell = run.sweep.cells[cell_id]
    measured = [item.result.key.repeat for item in run.measurements[cell_id]]
    status, why = explain(run, cell_id, measured)
    reasons = [why, *run.problems[cell_id], comparison.remark]
    values: dict[str, Value] = {**entry.axes, **_of_cell(run.sweep, cell), **_of_comparison(comparison)}
    values |= {
        "cell": cell_id,
        "status": status,
        "reason": "; ".join(text for text in reasons if text),
        "repeats": len(measured),
        "gpu_hours": hours[cell_id],
        "attempt": _last_attempt(run, cell_id),
        "predicted_step_time_s": run.sweep.predictions.get(cell_id),
    }
    if reduced is not None:
        values |= _of_reduced(run.sweep, reduced)
        predicted, found = run.sweep.predictions.get(cell_id), reduced.step_time_s
        values["prediction_error"] = None if predicted is None or found is None else predicted / found - 1
    return Row(
        values=values,
        axes=entry.axes,
        rate_ci=None if reduced is None else reduced.rate_ci,
        is_chosen=comparison.is_chosen,
        is_baseline=comparison.baseline == cell_id,
    )


def _of_cell(sweep: SweepFile, cell: Cell) -> dict[str, Value]:
    owners = {type(part): part for part in (cell, cell.parallelism, cell.trainer)}
    axes = [axis for axis in ALL_AXES.values() if axis.column is not None]
    return {
        **{axis.name: getattr(owners[axis.owner], axis.field) for axis in axes},
        "model": cell.model.name,
        "n_params": cell.model.n_params,
        "gpus": cell.gpus,
        "grad_accum": _number(cell.grad_accum),
        "batch_rule": sweep.batch_kind,
        "sequences_per_gpu": _number(cell.sequences_per_gpu),
        "flop_convention": sweep.flop_convention,
    }


def _number(value: Fraction) -> int | float:
    return value.numerator if value.denominator == 1 else float(value)


def _of_comparison(comparison: Comparison) -> dict[str, Value]:
    low, high = comparison.efficiency_ci or (None, None)
    return {
        "series": comparison.series,
        "baseline": comparison.baseline,
        "speedup": comparison.speedup,
        "efficiency": comparison.efficiency,
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
        "step_time_s_ci_low": low,
        "step_time_s_ci_high": high,
        **{name: getattr(reduced, name) for name in _TAKEN},
        "tflops_per_gpu": tflops,
        "mfu": None if reduced.peak_tflops is None else tflops / reduced.peak_tflops,
        **{name: reduced.profile[name] for name in PROFILE_FIELDS},
        "fingerprint": ";".join(reduced.fingerprints),
        "attempt": ";".join(reduced.folders),
    }


def _last_attempt(run: RunData, cell_id: str) -> str | None:
    """The attempt that explains a hole: the last of the last repeat that was tried."""
    for repeat in range(run.sweep.repeats, 0, -1):
        last = run.history.of(cell_id, repeat).last
        if last is not None:
            return attempt_dir(last.key).as_posix()
    return None


def row_of_rejection(sweep: SweepFile, item: Rejection, comparison: Comparison) -> Row:
    """The row of a combination that cannot be a cell."""
    axes: dict[str, Any] = dict(item.axes)
    values: dict[str, Value] = {**axes, **_of_comparison(comparison)}
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
        "sequences_per_gpu": _number(batch / gpus),
        "flop_convention": sweep.flop_convention,
    }
    return Row(values=values, axes=item.axes)


def is_on_cpu(row: Row, sweep: SweepFile) -> bool:
    """True if the ranks of a row are processes on CPUs, no GPUs."""
    device = sweep.devices.get(str(row.axes.get("device")))
    return device is not None and device.type == "cpu"


MEASURED = OUTCOME_RULES[Outcome.SUCCEEDED].shown_as
REJECTED = "rejected"
RUNNING = "running"
PENDING = "pending"
NOT_RUN = "not_run"


def explain(run: RunData, cell_id: str, measured: Collection[int]) -> tuple[str, str]:
    """Status and reason of a cell with these measured repeats; both repeats and reasons may be several.

    The repeats that lack a measurement are asked in turn: one that is running speaks for the cell, then one that
    waits, then the first that ended, then those that were never run.
    """
    asked = run.sweep.repeats
    actions = [
        action
        for action in decide([cell_id], repeats=asked, history=run.history, rules=run.sweep.policy.outcomes)
        if action.repeat not in measured
    ]
    explained = [_explain_repeat(run, action) for action in actions]
    reasons = dict.fromkeys(reason for _, reason in explained)
    if len(reasons) > 1:
        reasons = dict.fromkeys(
            f"repeat {action.repeat}: {reason}" for action, (_, reason) in zip(actions, explained, strict=True)
        )
    reason = "; ".join(reasons)
    if measured:
        return MEASURED, f"{len(measured)} of {asked} repeats measured; {reason}" if reason else ""
    return min((status for status, _ in explained), key=_rank), reason


def _rank(status: str) -> int:
    return {RUNNING: 0, PENDING: 1, NOT_RUN: 3}.get(status, 2)


def _explain_repeat(run: RunData, action: Action) -> tuple[str, str]:
    if action.kind is ActionKind.WAIT:
        return _in_flight(run, action)
    if action.kind is ActionKind.DONE:
        # The ledger says that it succeeded, but no result of it counts: what was measured is lost.
        return OUTCOME_RULES[Outcome.LOST].shown_as, "the ledger says SUCCEEDED, but there is no valid result"
    skipped = run.history.of(action.cell_id, action.repeat).skipped
    if skipped is not None and action.kind in TO_SUBMIT:
        return skipped
    if action.outcome is None:
        return NOT_RUN, action.reason
    return OUTCOME_RULES[action.outcome].shown_as, action.reason


def _in_flight(run: RunData, action: Action) -> tuple[str, str]:
    files = run.files.get(AttemptKey(cell_id=action.cell_id, repeat=action.repeat, attempt=action.attempt))
    if files is None or not (files.launches or files.progress or files.errors):
        return PENDING, action.reason
    reasons = [action.reason]
    if files.progress is not None:
        reasons.append(f"at step {files.progress.step} of {files.progress.steps}")
    cause = first_cause(files.errors)
    if cause is not None:
        reasons.append(f"an error was reported: {cause.message}")
    return RUNNING, ", ".join(reasons)


def gpu_hours(run: RunData) -> dict[str, float | None]:
    """GPU-hours of all attempts at each cell, failed ones too; None where that of one of them is not known."""
    spent: dict[str, list[float | None]] = {cell_id: [] for cell_id in run.sweep.cells}
    for (cell_id, _), repeat in run.history.repeats.items():
        if cell_id in spent:
            spent[cell_id] += [_gpu_seconds(run, state) for state in repeat.attempts if not state.released]
    return {
        cell_id: None if None in seconds else sum(value for value in seconds if value is not None) / 3600
        for cell_id, seconds in spent.items()
    }


def _gpu_seconds(run: RunData, state: AttemptState) -> float | None:
    if isinstance(state.gpu_seconds, int | float):
        return float(state.gpu_seconds)
    files = run.files.get(state.key)
    if files is None or files.gpu_time_s is None:
        return None
    return files.gpu_time_s * run.sweep.cells[state.key.cell_id].gpus
