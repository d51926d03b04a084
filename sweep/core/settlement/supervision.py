"""Supervises jobs that wait or run, and ends those that would never begin, hang or cost too much.

A termination is requested in the ledger first, then the scheduler is told until the job is gone.
"""

from __future__ import annotations

from sweep.core.attempts.attempt import Outcome, Phase, Stop, StopKind, held_hint
from sweep.core.attempts.ledger import StopRequested
from sweep.core.encoding.message import hours_text
from sweep.core.settlement.case import Case
from sweep.core.settlement.effects import Cancel, Note
from sweep.core.settlement.facts import LaunchesOf, ResultOf, StepOf
from sweep.core.settlement.requeue_accounting import notice_requeue


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


_CLOCKS_DIFFER_S = 5.0
"""Slurm's times are whole seconds, and a job may begin between its report and the stop."""
_AGAIN_S = 30.0
"""A cancel that was heard and did not end the job is repeated after so long; one that was not heard, at once."""


def request_stop(case: Case, kind: StopKind, reason: str) -> None:
    """Have it written down that a job is to end; the scheduler is told after that, by :func:`insist`."""
    case.do(StopRequested(time=case.basis.now.unix, key=case.attempt.key, kind=kind, reason=reason))
    if kind is not StopKind.PAUSED:  # then there are many, for one reason
        case.do(Note(f"job {case.attempt.job_id} is ended: {reason}"))
    case.remember(is_stop_new=True, has_stop_lapsed=False)


def insist(case: Case) -> bool:
    """True if a job that waits or runs is to end; then the scheduler is told again, if it is time to."""
    job, stop = str(case.attempt.job_id), case.attempt.stop
    is_while_pending = stop is not None and stop.kind.is_while_pending
    if is_while_pending and case.report.phase is not Phase.PENDING:
        if not case.memory.has_stop_lapsed:
            case.do(Note(f"job {job} began before it could be taken back; it goes on"))
        case.remember(has_stop_lapsed=True, is_stop_new=False)
    if not case.attempt.is_cancel_requested and stop_in_force(case) is None:
        return False
    heard_at, now = case.memory.cancel_heard_at, case.basis.now.monotonic
    if job not in case.basis.facts.cancel_answers and (heard_at is None or now - heard_at >= _AGAIN_S):
        only_pending = not case.attempt.is_cancel_requested and is_while_pending
        case.do(Cancel(job, case.attempt.submission, only_pending))
    return True


def stop_in_force(case: Case) -> Stop | None:
    """This tool's own request for a job's end, unless the job was only to be taken back and began all the same."""
    stop, report = case.attempt.stop, case.report
    if stop is None or not stop.kind.is_while_pending:
        return stop
    if case.memory.has_stop_lapsed:
        return None
    if report.outcome is Outcome.CANCELLED:
        return stop  # it was heard, be it just as the job began
    began = report.started_at
    if began is None and not case.memory.is_stop_new:  # a process before this one may have seen it begin
        began = None if case.launched is None else case.launched.started_at
    # A run that began before the stop has ended since: the job was requeued, and waits again.
    return None if began is not None and began >= stop.time - _CLOCKS_DIFFER_S else stop
