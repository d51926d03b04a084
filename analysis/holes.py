"""Why a point has no measurement, or not all of them: one status and one reason from the history of its cell."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sweep.core.attempts.attempt import AttemptKey, Outcome
from sweep.core.attempts.outcome_rules import OUTCOME_RULES
from sweep.core.attempts.verdict import first_cause
from sweep.core.decisions.plan import TO_SUBMIT, Action, ActionKind, decide

if TYPE_CHECKING:
    from collections.abc import Collection

    from analysis.load import RunData
    from sweep.core.attempts.history import AttemptState

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
