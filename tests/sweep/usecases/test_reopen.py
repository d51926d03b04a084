"""``retry=[...]``: what was over before it was asked for is tried again, though nobody recorded it; nothing else."""

from __future__ import annotations

import pytest

from sweep.core.attempts.attempt import ErrorClass, Outcome
from sweep.core.attempts.ledger import Reopened
from sweep.core.decisions.plan import ActionKind
from sweep.ports import SchedulerUnreachableError
from sweep.usecases.orchestrate import Orchestrator, exit_code
from tests.sweep.usecases.world import CLUSTER, World, rank_error


def _fail(world: World) -> list[str]:
    """Every job in the queue has failed, and a rank says why."""
    jobs = world.scheduler.live_jobs()
    for job in jobs:
        world.fail(job, rank_error(ErrorClass.EXCEPTION))
    return jobs


def _attempts(world: World) -> list[int]:
    return sorted(world.scheduler.keys[job].attempt for job in world.scheduler.live_jobs())


def _reopened(world: World) -> int:
    return sum(len(event.repeats) for event in world.events(Reopened))


def _asked(world: World, *outcomes: Outcome) -> Orchestrator:
    asked = world.orchestrator()
    asked.reopen(outcomes)
    return asked


def test_the_first_command_with_retry_covers_failures_that_nobody_watched(world: World) -> None:
    world.orchestrator().step()
    _fail(world)
    asked = _asked(world, Outcome.TRAINER_ERROR)
    asked.step()
    assert _attempts(world) == [2, 2]
    _fail(world)
    now = asked.step()
    assert now.is_over, "what fails while it is watched was not meant"
    assert _reopened(world) == 2


def test_an_attempt_that_had_ended_and_is_settled_later_is_retried_once(world: World) -> None:
    """It says nothing of its end: its files have some time to appear."""
    world.orchestrator().step()
    for job in world.scheduler.live_jobs():
        world.scheduler.say(job, "COMPLETED")
    asked = _asked(world, Outcome.TRAINER_ERROR)
    asked.step()
    assert world.scheduler.live_jobs() == []
    world.clock.sleep(CLUSTER.result_grace_s)
    asked.step()
    assert _attempts(world) == [2, 2]
    _fail(world)
    assert asked.step().is_over


def test_an_attempt_cancelled_just_before_is_retried_once_its_job_is_gone(world: World) -> None:
    orchestrator = world.begun()
    for job in world.scheduler.live_jobs():
        world.scheduler.say(job, "RUNNING")
    world.scheduler.takes_its_time = True
    orchestrator.executor.cancel(list(world.cells))
    asked = _asked(world, Outcome.CANCELLED)
    assert {action.kind for action in asked.step().actions} == {ActionKind.WAIT}
    for job in world.scheduler.live_jobs():
        world.scheduler.say(job, "CANCELLED by 0")
    asked.step()
    world.clock.sleep(CLUSTER.result_grace_s)
    asked.step()
    assert _attempts(world) == [2, 2]
    assert _reopened(world) == 2
    asked.executor.cancel(list(world.cells))
    for job in world.scheduler.live_jobs():
        world.scheduler.say(job, "CANCELLED by 0")
    asked.step()
    world.clock.sleep(CLUSTER.result_grace_s)
    assert asked.step().is_over, "what is cancelled afterwards stays so"


@pytest.mark.parametrize("state", ["PENDING", "RUNNING"])
def test_an_attempt_that_ends_after_the_retry_command_keeps_its_outcome(world: World, state: str) -> None:
    world.orchestrator().step()
    for job in world.scheduler.live_jobs():
        world.scheduler.say(job, state)
    asked = _asked(world, Outcome.TRAINER_ERROR)
    asked.step()
    _fail(world)
    now = asked.step()
    assert exit_code(now) == 1
    assert _reopened(world) == 0


def test_a_scheduler_that_is_away_at_first_reports_later_which_jobs_had_ended(world: World) -> None:
    world.orchestrator().step()
    _fail(world)
    world.scheduler.poll_error = SchedulerUnreachableError("away")
    asked = _asked(world, Outcome.TRAINER_ERROR)
    asked.step()
    assert _reopened(world) == 0
    world.scheduler.poll_error = None
    asked.step()
    assert _attempts(world) == [2, 2]
