"""Which job is a submission's: by its name, by the claim that it wrote, and not by an id alone."""

from __future__ import annotations

import pytest

from sweep.core.attempts.attempt import Outcome
from sweep.core.attempts.ledger import Ended, Released, Submitted
from sweep.core.decisions.plan import ActionKind
from sweep.ports import SchedulerError
from sweep.usecases.orchestrate import exit_code
from tests.fakes import Crash, FakeScheduler, result_of, tiny_cell
from tests.sweep.usecases.world import CLUSTER, World, several


def _reserved_and_never_heard_of(world: World) -> str:
    """One submission of a process that died before its scheduler answered; gives its name."""
    world.scheduler.submit_error = Crash()
    with pytest.raises(Crash):
        world.orchestrator().step()
    world.scheduler.submit_error = None
    (name,) = world.run_dir.submissions
    return name


def test_a_job_under_another_name_is_watched_once_it_has_claimed_its_submission(world: World) -> None:
    orchestrator, job = world.one_job()
    (name,) = world.scheduler.by_name
    world.scheduler.say(job, "RUNNING")
    world.scheduler.not_ours.add(job)
    world.run_dir.claims[name] = job
    for _ in range(3):
        world.clock.sleep(CLUSTER.lost_after_s)
        orchestrator.step()
    assert world.reporter.verdicts == []
    world.finish(job)
    assert orchestrator.step().is_over
    assert world.outcomes() == [Outcome.SUCCEEDED]


def test_a_job_that_seems_to_be_anothers_counts_as_lost_only_once_it_can_no_longer_begin(world: World) -> None:
    """It may be ours all the same: then it would run beside the next attempt's."""
    orchestrator, job = world.one_job()
    (name,) = world.scheduler.by_name
    world.scheduler.not_ours.add(job)
    world.look_twice(orchestrator, CLUSTER.lost_after_s)
    assert world.outcomes() == [Outcome.LOST]
    assert world.run_dir.claims[name] == "", "and its job will find that"


def test_a_job_that_reuses_an_id_is_not_taken_for_the_one_whose_launcher_wrote_its_end(world: World) -> None:
    orchestrator, job = world.one_job()
    (name,) = world.scheduler.by_name
    world.scheduler.say(job, "RUNNING")
    world.run_dir.claims[name] = job
    orchestrator.step()
    world.launched(job, ended_at=world.clock.now(), exit_code=1)
    world.scheduler.not_ours.add(job)
    world.look_twice(orchestrator, CLUSTER.lost_after_s)
    assert world.outcomes() == [Outcome.TRAINER_ERROR]


@pytest.mark.parametrize("cells", [1, 3])
def test_a_job_that_the_scheduler_has_forgotten_is_known_by_its_own_claim(world: World, cells: int) -> None:
    """No accounting, and the crash between sbatch and its record was long ago."""
    world.set_cells(*several(cells))
    name = _reserved_and_never_heard_of(world)
    world.run_dir.claims[name] = "77"
    for key in world.run_dir.submissions[name].tasks:
        world.run_dir.results[key] = result_of(key)
    heir = world.orchestrator()
    assert exit_code(heir.step()) == 0
    assert world.scheduler.keys == {}, "nothing is run a second time"
    (submitted,) = world.events(Submitted)
    assert submitted.jobs == (("77",) if cells == 1 else ("77_0", "77_1", "77_2"))


def test_if_a_submission_is_queued_twice_the_job_that_began_it_is_watched(world: World) -> None:
    orchestrator, job = world.one_job()
    (name,) = world.scheduler.by_name
    world.run_dir.claims[name] = "77"
    world.scheduler.keys["77"] = world.scheduler.keys[job]
    world.scheduler.say("77", "RUNNING")
    world.scheduler.say(job, "FAILED", exit_code=4)
    world.clock.sleep(CLUSTER.result_grace_s)
    assert not orchestrator.step().is_over
    world.finish("77")
    assert exit_code(orchestrator.step()) == 0
    assert [event.jobs for event in world.events(Submitted)] == [(job,), ("77",)]


def test_if_the_jobs_of_two_attempts_share_an_id_the_later_attempt_keeps_it_and_the_other_is_lost(world: World) -> None:
    """The controller lost its state, and began to count anew."""
    world.begun(tiny_cell())
    (lost,) = world.scheduler.keys.values()
    world.scheduler = FakeScheduler(clock=world.clock)
    orchestrator = world.begun(tiny_cell(), tiny_cell(seq_len=64))
    assert list(world.scheduler.keys) == ["101"], "as the lost one"
    world.scheduler.say("101", "RUNNING")
    assert orchestrator.step().counts()[ActionKind.WAIT] == 1
    assert [(event.key, event.outcome) for event in world.events(Ended)] == [(lost, Outcome.LOST)]


@pytest.mark.parametrize("cells", [1, 2])
def test_if_a_submission_is_queued_twice_and_the_watched_job_ended_before_it_began_the_other_does_not_begin(
    world: World, cells: int
) -> None:
    """Else the other would run beside the next attempt's, or against the user's cancel."""
    orchestrator = world.begun(*several(cells))
    (name,) = world.scheduler.by_name
    for job in world.scheduler.live_jobs():
        assert name not in world.run_dir.claims, "while others of its array may begin, it is theirs"
        world.scheduler.say(job, "CANCELLED by 1000", started_at=None)
        world.look_twice(orchestrator)
    assert world.run_dir.claims == {name: ""}


def test_a_submission_is_withdrawn_before_its_release_so_that_no_late_job_begins(world: World) -> None:
    world.set_cells(tiny_cell())
    name = _reserved_and_never_heard_of(world)
    heir = world.begun()
    assert world.run_dir.claims == {}, "it may still arrive"
    world.clock.sleep(60)
    heir.step()
    assert world.run_dir.claims == {name: ""}
    assert [event.submission for event in world.events(Released)] == [name]


def test_a_job_that_begins_while_its_submission_is_being_released_is_adopted(world: World) -> None:
    """It is claimed after the look for it, and before the withdrawal."""
    world.set_cells(tiny_cell())
    _reserved_and_never_heard_of(world)
    heir = world.begun()
    world.clock.sleep(60)
    world.run_dir.withdraw = lambda _: "55"  # type: ignore[method-assign]
    heir.step()
    assert [event.jobs for event in world.events(Submitted)] == [("55",)]
    assert world.events(Released) == []
    assert len(world.run_dir.submissions) == 1


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_late_job_of_a_submission_that_is_being_released_is_cancelled_and_not_adopted(
    world: World, *, cancelled: bool
) -> None:
    """A process died, or its disk was full, between the claim for nobody and the line that says so."""
    world.set_cells(tiny_cell())
    name = _reserved_and_never_heard_of(world)
    world.run_dir.claims[name] = ""
    world.scheduler.by_name[name] = ("77",)
    world.scheduler.say("77", "PENDING")
    heir = world.orchestrator()
    if cancelled:
        heir.executor.cancel(world.cells)
    world.scheduler.cancel_error = SchedulerError("away")
    heir.step()
    assert not world.events(Released), "it is tried again"
    world.scheduler.cancel_error = None
    heir.step()
    assert world.scheduler.cancelled == ["77"]
    assert "77" not in [job for event in world.events(Submitted) for job in event.jobs]
    if cancelled:
        assert world.outcomes() == [Outcome.CANCELLED]
    else:
        assert [event.submission for event in world.events(Released)] == [name]
        assert len(world.scheduler.keys) == 1, "another attempt is submitted"


def test_a_cancelled_submission_counts_as_never_begun_only_if_it_could_be_withdrawn(world: World) -> None:
    world.set_cells(tiny_cell())
    name = _reserved_and_never_heard_of(world)
    heir = world.orchestrator()
    heir.executor.cancel(world.cells)
    heir.step()
    world.clock.sleep(60)
    world.run_dir.withdraw = lambda _: "55"  # type: ignore[method-assign]
    heir.step()
    assert world.events(Ended) == []
    assert world.events(Submitted)[-1] == Submitted(time=world.clock.now(), submission=name, jobs=("55",))
