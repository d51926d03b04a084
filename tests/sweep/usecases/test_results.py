"""A result counts whenever it appears: before a bad end, a little late, or after its attempt was judged."""

from __future__ import annotations

import pytest

from sweep.core.attempts.attempt import AttemptKey, ErrorClass, Outcome
from sweep.core.attempts.ledger import Ended, Reserved
from sweep.core.decisions.plan import ActionKind
from sweep.core.records.result import Result
from sweep.core.settings.policy import Policy
from sweep.usecases.orchestrate import exit_code
from tests.fakes import result_of
from tests.sweep.usecases.world import CLUSTER, World, kinds, rank_error


def test_a_result_counts_although_the_job_was_preempted_after_it(world: World) -> None:
    orchestrator, job = world.one_job()
    world.finish(job, state="PREEMPTED")
    assert orchestrator.step().is_over
    assert world.reporter.verdicts[0][1].outcome is Outcome.SUCCEEDED


def test_a_result_that_appears_a_little_late_counts(world: World) -> None:
    orchestrator, job = world.one_job()
    world.scheduler.say(job, "COMPLETED")
    orchestrator.step()
    world.clock.sleep(CLUSTER.result_grace_s - 1)
    world.finish(job)
    assert exit_code(orchestrator.step()) == 0


def test_a_trainer_that_hangs_after_its_result_is_ended_and_its_result_counts(world: World) -> None:
    orchestrator, job = world.one_job()
    world.finish(job, state="RUNNING")
    assert not orchestrator.step().is_over
    assert world.scheduler.cancelled == []
    world.clock.sleep(CLUSTER.hang_grace_s)
    assert not orchestrator.step().is_over
    assert world.scheduler.cancelled == [job]
    assert exit_code(orchestrator.step()) == 0


def test_a_result_that_appears_while_others_run_counts_at_the_end_of_the_run(world: World) -> None:
    orchestrator = world.begun()
    early, late = world.scheduler.live_jobs()
    world.fail(late, rank_error(ErrorClass.EXCEPTION))
    assert kinds(orchestrator.step()).count(ActionKind.GIVE_UP) == 1
    world.run_dir.results[world.scheduler.keys[late]] = result_of(world.scheduler.keys[late])
    world.finish(early)
    now = orchestrator.step()
    assert now.is_over
    assert exit_code(now) == 0


def test_cells_that_waited_for_a_result_are_submitted_when_it_appears_at_the_end(world: World) -> None:
    world.policy = Policy()
    orchestrator = world.begun()
    (canary,) = world.scheduler.live_jobs()
    world.scheduler.say(canary, "COMPLETED")
    orchestrator.step()
    world.clock.sleep(CLUSTER.result_grace_s)
    key = world.scheduler.keys[canary]
    look = world.run_dir.result

    def after_it_was_judged(wanted: AttemptKey) -> tuple[Result | None, str]:
        is_judged = any(event.key == key for event in world.events(Ended))
        return (result_of(key), "") if wanted == key and is_judged else look(wanted)

    world.run_dir.result = after_it_was_judged  # type: ignore[method-assign]  # a file system that lags
    now = orchestrator.step()
    assert kinds(now) == [ActionKind.DONE, ActionKind.WAIT]


@pytest.mark.parametrize("is_there", [True, False])
def test_a_result_that_appears_after_its_attempt_was_judged_is_taken_before_a_retry_goes_out(
    world: World, *, is_there: bool
) -> None:
    orchestrator, job = world.one_job()
    key = world.scheduler.keys[job]
    del world.scheduler.states[job]
    assert world.look_twice(orchestrator, CLUSTER.lost_after_s).actions[0].outcome is Outcome.LOST
    if is_there:
        world.run_dir.results[key] = result_of(key)
    world.clock.sleep(3600)
    now = orchestrator.step()
    if is_there:
        assert exit_code(now) == 0
        assert world.outcomes() == [Outcome.LOST, Outcome.SUCCEEDED]
    assert len(world.events(Reserved)) == (1 if is_there else 2)


def test_a_new_process_takes_a_result_that_appeared_after_its_cell_was_given_up(world: World) -> None:
    orchestrator, job = world.one_job()
    key = world.scheduler.keys[job]
    world.scheduler.say(job, "COMPLETED", exit_code=0)
    assert world.look_twice(orchestrator).actions[0].kind is ActionKind.GIVE_UP
    world.run_dir.results[key] = result_of(key)
    assert exit_code(world.orchestrator().step()) == 0
    assert len(world.events(Reserved)) == 1
