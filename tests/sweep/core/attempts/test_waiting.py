from __future__ import annotations

import pytest

from sweep.core.attempts.attempt import HINTS_FOR_HELD, JobReport, held_hint, slurm_state


@pytest.mark.parametrize(
    ("state", "reason", "words"),
    [
        ("PENDING", "JobHeldUser", "scontrol release"),
        ("PENDING", "(JobHeldAdmin)", "ask them"),
        ("REQUEUE_HOLD", "None", "requeued and held"),
        ("SPECIAL_EXIT", "", "requeued and held"),
        ("PENDING", "launch failed requeued held", "its node"),
        ("PENDING", "launch_failed_requeued_held", "its node"),
        ("PENDING", "job_requeued_in_held_state", "requeued and held"),
    ],
)
def test_who_holds_a_job_and_what_can_be_done(state: str, reason: str, words: str) -> None:
    assert words in held_hint(JobReport(state=state, phase=slurm_state(state).phase, reason=reason))


@pytest.mark.parametrize(("state", "reason"), [("PENDING", "Priority"), ("PENDING", ""), ("RUNNING", "JobHeldUser")])
def test_a_job_that_is_not_held_needs_nobody(state: str, reason: str) -> None:
    assert held_hint(JobReport(state=state, phase=slurm_state(state).phase, reason=reason)) == ""


def test_every_word_is_looked_for_as_it_is_written() -> None:
    assert all(word == word.lower() for word in HINTS_FOR_HELD)
