"""An observation of a run that nobody watches says what has ended, and leaves no trace."""

from __future__ import annotations

from sweep.core.attempts.attempt import JobReport, Outcome, Phase
from sweep.core.attempts.history import History, fold
from sweep.core.decisions.plan import ActionKind
from sweep.ports import SchedulerError
from sweep.usecases.observe import Observation, observe
from sweep.usecases.status import statuses
from tests.fakes import weak_content
from tests.sweep.usecases.world import World


def left(world: World) -> History:
    """The history of a run that submitted its two cells and was left."""
    world.orchestrator().step()
    return fold(world.ledger.events())


def observed(world: World, history: History) -> Observation:
    return observe(history, records=world.run_dir, view=world.scheduler.view, now=world.clock.now())


def test_ended_jobs_are_judged_and_nothing_is_written(world: World) -> None:
    history = left(world)
    measured, failed = world.scheduler.live_jobs()
    world.finish(measured)
    world.scheduler.say(failed, "TIMEOUT")
    before = list(world.ledger.lines)
    seen = observed(world, history)
    assert world.ledger.lines == before
    assert world.scheduler.cancelled == []
    assert world.run_dir.claims == {}
    assert seen.unrecorded == {world.scheduler.keys[measured], world.scheduler.keys[failed]}
    outcomes = {history.attempt(world.scheduler.keys[job]).outcome for job in (measured, failed)}  # type: ignore[union-attr]
    assert outcomes == {Outcome.SUCCEEDED, Outcome.TIMEOUT}
    listed = statuses(weak_content(world.cells), history, world.run_dir, seen=seen)
    assert [(status.action.kind, status.is_recorded) for status in listed] == [
        (ActionKind.DONE, False),
        (ActionKind.RETRY, False),
    ]


def test_jobs_that_run_or_wait_keep_their_state(world: World) -> None:
    history = left(world)
    running, _ = world.scheduler.live_jobs()
    world.scheduler.states[running] = JobReport(state="RUNNING", phase=Phase.RUNNING)
    world.clock.sleep(10_000)
    seen = observed(world, history)
    assert seen.unrecorded == frozenset()
    assert len(list(history.in_flight())) == 2


def test_results_count_while_the_scheduler_cannot_be_asked(world: World) -> None:
    history = left(world)
    measured, _ = world.scheduler.live_jobs()
    key = world.finish(measured)
    world.launched(measured, started_at=1.0, ended_at=2.0, exit_code=0)
    world.scheduler.poll_error = SchedulerError("no squeue here")
    seen = observed(world, history)
    assert (seen.problem, seen.unrecorded) == ("no squeue here", {key})
