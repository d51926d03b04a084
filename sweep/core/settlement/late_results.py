"""Judges attempts anew by what appears later: a result (a file system that lags), a node where set-up lines pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sweep.core.attempts.attempt import Outcome
from sweep.core.attempts.verdict import Verdict
from sweep.core.settlement.case import Draft, Now, SettlementPolicy
from sweep.core.settlement.facts import ResultOf
from sweep.core.settlement.record_outcomes import blamed_later, ended

if TYPE_CHECKING:
    from sweep.core.attempts.history import RepeatHistory
    from sweep.core.settlement.effects import Effect
    from sweep.core.settlement.facts import Facts
    from sweep.core.settlement.memory import Memory


def take_late_results(
    facts: Facts, memory: Memory, now: Now, policy: SettlementPolicy
) -> tuple[Memory, tuple[Effect, ...]]:
    """Let a valid result of an attempt count although the attempt was judged before it could be seen.

    And a set-up line that failed counts against its node once the same lines have passed on another. A repeat that was
    measured, or is being tried again, needs none of this. So it is to be done before a retry goes out, and before a run
    ends.
    """
    draft = Draft.of(memory)
    for repeat in facts.history.repeats.values():
        if repeat.succeeded is None and not any(attempt.in_flight for attempt in repeat.attempts):
            draft.take(lambda repeat=repeat: _take(draft, facts, repeat, now))  # type: ignore[misc]  # binds the loop's
    return draft.done()


def _take(draft: Draft, facts: Facts, repeat: RepeatHistory, now: Now) -> None:
    for attempt in repeat.attempts:
        if attempt.outcome is not None and facts.answer(ResultOf(attempt.key))[0]:
            reason = f"its result appeared after it had been judged {attempt.outcome}"
            evidence = {**attempt.evidence, "result": True, "judged_before": str(attempt.outcome)}
            verdict = Verdict(outcome=Outcome.SUCCEEDED, reason=reason)
            draft.effects.append(ended(attempt, verdict, now, attempt.gpu_seconds, evidence))
            return
    again = None if repeat.last is None else blamed_later(facts, repeat.last, now)
    if again is not None:
        draft.effects.append(again)
