"""What a user's cancel ends, holds back and leaves alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sweep.core.attempts.attempt import ErrorClass, Outcome
from sweep.core.attempts.ledger import CancelRequested, Ended
from sweep.core.attempts.outcome_rules import OUTCOME_RULES
from sweep.core.decisions.plan import ActionKind
from sweep.core.decisions.reopen import had_ended, held_back
from sweep.ports import SubmissionUncertainError
from sweep.usecases.orchestrate import exit_code
from tests.fakes import tiny_cell
from tests.sweep.usecases.world import World, away, kinds, rank_error, several


def test_a_cancel_request_ends_the_cell_and_holds_it(world: World) -> None:
    orchestrator = world.begun()
    target = next(iter(world.cells))
    world.run_dir.requests["cancel-1"] = [target]
    now = world.look_twice(orchestrator)
    by_cell = {action.cell_id: action for action in now.actions}
    assert by_cell[target].kind is ActionKind.HOLD
    assert len(world.scheduler.cancelled) == 1
    assert len(world.events(CancelRequested)) == 1
    assert world.run_dir.requests == {}
    assert sum(action.kind is ActionKind.WAIT for action in now.actions) == 1, "the other cell goes on"


def test_a_held_cell_runs_again_only_when_asked(world: World) -> None:
    orchestrator, _ = world.one_job()
    orchestrator.executor.cancel(list(world.cells))
    assert world.look_twice(orchestrator).is_over
    assert world.orchestrator().step().is_over
    asked = world.orchestrator()
    asked.reopen([Outcome.CANCELLED])
    assert not asked.step().is_over
    (job,) = world.scheduler.live_jobs()
    world.finish(job)
    assert exit_code(asked.step()) == 0


def test_a_cancel_holds_cells_that_are_not_in_the_queue_yet(world: World) -> None:
    """One runs, one waits for a place in the queue, one for its retry."""
    running, retried, waiting = world.set_cells(*several(3))
    world.policy = replace(world.policy, max_concurrent_jobs=2)
    orchestrator = world.begun()
    key_of = world.scheduler.keys
    (failed,) = [job for job in world.scheduler.live_jobs() if key_of[job].cell_id == retried]
    world.fail(failed, rank_error(ErrorClass.COMMUNICATION))
    world.policy = replace(world.policy, max_concurrent_jobs=1)
    orchestrator = world.orchestrator()
    assert kinds(world.look_twice(orchestrator)) == [ActionKind.WAIT, ActionKind.LATER, ActionKind.LATER]
    world.run_dir.requests["r"] = list(world.cells)
    now = world.look_twice(orchestrator)
    assert now.is_over
    assert {action.kind for action in now.actions} == {ActionKind.HOLD}
    assert exit_code(now) == 1
    reasons = {action.cell_id: action.reason for action in now.actions}
    assert reasons[waiting] == "cancelled by the user before it was submitted"
    assert reasons[retried].startswith("cancelled by the user before it was submitted again; before that COMM_FAILURE")
    assert "cancelled by the user" in reasons[running]
    (event,) = world.events(CancelRequested)
    assert held_back([event], orchestrator.history, OUTCOME_RULES) == ((retried, 1), (waiting, 1))
    orchestrator.executor.cancel(world.cells)
    assert len(world.events(CancelRequested)) == 1, "nothing is left to cancel"
    asked = world.orchestrator()
    assert asked.step().is_over
    asked.reopen([Outcome.CANCELLED])
    again = kinds(asked.step())
    assert again.count(ActionKind.HOLD) == 0
    assert again.count(ActionKind.WAIT) == 1


def test_a_cancel_leaves_measured_and_explained_cells_as_they_are(world: World) -> None:
    measured, *_ = world.set_cells(*several(3))
    orchestrator = world.begun()
    for job, key in list(world.scheduler.keys.items()):
        if key.cell_id == measured:
            world.finish(job)
        else:
            world.fail(job, rank_error(ErrorClass.OOM_DEVICE))
    before = orchestrator.step().actions
    orchestrator.executor.cancel(world.cells)
    assert orchestrator.step().actions == before
    assert {action.kind for action in before} == {ActionKind.DONE, ActionKind.EXPLAINED}
    assert held_back(world.events(CancelRequested), orchestrator.history, OUTCOME_RULES) == ()


def test_a_cancel_that_did_not_reach_the_scheduler_is_repeated(world: World) -> None:
    orchestrator, job = world.one_job()
    orchestrator.executor.cancel(list(world.cells))
    world.scheduler.say(job, "RUNNING")
    orchestrator.step()
    world.clock.sleep(30)
    orchestrator.step()
    assert world.scheduler.cancelled == [job, job]


def test_a_cancel_that_did_not_reach_the_scheduler_is_recorded_and_repeated(world: World) -> None:
    orchestrator, job = world.one_job()
    world.scheduler.cancel_error = away()
    orchestrator.executor.cancel(world.cells)
    assert "connect failure" in orchestrator.executor.cancel_failure
    world.scheduler.cancel_error = None
    heir = world.orchestrator()
    world.look_on(heir, times=5)
    assert world.scheduler.cancelled == [job]
    assert heir.executor.cancel_failure == ""


def test_a_job_that_had_failed_before_the_cancel_keeps_its_own_end_and_is_not_tried_again(world: World) -> None:
    """Of three nothing is recorded yet: one ran out of memory, one lost a node, one still runs."""
    out_of_memory, lost_node, running = world.set_cells(*several(3))
    world.begun()
    for job, key in world.scheduler.keys.items():
        if key.cell_id == running:
            world.scheduler.say(job, "RUNNING")
        elif key.cell_id == out_of_memory:
            world.fail(job, rank_error(ErrorClass.OOM_DEVICE))
        else:
            world.scheduler.say(job, "NODE_FAIL")
    heir = world.orchestrator()
    heir.executor.cancel(world.cells)
    over = had_ended(world.events(CancelRequested), heir.history)
    assert [key.cell_id for key in over] == [out_of_memory, lost_node]
    now = world.look_twice(heir)
    assert now.is_over
    assert [world.scheduler.keys[job].cell_id for job in world.scheduler.cancelled] == [running]
    ends = {event.key.cell_id: event.outcome for event in world.events(Ended)}
    assert ends == {out_of_memory: Outcome.OOM_DEVICE, lost_node: Outcome.NODE_FAIL, running: Outcome.CANCELLED}
    assert kinds(now) == [ActionKind.EXPLAINED, ActionKind.HOLD, ActionKind.HOLD]
    assert "before that NODE_FAIL" in now.actions[1].reason


def test_a_cell_cancelled_before_its_submission_arrives_is_never_submitted(world: World) -> None:
    world.scheduler.submit_error = away()
    orchestrator = world.begun(tiny_cell())
    world.run_dir.requests["please"] = list(world.cells)
    world.scheduler.submit_error = None
    world.clock.sleep(10)
    orchestrator.step()
    now = orchestrator.step()
    assert not world.scheduler.by_name
    assert kinds(now) == [ActionKind.HOLD]
    assert [verdict.outcome for _, verdict in world.reporter.verdicts] == [Outcome.CANCELLED]


@pytest.mark.parametrize("is_away", [True, False], ids=["known-not-taken", "uncertain"])
def test_a_task_cancelled_before_its_array_arrived_stays_cancelled_and_the_other_runs(
    world: World, *, is_away: bool
) -> None:
    cancelled, other = world.set_cells(*several(2))
    world.scheduler.submit_error = away() if is_away else SubmissionUncertainError("Socket timed out")
    orchestrator = world.begun()
    world.scheduler.submit_error = None
    world.run_dir.requests["please"] = [cancelled]
    world.look_on(orchestrator, times=20)
    (job,) = world.scheduler.live_jobs()
    assert world.scheduler.keys[job].cell_id == other
    world.finish(job)
    now = orchestrator.step()
    assert kinds(now) == [ActionKind.HOLD, ActionKind.DONE]
    assert "before it was submitted" in now.actions[0].reason
    assert world.orchestrator().history.problems == []
