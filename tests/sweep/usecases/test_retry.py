"""What a retry changes and waits for."""

from __future__ import annotations

from dataclasses import replace

from sweep.core.attempts.attempt import ErrorClass, Outcome
from sweep.core.attempts.ledger import Ended, Reserved
from sweep.core.attempts.outcome_rules import OUTCOME_RULES
from sweep.core.decisions.plan import ActionKind
from sweep.core.settings.policy import Policy
from sweep.core.settings.site import Site
from tests.fakes import tiny_cell
from tests.sweep.usecases.world import CLUSTER, World, rank_error


def test_a_job_that_ran_out_of_walltime_is_retried_with_twice_as_much(world: World) -> None:
    orchestrator, _ = world.one_job()
    world.end_all(orchestrator, "TIMEOUT")
    orchestrator.step()
    assert [event.gpu_hours for event in world.events(Reserved)] == [0.5, 1.0]
    assert [submission.walltime_min for submission in world.submitted()] == [30, 60]


def test_no_walltime_above_the_partitions_limit_is_asked_for(world: World) -> None:
    world.scheduler.limits = Site(max_walltime_min=30)
    orchestrator, _ = world.one_job()
    world.end_all(orchestrator, "TIMEOUT")
    now = orchestrator.step()
    assert now.actions[0].kind is ActionKind.GIVE_UP
    assert "allows no more than 30 min" in now.actions[0].reason


def test_a_preempted_job_does_not_use_up_the_retries_of_another_outcome(world: World) -> None:
    world.set_cells(tiny_cell())
    orchestrator = world.orchestrator()
    for _ in range(OUTCOME_RULES[Outcome.COMM_FAILURE].max_retries + 3):
        orchestrator.step()
        world.end_all(orchestrator, "PREEMPTED")
    orchestrator.step()
    world.end_all(orchestrator, "FAILED", rank_error(ErrorClass.COMMUNICATION))
    world.clock.sleep(600)
    assert not orchestrator.step().is_over


def test_a_disk_without_room_is_no_nodes_fault_and_the_attempt_is_made_again_later(world: World) -> None:
    orchestrator, _ = world.one_job()
    world.end_all(orchestrator, "FAILED", exit_code=28, nodes=("n1",))
    (ended,) = world.events(Ended)
    assert ended.outcome is Outcome.STORAGE_ERROR
    assert "No space left on device" in ended.reason
    assert world.blame.blames == []
    orchestrator.step()
    assert len(world.submitted()) == 1, "not at once"
    world.clock.sleep(OUTCOME_RULES[Outcome.STORAGE_ERROR].backoff_s)
    orchestrator.step()
    assert [submission.exclude for submission in world.submitted()] == [(), ()]


def test_a_retry_waits_for_its_back_off_which_doubles(world: World) -> None:
    rules = {**OUTCOME_RULES, Outcome.LOST: replace(OUTCOME_RULES[Outcome.LOST], max_retries=3, backoff_s=100.0)}
    world.policy = Policy(canary=False, outcomes=rules)
    world.set_cells(tiny_cell())
    orchestrator = world.orchestrator()
    for wait_s in (100, 200):
        orchestrator.step()
        (job,) = world.scheduler.live_jobs()
        del world.scheduler.states[job]
        orchestrator.executor.settle()
        world.clock.sleep(CLUSTER.lost_after_s)
        now = orchestrator.step()
        assert now.actions[0].kind is ActionKind.LATER
        world.clock.sleep(wait_s - 1)
        assert orchestrator.step().actions[0].kind is ActionKind.LATER
        world.clock.sleep(1)
    assert orchestrator.step().actions[0].kind is ActionKind.WAIT
