"""Policies that contradict themselves cannot be made."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sweep.core.attempts.attempt import Outcome
from sweep.core.attempts.outcome_rules import OUTCOME_RULES
from sweep.core.settings.policy import Policy


@pytest.mark.parametrize("outcome", [Outcome.OOM_DEVICE, Outcome.CANCELLED, Outcome.SUCCEEDED])
def test_a_policy_that_would_retry_what_must_not_be_cannot_be_made(outcome: Outcome) -> None:
    rules = {**OUTCOME_RULES, outcome: replace(OUTCOME_RULES[outcome], max_retries=1)}
    with pytest.raises(ValueError, match="never retried by itself"):
        Policy(outcomes=rules)


def test_a_policy_that_keeps_away_from_nodes_that_nothing_blames_cannot_be_made() -> None:
    rules = {**OUTCOME_RULES, Outcome.LOST: replace(OUTCOME_RULES[Outcome.LOST], avoid_nodes=True)}
    with pytest.raises(ValueError, match="avoid_nodes for LOST: only DEVICE_ERROR and NODE_FAIL say"):
        Policy(outcomes=rules)


def test_a_policy_that_leaves_an_outcome_open_cannot_be_made() -> None:
    rules = {outcome: rule for outcome, rule in OUTCOME_RULES.items() if outcome is not Outcome.LOST}
    with pytest.raises(ValueError, match="says nothing of LOST"):
        Policy(outcomes=rules)
