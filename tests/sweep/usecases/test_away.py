"""A scheduler that cannot be reached for a while."""

from __future__ import annotations

import pytest

from sweep.core.attempts.ledger import Ended, Released, Reserved, Submitted
from sweep.core.settings.policy import Policy
from sweep.ports import SchedulerUnreachableError
from sweep.usecases.orchestrate import exit_code
from tests.fakes import tiny_cell
from tests.sweep.usecases.world import World, away


def test_a_submission_that_never_arrived_is_submitted_again_as_the_same_attempt(world: World) -> None:
    world.set_cells(tiny_cell())
    orchestrator = world.orchestrator()
    world.scheduler.submit_error = away()
    world.look_on(orchestrator, times=20)
    assert not world.scheduler.by_name
    assert [type(event) for event in world.ledger.events()] == [Reserved], "one reservation, no pile of attempts"
    assert world.run_dir.away == (1_000_000.0, "Unable to contact slurm controller (connect failure)")
    assert "not been reached since" in orchestrator.executor.contact.describe()
    world.scheduler.submit_error = None
    world.clock.sleep(300)
    orchestrator.step()
    (job,) = world.scheduler.live_jobs()
    assert world.scheduler.keys[job].attempt == 1
    assert world.run_dir.away is None
    assert "the scheduler answers again, after 500 s" in world.reporter.notes
    world.finish(job)
    assert exit_code(orchestrator.step()) == 0
    assert [type(event) for event in world.ledger.events()] == [Reserved, Submitted, Ended]


def test_a_submission_that_seemed_not_to_arrive_is_adopted_by_its_name(world: World) -> None:
    world.scheduler.submit_error, world.scheduler.takes_it_all_the_same = away(), True
    orchestrator = world.begun(tiny_cell())
    world.scheduler.submit_error = None
    world.clock.sleep(10)
    orchestrator.step()
    assert len(world.scheduler.by_name) == 1
    assert [type(event) for event in world.ledger.events()] == [Reserved, Submitted]


def test_a_process_that_stops_releases_submissions_that_never_arrived_and_the_next_submits_them_at_once(
    world: World,
) -> None:
    world.scheduler.submit_error = away()
    orchestrator = world.begun(tiny_cell())
    orchestrator.leave()
    assert [type(event) for event in world.ledger.events()] == [Reserved, Released]
    world.scheduler.submit_error = None
    world.orchestrator().step()
    (job,) = world.scheduler.live_jobs()
    assert world.scheduler.keys[job].attempt == 2
    assert world.run_dir.away is None


def test_a_scheduler_that_is_away_from_the_start_is_an_error_and_nothing_was_reserved(world: World) -> None:
    world.scheduler.site_error = away()
    with pytest.raises(SchedulerUnreachableError):
        world.orchestrator().step()
    assert world.ledger.lines == []


def test_a_scheduler_that_is_away_while_jobs_are_in_flight_is_waited_for(world: World) -> None:
    world.policy = Policy(canary=False, max_concurrent_jobs=1)
    world.orchestrator().step()
    (job,) = world.scheduler.live_jobs()
    world.scheduler.site_error = world.scheduler.poll_error = away()
    world.policy = Policy(canary=False)
    heir = world.begun()
    assert len(world.scheduler.by_name) == 1
    assert world.run_dir.away is not None
    world.scheduler.site_error = world.scheduler.poll_error = None
    world.finish(job)
    heir.step()
    assert len(world.scheduler.by_name) == 2
