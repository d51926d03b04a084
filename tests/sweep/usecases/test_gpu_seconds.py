"""What an attempt has used, requeues included."""

from __future__ import annotations

import pytest

from sweep.core.attempts.attempt import JobRun
from sweep.core.attempts.ledger import Ended, Requeued
from tests.sweep.usecases.world import CLUSTER, World


def test_gpu_seconds_of_an_attempt_are_its_time_times_its_gpus(world: World) -> None:
    world.run_to_the_end()
    used = {event.key.cell_id: event.gpu_seconds for event in world.events(Ended)}
    assert {world.cells[name].gpus: seconds for name, seconds in used.items()} == {1: 100.0, 2: 200.0}


def test_an_attempt_that_ended_before_it_began_used_nothing(world: World) -> None:
    orchestrator, job = world.one_job()
    world.scheduler.say(job, "CANCELLED by 1000", started_at=None)
    world.look_twice(orchestrator)
    assert [event.gpu_seconds for event in world.events(Ended)] == [0.0]


def test_gpu_seconds_from_before_a_requeue_count_too(world: World) -> None:
    """Once with its end, and once killed: then it lasted until the last file that it wrote."""
    orchestrator, job = world.one_job()
    key = world.scheduler.keys[job]
    world.run_dir.earlier[key] = [
        world.attempt_file(job, restart=0, started_at=10.0, ended_at=25.0),
        world.attempt_file(job, restart=1, started_at=60.0, ended_at=None),
    ]
    world.run_dir.signs[key, 1] = 70.0
    world.finish(job)
    orchestrator.step()
    (ended,) = world.events(Ended)
    assert ended.gpu_seconds == 15 + 10 + 100


def test_gpu_seconds_from_before_a_requeue_come_from_accounting(world: World) -> None:
    orchestrator, job = world.one_job()
    key = world.scheduler.keys[job]
    world.run_dir.earlier[key] = [world.attempt_file(job, started_at=10.0)]
    world.scheduler.runs[job] = [JobRun(started_at=9.0, ended_at=29.0), JobRun(started_at=100.0, ended_at=None)]
    for state in ("RUNNING", "RUNNING"):
        world.scheduler.say(job, state, started_at=100.0)
        orchestrator.step()
    assert world.scheduler.asked_for_runs == 1, "asked again only where something has changed"
    assert world.ledger.events()[-1] == Requeued(time=world.clock.now(), key=key, gpu_seconds=20.0)
    world.finish(job)
    orchestrator.step()
    (ended,) = world.events(Ended)
    assert ended.gpu_seconds == 20 + 100


def test_a_job_that_begins_and_ends_within_one_second_was_not_requeued(world: World) -> None:
    """Slurm gives whole seconds, and still has it as COMPLETING."""
    orchestrator, job = world.one_job()
    world.launched(job, started_at=100.3, ended_at=100.4)
    world.scheduler.say(job, "COMPLETING", started_at=100.0)
    orchestrator.step()
    assert world.events(Requeued) == []


def test_a_job_that_is_cancelled_while_it_is_being_requeued_has_run_once(world: World) -> None:
    """Slurm says that it began anew, and then, of what was cancelled, the times of its only run."""
    orchestrator, job = world.one_job()
    world.scheduler.runs[job] = [JobRun(started_at=0.0, ended_at=720.0)]
    world.scheduler.say(job, "RUNNING", started_at=0.0)
    orchestrator.step()
    world.scheduler.say(job, "COMPLETING", started_at=720.0)
    orchestrator.step()
    world.scheduler.say(job, "CANCELLED", started_at=0.0, ended_at=720.0, nodes=("n1",))
    world.look_twice(orchestrator)
    assert [event.gpu_seconds for event in world.events(Ended)] == [720.0]


@pytest.mark.parametrize("is_seen", [True, False])
def test_a_job_that_is_requeued_and_ends_between_two_looks_is_charged_for_both_runs(
    world: World, is_seen: bool
) -> None:
    """Its first launcher was killed, and its second never began."""
    orchestrator, job = world.one_job()
    world.launched(job, started_at=12.0)
    if is_seen:
        world.scheduler.say(job, "RUNNING", started_at=10.0)
        orchestrator.step()
    world.scheduler.runs[job] = [JobRun(started_at=10.0, ended_at=40.0), JobRun(started_at=60.0, ended_at=62.0)]
    world.scheduler.say(job, "NODE_FAIL", started_at=60.0, ended_at=62.0, nodes=("n1",))
    world.look_twice(orchestrator)
    assert [event.gpu_seconds for event in world.events(Ended)] == [32.0]


def test_accounting_is_asked_once_about_requeued_jobs_that_end_together(world: World) -> None:
    orchestrator = world.begun()
    jobs = world.scheduler.live_jobs()
    for number, job in enumerate(jobs, 1):
        world.run_dir.earlier[world.scheduler.keys[job]] = [world.attempt_file(job, started_at=10.0)]
        last = JobRun(started_at=world.clock.now() - 100)
        world.scheduler.runs[job] = [JobRun(started_at=9.0, ended_at=9.0 + number), last]
        world.finish(job)
    orchestrator.step()
    assert world.scheduler.asked_for_runs == 1
    used = {event.key: event.gpu_seconds for event in world.events(Ended)}
    gpus = {key: world.cells[key.cell_id].gpus for key in used}
    assert [used[world.scheduler.keys[job]] for job in jobs] == [
        (number + 100) * gpus[world.scheduler.keys[job]] for number, job in enumerate(jobs, 1)
    ]


def test_a_requeued_job_that_is_forgotten_before_it_began_again_is_charged_once(world: World) -> None:
    orchestrator, job = world.one_job()
    world.launched(job, started_at=10.0, ended_at=40.0)
    for state in ("RUNNING", "PENDING"):
        world.scheduler.say(job, state, started_at=10.0 if state == "RUNNING" else None)
        orchestrator.step()
    del world.scheduler.states[job]
    world.look_twice(orchestrator, between_s=CLUSTER.lost_after_s)
    assert [event.gpu_seconds for event in world.events(Ended)] == [30.0]


def test_gpu_seconds_are_those_of_the_job_that_ran_and_not_of_its_duplicate(world: World) -> None:
    """The submission was in the queue twice, and the one that is watched came too late."""
    orchestrator, watched = world.one_job()
    (name,) = world.scheduler.by_name
    world.run_dir.claims[name] = "7"
    world.scheduler.say("7", "COMPLETED", started_at=100.0, ended_at=160.0)
    world.launched(watched, job_id="7", started_at=102.0, ended_at=159.0)
    world.finish(watched, "FAILED")
    world.scheduler.say(watched, "RUNNING", started_at=170.0)
    orchestrator.step()
    world.scheduler.say(watched, "FAILED", started_at=170.0, ended_at=172.0)
    world.look_on(orchestrator, times=2)
    assert [event.gpu_seconds for event in world.events(Ended)] == [60.0]
