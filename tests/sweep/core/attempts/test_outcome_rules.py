from __future__ import annotations

from sweep.core.attempts.attempt import Outcome
from sweep.core.attempts.outcome_rules import OUTCOME_RULES, Disposition


def test_every_outcome_has_a_rule() -> None:
    assert set(OUTCOME_RULES) == set(Outcome)


def test_out_of_memory_is_a_finding_and_never_tried_again() -> None:
    for outcome in (Outcome.OOM_DEVICE, Outcome.OOM_HOST):
        assert OUTCOME_RULES[outcome].max_retries == 0
        assert OUTCOME_RULES[outcome].disposition is Disposition.FINDING


def test_what_would_fail_again_is_not_tried_again_and_what_a_retry_can_cure_is() -> None:
    retried = {outcome for outcome, rule in OUTCOME_RULES.items() if rule.max_retries}
    never = {Outcome.SUCCEEDED, Outcome.TRAINER_ERROR, Outcome.REJECTED_BY_SCHEDULER, Outcome.CANCELLED}
    assert not retried & (never | {Outcome.OOM_DEVICE, Outcome.OOM_HOST})
    assert retried >= {Outcome.NODE_FAIL, Outcome.PREEMPTED, Outcome.COMM_FAILURE, Outcome.DEVICE_ERROR, Outcome.LOST}


def test_outcomes_are_shown_by_different_words() -> None:
    assert len({rule.shown_as for rule in OUTCOME_RULES.values()}) == len(Outcome)
