"""Results that appear after their attempt was judged without one: a file system that lags by minutes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sweep.core.attempts.attempt import Outcome
from sweep.core.attempts.ledger import Ended
from sweep.core.attempts.verdict import Verdict

if TYPE_CHECKING:
    from sweep.core.attempts.history import AttemptState, RepeatHistory
    from sweep.usecases.session import Session


def take_late_results(session: Session) -> bool:
    """Let a valid result of an attempt count although the attempt was judged before it could be seen.

    A repeat that was measured, or is being tried again, needs none. So this is to be called before a retry goes out,
    and before a run ends.

    Returns:
        Whether there was any.
    """
    is_any = False
    for repeat in session.history.repeats.values():
        if not _may_have_one(repeat):
            continue
        for attempt in repeat.attempts:
            if attempt.outcome is not None and session.has_result(attempt.key):
                _count(session, attempt)
                is_any = True
                break
    return is_any


def _may_have_one(repeat: RepeatHistory) -> bool:
    return repeat.succeeded is None and not any(attempt.in_flight for attempt in repeat.attempts)


def _count(session: Session, attempt: AttemptState) -> None:
    verdict = Verdict(
        outcome=Outcome.SUCCEEDED, reason=f"its result appeared after it had been judged {attempt.outcome}"
    )
    session.record(
        Ended(
            time=session.clock.now(),
            key=attempt.key,
            outcome=verdict.outcome,
            reason=verdict.reason,
            gpu_seconds=attempt.gpu_seconds,
            evidence={**attempt.evidence, "result": True, "judged_before": str(attempt.outcome)},
        )
    )
    session.reporter.ended(attempt.key, verdict)
