"""Submissions that the scheduler refuses, for good or because its queue is full."""

from __future__ import annotations

from sweep.core.attempts.attempt import Outcome
from sweep.core.attempts.ledger import Refused, Reserved, Submitted
from sweep.core.jobs.submission import Submission
from sweep.ports import SubmissionRejectedError
from sweep.usecases.orchestrate import exit_code
from tests.fakes import FakeScheduler, tiny_cell
from tests.sweep.usecases.world import CLUSTER, World, several


def _full() -> SubmissionRejectedError:
    return SubmissionRejectedError("QOSMaxSubmitJobPerUserLimit", is_transient=True)


def test_a_refused_submission_shows_the_schedulers_own_words_and_is_not_repeated(world: World) -> None:
    world.set_cells(tiny_cell())
    world.scheduler.submit_error = SubmissionRejectedError("invalid partition specified: debgu")
    orchestrator = world.orchestrator()
    now = orchestrator.step()
    assert now.is_over
    assert now.actions[0].outcome is Outcome.REJECTED_BY_SCHEDULER
    assert "invalid partition specified: debgu" in now.actions[0].reason
    assert len(world.events(Refused)) == 1
    assert exit_code(now) == 1


def _unknown() -> SubmissionRejectedError:
    return SubmissionRejectedError("your project has used up its hours", is_known=False)


def test_unknown_words_are_tried_again_by_the_same_attempt_and_then_quoted_in_a_hole(world: World) -> None:
    world.set_cells(tiny_cell())
    world.scheduler.submit_error = _unknown()
    orchestrator, began = world.orchestrator(), world.clock.monotonic()
    tries = 0
    while not (now := orchestrator.step()).is_over:
        assert world.events(Refused) == []
        tries += 1
        assert tries < 100, "it ends"
        world.clock.sleep(10)
    assert 100 < world.clock.monotonic() - began < 400
    assert now.actions[0].outcome is Outcome.REJECTED_BY_SCHEDULER
    assert "your project has used up its hours" in now.actions[0].reason
    assert (len(world.events(Reserved)), len(world.events(Refused))) == (1, 1)
    assert exit_code(now) == 1


def test_unknown_words_that_pass_cost_no_attempt(world: World) -> None:
    world.set_cells(tiny_cell())
    world.scheduler.submit_error = _unknown()
    orchestrator = world.orchestrator()
    orchestrator.step()
    world.scheduler.submit_error = None
    world.clock.sleep(300)
    orchestrator.step()
    assert [key.attempt for key in world.scheduler.keys.values()] == [1]
    assert [type(event) for event in world.ledger.events()] == [Reserved, Submitted]


def test_a_submit_limit_holds_cells_back_and_later_takes_them(world: World) -> None:
    world.set_cells(tiny_cell())
    world.scheduler.submit_error = _full()
    orchestrator = world.orchestrator()
    assert not orchestrator.step().is_over
    orchestrator.step()
    assert len(world.events(Reserved)) == 1, "it waits before it asks again"
    world.scheduler.submit_error = None
    world.clock.sleep(5)
    orchestrator.step()
    (job,) = world.scheduler.live_jobs()
    world.finish(job)
    assert exit_code(orchestrator.step()) == 0
    assert len(world.events(Reserved)) == 1


def test_a_full_queue_is_waited_for_by_the_same_attempt(world: World) -> None:
    world.set_cells(tiny_cell())
    orchestrator = world.orchestrator()
    world.scheduler.submit_error = _full()
    world.look_on(orchestrator, times=100)
    assert world.run_dir.away is None, "it is there, and full"
    world.scheduler.submit_error = None
    world.clock.sleep(300)
    orchestrator.step()
    assert [key.attempt for key in world.scheduler.keys.values()] == [1]
    assert [type(event) for event in world.ledger.events()] == [Reserved, Submitted]


class _TakesThree(FakeScheduler):
    """Takes three jobs at a time, and says of no limit before it is hit."""

    def submit(self, submission: Submission) -> tuple[str, ...]:
        if len(self.live_jobs()) + len(submission.tasks) > 3:
            raise _full()
        return super().submit(submission)


def test_a_limit_that_cannot_be_queried_is_found_by_halving_and_leaves_no_pile_of_attempts(world: World) -> None:
    world.set_cells(*several(12))
    world.scheduler = _TakesThree()
    orchestrator = world.orchestrator()
    for _ in range(400):
        if orchestrator.step().is_over:
            break
        world.finish_all()
        world.clock.sleep(CLUSTER.poll_interval_s)
    assert exit_code(orchestrator.snapshot()) == 0
    assert max(key.attempt for key in world.scheduler.keys.values()) <= 4
    assert max(len(jobs) for jobs in world.scheduler.by_name.values()) > 1, "not one by one"
