"""Orchestrators that die, lose their ledger's lines or lose the run: nothing is lost and nothing runs twice."""

from __future__ import annotations

import pytest

from sweep.core.attempts.attempt import Outcome
from sweep.core.attempts.ledger import Ended, Event
from sweep.usecases.orchestrate import exit_code
from tests.fakes import Crash, tiny_cell
from tests.sweep.usecases.world import World


@pytest.mark.parametrize("crash_after", range(1, 7))
def test_a_crash_after_any_ledger_write_loses_nothing_and_runs_nothing_twice(world: World, crash_after: int) -> None:
    world.ledger.crash_after = crash_after
    orchestrator = None
    with pytest.raises(Crash):
        orchestrator = world.run_to_the_end()
    assert orchestrator is None
    world.clock.sleep(100)
    heir = world.run_to_the_end()
    assert exit_code(heir.snapshot()) == 0
    succeeded = [event.key for event in world.events(Ended) if event.outcome is Outcome.SUCCEEDED]
    assert sorted({(key.cell_id, key.repeat) for key in succeeded}) == sorted((name, 1) for name in world.cells)
    assert len(succeeded) == len(world.cells), "none ran twice to success"
    assert len(world.scheduler.keys) == len(world.cells), "no job was submitted for what was running or done"


def test_after_a_crash_between_sbatch_and_the_recording_of_its_job_id_the_job_is_found_by_name(world: World) -> None:
    world.set_cells(tiny_cell())
    world.scheduler.submit_error = Crash()
    world.scheduler.takes_it_all_the_same = True
    with pytest.raises(Crash):
        world.orchestrator().step()
    world.scheduler.submit_error = None
    heir = world.begun()
    assert len(world.scheduler.keys) == 1
    world.finish(next(iter(world.scheduler.keys)))
    assert exit_code(heir.step()) == 0


def test_a_submission_whose_ledger_line_was_lost_is_restored_from_its_file(world: World) -> None:
    world.one_job()
    world.ledger.lines.clear()
    world.begun()
    assert len(world.scheduler.keys) == 1
    assert any("no ledger line" in note for note in world.reporter.notes)


def test_a_process_that_lost_the_lease_submits_nothing(world: World) -> None:
    """Suspended between its reservation and sbatch, it has an heir that gave the reservation back."""
    world.set_cells(tiny_cell())
    orchestrator = world.orchestrator()
    append = world.ledger.append

    def suspended(event: Event) -> None:
        append(event)
        orchestrator.executor.check_lease = _lost

    world.ledger.append = suspended  # type: ignore[method-assign]
    with pytest.raises(LookupError):
        orchestrator.step()
    assert world.scheduler.keys == {}


def _lost() -> None:
    raise LookupError("it is held by another")
