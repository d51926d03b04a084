"""A sweep pauses after some trainer errors that are alike."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sweep.core.attempts.attempt import ErrorClass, Outcome, StopKind
from sweep.core.attempts.ledger import Skipped, StopRequested
from sweep.core.decisions.admission import gpu_hours_committed
from sweep.core.decisions.plan import ActionKind
from sweep.ports import SchedulerError
from sweep.usecases.orchestrate import Orchestrator
from tests.sweep.usecases.world import CALM, CLUSTER, World, kinds, rank_error, several


def test_after_some_identical_trainer_errors_the_sweep_pauses_and_says_why(world: World) -> None:
    names = world.set_cells(*several(6))
    world.policy = replace(CALM, pause_after=3, max_concurrent_jobs=1)
    orchestrator = world.orchestrator()
    for step in range(3):
        orchestrator.step()
        world.end_all(
            orchestrator, "FAILED", rank_error(ErrorClass.EXCEPTION, "KeyError: 'rope'", rank=step, step=step)
        )
    now = orchestrator.watch(lambda _: None)
    assert kinds(now) == [ActionKind.GIVE_UP] * 3 + [ActionKind.PAUSED] * 3
    assert "KeyError: 'rope'" in now.actions[3].reason
    assert len(world.scheduler.keys) == 3
    asked = world.orchestrator()
    asked.reopen([Outcome.TRAINER_ERROR])
    assert not asked.step().is_over, "it was mended: everything goes on"
    assert len(names) == 6


def test_different_trainer_errors_do_not_pause_the_sweep(world: World) -> None:
    world.set_cells(*several(4))
    world.policy = replace(CALM, pause_after=2, max_concurrent_jobs=1)
    orchestrator = world.orchestrator()
    for message in ("KeyError: 'a'", "KeyError: 'b'", "KeyError: 'c'"):
        orchestrator.step()
        world.end_all(orchestrator, "FAILED", rank_error(ErrorClass.EXCEPTION, message))
    assert not orchestrator.step().is_over


def _three_fail_of_six(world: World, **policy: object) -> Orchestrator:
    """All six are in the queue; two have failed alike, a third runs, and three wait."""
    world.policy = replace(CALM, pause_after=3, **policy)  # type: ignore[arg-type]  # keywords
    orchestrator = world.begun(*several(6))
    for number, job in enumerate(world.scheduler.live_jobs()[:3]):
        world.scheduler.say(job, "RUNNING")
        orchestrator.step()
        world.fail(job, rank_error(ErrorClass.EXCEPTION, f"no file /runs/{number}/x of {number} steps"))
        if number < 2:
            orchestrator.step()
    return orchestrator


def test_a_pause_withdraws_jobs_that_have_not_begun_and_they_do_not_count(world: World) -> None:
    orchestrator = _three_fail_of_six(world, budget_gpu_hours=3.2)
    waiting = world.scheduler.live_jobs()
    orchestrator.step()
    assert world.scheduler.cancelled == waiting
    now = orchestrator.watch(lambda _: None)
    assert kinds(now) == [ActionKind.GIVE_UP] * 3 + [ActionKind.PAUSED] * 3
    assert gpu_hours_committed(orchestrator.history) == pytest.approx(3 * 100 / 3600)
    (skipped,) = world.events(Skipped)
    assert (skipped.kind, len(skipped.repeats)) == ("paused", 3)
    asked = world.orchestrator()
    asked.reopen([Outcome.TRAINER_ERROR])
    asked.step()
    assert sorted(world.scheduler.keys[job].attempt for job in world.scheduler.live_jobs()) == [2] * 6


def test_a_job_that_began_before_the_pause_reached_it_goes_on(world: World) -> None:
    orchestrator = _three_fail_of_six(world)
    first, second, third = world.scheduler.live_jobs()
    world.scheduler.cancel_error = SchedulerError("away")
    orchestrator.step()
    world.scheduler.cancel_error = None
    world.scheduler.say(first, "RUNNING")
    orchestrator.step()
    assert world.scheduler.cancelled == [second, third]
    world.finish(first)
    orchestrator.watch(lambda _: None)
    assert world.outcomes() == [Outcome.TRAINER_ERROR] * 3 + [Outcome.SUCCEEDED]


def test_a_cell_that_the_user_cancels_while_it_is_being_withdrawn_stays_cancelled(world: World) -> None:
    orchestrator = _three_fail_of_six(world)
    first, *_ = world.scheduler.live_jobs()
    world.scheduler.takes_its_time = True
    orchestrator.step()
    orchestrator.executor.cancel([world.scheduler.keys[first].cell_id])
    world.scheduler.takes_its_time = False
    world.clock.sleep(30)
    orchestrator.step()
    world.clock.sleep(CLUSTER.result_grace_s)
    now = orchestrator.watch(lambda _: None)
    assert kinds(now)[3:] == [ActionKind.HOLD, ActionKind.PAUSED, ActionKind.PAUSED]


def _taken_back(world: World) -> str:
    """A job that a pause has taken back, by a process that is gone."""
    _, job = world.one_job()
    stop = StopRequested(time=world.clock.now(), key=world.scheduler.keys[job], kind=StopKind.PAUSED, reason="paused")
    world.ledger.append(stop)
    return job


@pytest.mark.parametrize("knows_the_start", [True, False])
def test_a_stop_that_has_lapsed_is_no_reason_for_the_next_process_either(
    world: World, *, knows_the_start: bool
) -> None:
    """A pause took back what had just begun; it failed by itself while nobody watched."""
    job = _taken_back(world)
    started = world.clock.now() + 2
    world.launched(job, started_at=started, ended_at=started + 9, exit_code=3)
    world.scheduler.say(job, "FAILED", exit_code=3, nodes=("n1",), started_at=started if knows_the_start else None)
    world.look_twice(world.orchestrator())
    assert world.outcomes() == [Outcome.TRAINER_ERROR]


def test_a_job_that_began_while_it_was_being_withdrawn_is_retried(world: World) -> None:
    job = _taken_back(world)
    world.scheduler.say(job, "CANCELLED by 0", nodes=("n1",), started_at=world.clock.now() + 1)
    world.look_twice(world.orchestrator())
    assert world.outcomes() == [Outcome.PREEMPTED]
