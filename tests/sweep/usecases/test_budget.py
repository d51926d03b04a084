"""The budget of GPU-hours is never overdrawn, not by requeues either."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sweep.core.attempts.attempt import JobRun, Outcome
from sweep.core.attempts.ledger import Ended, Skipped
from sweep.core.decisions.admission import gpu_hours_committed
from sweep.core.decisions.plan import ActionKind
from sweep.usecases.orchestrate import Orchestrator, exit_code
from tests.fakes import tiny_cell
from tests.sweep.usecases.world import CALM, CLUSTER, World


def test_a_budget_is_never_overdrawn_and_the_cells_that_it_stops_are_holes_with_that_reason(world: World) -> None:
    names = world.set_cells(tiny_cell(nodes=1), tiny_cell(nodes=2), tiny_cell(nodes=4))
    # Half an hour each: 0.5, 1 and 2 GPU-hours at most; a fake job uses 100 s a GPU.
    world.policy = replace(CALM, budget_gpu_hours=2.0)
    orchestrator = world.begun()
    assert gpu_hours_committed(orchestrator.history) == pytest.approx(1.5)
    assert len(world.scheduler.keys) == 2
    assert orchestrator.snapshot().actions[2].kind is ActionKind.LATER, "what runs may turn out cheaper"
    world.finish_all()
    now = orchestrator.watch(lambda _: None)
    assert gpu_hours_committed(orchestrator.history) == pytest.approx(3 * 100 / 3600)
    assert now.actions[2].kind is ActionKind.OVER_BUDGET
    assert exit_code(now) == 1
    (skipped,) = world.events(Skipped)
    assert (skipped.kind, skipped.repeats) == ("over_budget", ((names[2], 1),))
    assert "2.00 GPU-hours" in skipped.reason
    world.policy = replace(CALM, budget_gpu_hours=3.0)
    assert world.run_to_the_end().snapshot().is_over
    assert len(world.scheduler.keys) == 3


def test_an_attempt_of_unknown_use_counts_with_its_whole_reservation(world: World) -> None:
    world.policy = replace(CALM, budget_gpu_hours=0.9)
    orchestrator, job = world.one_job()
    del world.scheduler.states[job]
    orchestrator.executor.settle()
    world.clock.sleep(CLUSTER.lost_after_s + 1000)
    now = orchestrator.step()
    assert now.actions[0].kind is ActionKind.OVER_BUDGET
    assert gpu_hours_committed(orchestrator.history) == pytest.approx(0.5)


def test_a_requeue_is_noticed_although_the_launcher_had_written_nothing(world: World) -> None:
    orchestrator, job = world.one_job()
    world.scheduler.runs[job] = [JobRun(started_at=0.0, ended_at=720.0)]
    for state in ("RUNNING", "PENDING"):
        world.scheduler.say(job, state, started_at=0.0 if state == "RUNNING" else None)
        orchestrator.step()
    assert gpu_hours_committed(orchestrator.history) == pytest.approx(0.2 + 0.5)
    world.finish(job)
    orchestrator.step()
    assert world.events(Ended)[0].gpu_seconds == 720 + 100


def _requeued(world: World, *, budget: float, ended_at: float | None = 720.0) -> Orchestrator:
    """A job of half an hour at most waits again, after it has run for 720 s."""
    world.policy = replace(CALM, budget_gpu_hours=budget)
    orchestrator, job = world.one_job()
    world.scheduler.say(job, "RUNNING", started_at=0.0)
    orchestrator.step()
    world.launched(job, started_at=0.0)
    world.run_dir.signs[world.scheduler.keys[job], 0] = 710.0
    world.scheduler.runs[job] = [JobRun(started_at=0.0, ended_at=ended_at)]
    world.scheduler.say(job, "PENDING", reason="BeginTime")
    orchestrator.step()
    return orchestrator


def test_a_requeued_job_counts_with_what_it_has_used_and_one_more_walltime(world: World) -> None:
    orchestrator = _requeued(world, budget=0.71)
    assert gpu_hours_committed(orchestrator.history) == pytest.approx(0.2 + 0.5)
    assert world.scheduler.cancelled == []
    heir = world.begun()
    assert gpu_hours_committed(heir.history) == pytest.approx(0.2 + 0.5)


def test_until_accounting_has_the_end_of_a_run_its_files_count(world: World) -> None:
    orchestrator = _requeued(world, budget=0.71, ended_at=None)
    assert gpu_hours_committed(orchestrator.history) == pytest.approx(710 / 3600 + 0.5)
    (job,) = world.scheduler.live_jobs()
    world.scheduler.runs[job] = [JobRun(started_at=0.0, ended_at=720.0)]
    orchestrator.step()
    assert gpu_hours_committed(orchestrator.history) == pytest.approx(0.2 + 0.5)


def test_a_requeued_job_that_no_longer_fits_into_the_budget_is_stopped_while_it_waits(world: World) -> None:
    orchestrator = _requeued(world, budget=0.69)
    assert len(world.scheduler.cancelled) == 1
    orchestrator.step()
    world.clock.sleep(CLUSTER.result_grace_s)
    now = orchestrator.watch(lambda _: None)
    (ended,) = world.events(Ended)
    assert (ended.outcome, ended.gpu_seconds) == (Outcome.PREEMPTED, 720.0)
    assert "budget of 0.69" in ended.reason
    assert now.actions[0].kind is ActionKind.OVER_BUDGET
    (skipped,) = world.events(Skipped)
    assert skipped.kind == "over_budget"
    assert skipped.reason.startswith("after PREEMPTED, budget: up to 0.50 GPU-hours")
