"""Submissions of which nobody knows whether they arrived."""

from __future__ import annotations

from sweep.core.attempts.ledger import Released, Submitted
from sweep.core.decisions.plan import ActionKind
from sweep.ports import SubmissionUncertainError
from sweep.usecases.orchestrate import Orchestrator, exit_code
from tests.fakes import tiny_cell
from tests.sweep.usecases.world import World, away, kinds


def test_a_submission_that_was_taken_although_sbatch_timed_out_is_found_by_name_and_not_doubled(world: World) -> None:
    world.scheduler.submit_error = SubmissionUncertainError("Socket timed out on send/recv operation")
    world.scheduler.takes_it_all_the_same = True
    orchestrator = world.begun(tiny_cell())
    world.scheduler.submit_error = None
    world.clock.sleep(10)
    orchestrator.step()
    (job,) = world.scheduler.live_jobs()
    world.finish(job)
    assert exit_code(orchestrator.step()) == 0
    assert len(world.scheduler.by_name) == 1


def test_a_submission_that_never_arrived_is_released_after_a_grace_and_submitted_again(world: World) -> None:
    world.scheduler.submit_error = SubmissionUncertainError("Socket timed out on send/recv operation")
    orchestrator = world.begun(tiny_cell())
    world.scheduler.submit_error = None
    for _ in range(5):
        world.clock.sleep(10)
        orchestrator.step()
    assert world.scheduler.by_name == {}, "an sbatch may still be under way: no second one yet"
    world.clock.sleep(60)
    orchestrator.step()
    (job,) = world.scheduler.live_jobs()
    assert world.scheduler.keys[job].attempt == 2, "a reserved number is not used again"


def test_a_submission_that_cannot_be_looked_up_is_reported_once(world: World) -> None:
    world.scheduler.submit_error = SubmissionUncertainError("Socket timed out")
    orchestrator = world.begun(tiny_cell())
    world.scheduler.find_error = away()
    world.look_on(orchestrator, times=10)
    assert sum("cannot be looked up yet" in note for note in world.reporter.notes) == 1
    assert world.run_dir.away is not None
    world.scheduler.find_error = None
    orchestrator.step()
    assert world.run_dir.away is None, "an answer is an answer, whatever it says"


def _uncertain(world: World, *, taken: bool) -> Orchestrator:
    """Two equal cells went out as an array, sbatch timed out, and then the submission's file was damaged."""
    world.scheduler.submit_error = SubmissionUncertainError("Socket timed out on send/recv operation")
    world.scheduler.takes_it_all_the_same = taken
    orchestrator = world.begun(tiny_cell(nodes=1), tiny_cell(nodes=1, seq_len=64))
    world.scheduler.submit_error = None
    (name,) = world.run_dir.submissions
    world.run_dir.damaged[name] = "submission is not whole JSON"
    return orchestrator


def test_a_submission_with_a_damaged_file_is_adopted_from_the_ledger(world: World) -> None:
    orchestrator = _uncertain(world, taken=True)
    orchestrator.step()
    (submitted,) = world.events(Submitted)
    assert submitted.jobs == tuple(world.scheduler.live_jobs())
    assert any("its file is damaged: submission is not whole JSON" in note for note in world.reporter.notes)
    measured, lost = submitted.jobs
    world.finish(measured)
    # Its launcher could not read what to run.
    world.scheduler.say(lost, "FAILED", exit_code=2, nodes=("n1",))
    now = world.look_twice(orchestrator)
    assert kinds(now) == [ActionKind.DONE, ActionKind.GIVE_UP]
    assert "its submission's file is damaged: submission is not whole JSON" in now.actions[1].reason
    assert len(world.scheduler.by_name) == 1


def test_a_submission_that_never_arrived_is_released_although_its_file_is_damaged(world: World) -> None:
    orchestrator = _uncertain(world, taken=False)
    world.look_on(orchestrator, times=10)
    assert len(world.events(Released)) == 1
    jobs = world.scheduler.live_jobs()
    assert [world.scheduler.keys[job].attempt for job in jobs] == [2, 2]


def test_a_forgotten_submission_with_a_damaged_file_is_known_by_what_its_jobs_wrote(
    world: World,
) -> None:
    orchestrator = _uncertain(world, taken=True)
    jobs = world.scheduler.live_jobs()
    (name,) = world.run_dir.submissions
    world.run_dir.claims[name] = jobs[0].partition("_")[0]
    world.finish_all()
    world.scheduler.by_name.clear()
    world.scheduler.states.clear()
    now = orchestrator.step()
    assert now.is_over
    assert exit_code(now) == 0
    assert world.scheduler.by_name == {}
