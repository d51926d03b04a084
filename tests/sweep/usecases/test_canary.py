"""The smallest cell goes first, and the rest follows its success."""

from __future__ import annotations

import pytest

from sweep.core.attempts.attempt import ErrorClass
from sweep.core.attempts.ledger import Skipped
from sweep.core.decisions.plan import ActionKind
from sweep.core.settings.policy import Policy
from sweep.usecases.orchestrate import exit_code
from tests.fakes import tiny_cell
from tests.sweep.usecases.world import World, kinds, rank_error


def test_the_smallest_cell_of_a_model_goes_first_and_the_rest_follows_its_success(world: World) -> None:
    world.policy = Policy()
    orchestrator = world.begun(tiny_cell(nodes=4), tiny_cell(nodes=1), tiny_cell(nodes=2))
    assert [submission.nodes for submission in world.submitted()] == [1]
    world.finish(world.scheduler.live_jobs()[0])
    orchestrator.step()
    assert sorted(submission.nodes for submission in world.submitted()) == [1, 2, 4]


def test_a_canary_that_fails_by_its_own_fault_holds_the_rest_back(world: World) -> None:
    world.policy = Policy()
    orchestrator = world.begun(tiny_cell(nodes=1), tiny_cell(nodes=2))
    world.end_all(orchestrator, "FAILED", rank_error(ErrorClass.EXCEPTION, "ImportError: no module"))
    now = orchestrator.watch(lambda _: None)
    assert kinds(now) == [ActionKind.GIVE_UP, ActionKind.PAUSED]
    assert "ImportError" in now.actions[1].reason
    assert exit_code(now) == 1
    assert len(world.scheduler.by_name) == 1


@pytest.mark.parametrize(
    ("state", "errors", "retries", "words"),
    [
        ("FAILED", [ErrorClass.DEVICE], 2, "retry=[DEVICE_ERROR]"),
        ("FAILED", [ErrorClass.COMMUNICATION], 2, "retry=[COMM_FAILURE]"),
        ("TIMEOUT", [], 1, "retry=[TIMEOUT]"),
        ("FAILED", [], 2, "retry=[LOST]"),
        ("OUT_OF_MEMORY", [], 0, "cluster.slurm.mem=0"),
        ("CANCELLED", [], 0, "retry=[CANCELLED]"),
    ],
)
def test_a_canary_that_was_given_up_for_any_reason_holds_the_rest_back(
    world: World, state: str, errors: list[ErrorClass], retries: int, words: str
) -> None:
    world.policy = Policy()
    world.set_cells(tiny_cell(nodes=1), tiny_cell(nodes=2))
    orchestrator = world.orchestrator()
    for _ in range(retries + 1):
        orchestrator.step()
        world.end_all(orchestrator, state, *(rank_error(error, "No CUDA GPUs are available") for error in errors))
        world.clock.sleep(600)
    now = orchestrator.watch(lambda _: None)
    assert now.actions[1].kind is ActionKind.PAUSED
    assert words in now.actions[1].reason
    assert "policy.canary=false" in now.actions[1].reason
    assert exit_code(now) == 1
    assert {submission.nodes for submission in world.submitted()} == {1}


def test_a_canary_that_runs_out_of_device_memory_is_a_finding_and_the_rest_is_submitted(world: World) -> None:
    world.policy = Policy()
    orchestrator = world.begun(tiny_cell(nodes=1), tiny_cell(nodes=2))
    world.end_all(orchestrator, "FAILED", rank_error(ErrorClass.OOM_DEVICE))
    orchestrator.step()
    assert [submission.nodes for submission in world.submitted()] == [1, 2]


def test_the_reason_why_cells_were_not_tried_is_recorded_although_nobody_watches(world: World) -> None:
    world.policy = Policy()
    world.orchestrator().step()
    (canary,) = world.scheduler.live_jobs()
    world.fail(canary, rank_error(ErrorClass.EXCEPTION))
    assert world.orchestrator().step().is_over
    (skipped,) = world.events(Skipped)
    assert (skipped.kind, len(skipped.repeats)) == ("paused", 1)
    world.orchestrator().step()
    assert len(world.events(Skipped)) == 1, "it is said once"


def test_a_smallest_cell_that_the_user_cancelled_before_it_was_submitted_is_no_canary(world: World) -> None:
    world.policy = Policy()
    smallest, *_ = world.set_cells(tiny_cell(nodes=1), tiny_cell(nodes=2), tiny_cell(nodes=4))
    orchestrator = world.orchestrator()
    orchestrator.executor.cancel([smallest])
    orchestrator.step()
    assert [submission.nodes for submission in world.submitted()] == [2]
    world.finish(world.scheduler.live_jobs()[0])
    orchestrator.step()
    assert [submission.nodes for submission in world.submitted()] == [2, 4]


def test_the_canary_is_one_that_can_be_tried_and_its_budget_is_reserved_first(world: World) -> None:
    world.policy = Policy(budget_gpu_hours=4.25)
    ruled_out, big, small = world.set_cells(tiny_cell(nodes=1), tiny_cell(nodes=8), tiny_cell(nodes=2))
    orchestrator = world.orchestrator()
    orchestrator.ruled_out = {ruled_out: ("oom_predicted", "too large")}
    by_cell = {action.cell_id: action.kind for action in orchestrator.step().actions}
    assert by_cell[small] is ActionKind.WAIT
    world.finish(world.scheduler.live_jobs()[0])
    orchestrator.step()
    assert [submission.nodes for submission in world.submitted()] == [2, 8]
    assert by_cell[big] is ActionKind.LATER


def test_where_cells_run_one_by_one_no_canary_holds_them_back(world: World) -> None:
    world.policy, world.canary_helps = Policy(), False
    world.orchestrator().step()
    assert len(world.scheduler.keys) == 2
