"""Supervises jobs that wait or run: those that would never begin, hang or cost too much are to end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sweep.core.attempts.attempt import Phase, StopKind
from sweep.core.attempts.waiting import held_hint
from sweep.core.encoding.message import hours_text
from sweep.core.settlement.effects import Note
from sweep.core.settlement.facts import LaunchesOf, ResultOf, StepOf
from sweep.core.settlement.requeue_accounting import notice_requeue
from sweep.core.settlement.terminations import insist, request_stop

if TYPE_CHECKING:
    from sweep.core.settlement.case import Case


def supervise(case: Case, *, is_over_budget: bool) -> None:
    """Look after a job that waits or runs; the scheduler is told again of one whose end was requested before.

    Args:
        case: The attempt.
        is_over_budget: True if one more run of a job that was requeued may overdraw the budget.
    """
    key = case.attempt.key
    if case.memory.run is None and case.report.phase is Phase.RUNNING:
        case.basis.facts.require(LaunchesOf(key), ResultOf(key))
    case.is_back()
    notice_requeue(case)
    if is_over_budget:
        attempt = case.attempt
        reason = (
            f"requeued after {hours_text(attempt.earlier_gpu_seconds / 3600)} GPU-hours; one more run of up to "
            f"{hours_text(attempt.gpu_hours)} may not fit into the budget of "
            f"{hours_text(case.basis.policy.policy.budget_gpu_hours)}"
        )
        request_stop(case, StopKind.OVER_BUDGET, reason)
    elif not insist(case):
        (_supervise_waiting if case.report.phase is Phase.PENDING else _supervise_running)(case)


def _supervise_waiting(case: Case) -> None:
    """End a job that waits for what never comes, or longer than the user lets it, or that a pause takes back."""
    report, policy, pause = case.report, case.basis.policy.policy, case.basis.facts.pause
    if pause and case.attempt.stop is None and case.never_began:
        request_stop(case, StopKind.PAUSED, pause)
        return
    hint = held_hint(report)
    if hint and not case.memory.is_held:
        case.do(Note(f"job {case.attempt.job_id} waits: {report.reason}; {hint}"))
    if bool(hint) != case.memory.is_held:
        case.remember(is_held=bool(hint))
    if not report.is_hopeless:
        case.forget("hopeless_since")
    elif case.lasting("hopeless_since") >= policy.hopeless_after_s:
        request_stop(case, StopKind.HOPELESS, f"it would have waited for ever: {report.reason}")
        return
    if policy.pending_limit_h is not None and _waiting_h(case) >= policy.pending_limit_h:
        reason = f"it waited for more than policy.pending_limit_h={policy.pending_limit_h:g}: {report.reason}"
        request_stop(case, StopKind.HOPELESS, reason)


def _waiting_h(case: Case) -> float:
    """Hours since it was submitted, or since its run before a requeue ended (or, where that is unknown, began)."""
    launched = case.launched
    since = case.attempt.reserved_at if launched is None else launched.ended_at or launched.started_at
    return (case.basis.now.unix - since) / 3600


def _supervise_running(case: Case) -> None:
    """A job whose result is there may take a moment to end; one that goes on is ended, and its result counts."""
    if not case.has_result:
        case.forget("measured_since")
        _supervise_steps(case)
    elif case.lasting("measured_since") >= case.basis.policy.hang_grace_s:
        request_stop(case, StopKind.OUTLIVED, "it goes on although its result is there")


def _supervise_steps(case: Case) -> None:
    """End a job that has made no step for too long, by the watchdog of the policy."""
    limit_s = case.basis.policy.policy.watchdog_s
    if not limit_s or not case.report.is_at_work:
        return
    step = case.ask(StepOf(case.attempt.key))
    if case.memory.step != step:
        case.remember(step=step, stalled_since=None)
    stalled_s = case.lasting("stalled_since")
    if stalled_s >= limit_s:
        request_stop(case, StopKind.HANG, f"no step for {stalled_s:.0f} s (a hang; ended by the watchdog)")
