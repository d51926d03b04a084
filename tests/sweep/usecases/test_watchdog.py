"""Jobs that make no step are ended, and their cells tried again."""

from __future__ import annotations

from dataclasses import replace

from sweep.core.attempts.attempt import ErrorClass, Outcome
from sweep.core.attempts.ledger import Ended
from sweep.core.records.progress import Progress
from sweep.ports import SchedulerError
from sweep.usecases.orchestrate import Orchestrator
from tests.sweep.usecases.world import CALM, World, rank_error


def test_a_job_that_makes_no_step_is_ended_by_the_watchdog_and_retried(world: World) -> None:
    world.policy = replace(CALM, watchdog_s=100.0)
    orchestrator, job = world.one_job()
    world.scheduler.say(job, "RUNNING")
    for step in (1, 2, 3):
        world.run_dir.progresses[world.scheduler.keys[job]] = Progress(step=step, steps=9, time=0.0, tokens_per_s=None)
        orchestrator.step()
        world.clock.sleep(99)
    orchestrator.step()
    assert world.scheduler.cancelled == []
    world.clock.sleep(1)
    orchestrator.step()
    assert world.scheduler.cancelled == [job]
    world.look_twice(orchestrator)
    (ended,) = world.events(Ended)
    assert (ended.outcome, "no step for 100 s" in ended.reason) == (Outcome.COMM_FAILURE, True)
    assert ended.gpu_seconds == 100.0, "what Slurm counted, not the walltime"


def test_the_watchdog_does_not_count_while_a_job_is_suspended(world: World) -> None:
    world.policy = replace(CALM, watchdog_s=100.0)
    orchestrator, job = world.one_job()
    for state in ("RUNNING", "SUSPENDED", "SUSPENDED", "RUNNING", "COMPLETING", "RUNNING"):
        world.scheduler.say(job, state)
        orchestrator.step()
        world.clock.sleep(99)
        orchestrator.step()
    assert world.scheduler.cancelled == []
    world.clock.sleep(1)
    orchestrator.step()
    assert world.scheduler.cancelled == [job]


def _hung(world: World) -> tuple[Orchestrator, str]:
    """A job that has just been stopped by the watchdog, and does not hear it."""
    world.policy = replace(CALM, watchdog_s=100.0)
    orchestrator, job = world.one_job()
    world.scheduler.say(job, "RUNNING")
    orchestrator.step()
    world.clock.sleep(100)
    world.scheduler.cancel_error = SchedulerError("scancel failed: connect failure")
    orchestrator.step()
    return orchestrator, job


def test_a_stop_that_does_not_reach_the_scheduler_is_repeated_and_nothing_is_decided_before_the_job_is_gone(
    world: World,
) -> None:
    orchestrator, job = _hung(world)
    world.look_on(orchestrator, times=100)
    assert world.scheduler.live_jobs() == [job], "no second job beside it"
    assert world.events(Ended) == []
    assert sum("connect failure" in note for note in world.reporter.notes) == 1
    world.scheduler.cancel_error, world.scheduler.takes_its_time = None, True
    heir = world.begun()
    assert world.scheduler.cancelled == [job], "whoever takes the run over knows of it"
    heir.step()
    assert world.scheduler.cancelled == [job], "it was heard"
    world.clock.sleep(30)
    heir.step()
    assert world.scheduler.cancelled == [job, job], "and has not helped"
    assert world.events(Ended) == []
    world.end_all(heir, "CANCELLED by 0")
    assert world.outcomes() == [Outcome.COMM_FAILURE]


def test_a_result_that_comes_while_a_hang_is_being_ended_counts(world: World) -> None:
    orchestrator, job = _hung(world)
    world.finish(job, "CANCELLED by 0")
    orchestrator.step()
    assert world.outcomes() == [Outcome.SUCCEEDED]


def test_an_error_that_made_the_others_wait_is_not_hidden_by_the_watchdog(world: World) -> None:
    orchestrator, job = _hung(world)
    stopped = rank_error(ErrorClass.STOPPED, rank=1, time=5.0)
    world.fail(job, rank_error(ErrorClass.OOM_DEVICE, time=9.0), stopped, state="CANCELLED by 0")
    orchestrator.step()
    assert world.outcomes() == [Outcome.OOM_DEVICE]
