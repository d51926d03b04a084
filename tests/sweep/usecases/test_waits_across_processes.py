"""What an end waits for is not waited for anew by each process: a cron job with ``watch=false`` settles it, too."""

from __future__ import annotations

import pytest

from sweep.core.attempts.attempt import Outcome
from sweep.core.attempts.ledger import Released
from sweep.core.settlement.case import MOST_SKEW_S
from sweep.ports import SubmissionUncertainError
from tests.fakes import tiny_cell
from tests.sweep.usecases.world import CLUSTER, World

GRACES = {"COMPLETED": CLUSTER.result_grace_s, "gone": CLUSTER.lost_after_s}


def _say(world: World, job: str, word: str) -> None:
    if word == "gone":
        del world.scheduler.states[job]
    else:
        world.scheduler.say(job, word, ended_at=None)


@pytest.mark.parametrize(
    ("word", "outcome"), [("COMPLETED", Outcome.TRAINER_ERROR), ("gone", Outcome.LOST)], ids=["ended", "gone"]
)
def test_processes_that_observe_once_settle_an_end_together_and_not_early_whatever_their_clocks(
    world: World, word: str, outcome: Outcome
) -> None:
    _, job = world.one_job()
    _say(world, job, word)
    world.begun()
    world.clock.sleep(GRACES[word] + MOST_SKEW_S - 1)
    world.begun()
    assert world.outcomes() == []
    world.clock.sleep(1)
    world.begun()
    assert world.outcomes() == [outcome]


def test_an_end_long_ago_by_the_schedulers_clock_is_settled_by_the_first_observation(world: World) -> None:
    _, job = world.one_job()
    world.scheduler.say(job, "COMPLETED")
    world.clock.sleep(CLUSTER.result_grace_s + MOST_SKEW_S)
    world.begun()
    assert world.outcomes() == [Outcome.TRAINER_ERROR]


@pytest.mark.parametrize("word", GRACES)
def test_a_job_that_reappears_restarts_the_wait(world: World, word: str) -> None:
    _, job = world.one_job()
    for now in (word, "RUNNING", word):
        _say(world, job, now)
        world.begun()
        world.clock.sleep(3600)
    assert world.outcomes() == []


def test_processes_that_observe_once_release_a_submission_that_never_arrived(world: World) -> None:
    world.scheduler.submit_error = SubmissionUncertainError("Socket timed out on send/recv operation")
    world.begun(tiny_cell())
    world.scheduler.submit_error = None
    world.begun()
    assert world.events(Released) == []
    world.clock.sleep(3600)
    world.begun()
    assert len(world.events(Released)) == 1
    assert len(world.scheduler.live_jobs()) == 1
