"""Terminations: a job's end is requested in the ledger first, then the scheduler is told until the job is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sweep.core.attempts.attempt import Outcome, Phase, StopKind
from sweep.core.attempts.ledger import StopRequested
from sweep.core.settlement.effects import Cancel, Note

if TYPE_CHECKING:
    from sweep.core.attempts.attempt import Stop
    from sweep.core.settlement.case import Case

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
