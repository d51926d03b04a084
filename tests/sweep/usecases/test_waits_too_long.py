"""Jobs that wait for what will never come, or longer than the user lets them."""

from __future__ import annotations

from dataclasses import replace

from sweep.core.attempts.attempt import Outcome
from sweep.core.attempts.ledger import StopRequested
from sweep.core.decisions.admission import gpu_hours_committed
from sweep.core.decisions.plan import ActionKind
from sweep.ports import SchedulerError
from sweep.usecases.orchestrate import Orchestrator
from tests.sweep.usecases.world import CALM, CLUSTER, World


def test_a_job_that_would_wait_forever_is_ended_with_the_reason(world: World) -> None:
    orchestrator, job = world.one_job()
    world.scheduler.say(job, "PENDING", reason="PartitionTimeLimit")
    orchestrator.step()
    assert world.scheduler.cancelled == []
    world.clock.sleep(60)
    orchestrator.step()
    assert world.scheduler.cancelled == [job]
    now = orchestrator.step()
    assert now.actions[0].outcome is Outcome.REJECTED_BY_SCHEDULER
    assert "PartitionTimeLimit" in now.actions[0].reason
    assert gpu_hours_committed(orchestrator.history) == 0, "it never began"


def _hopeless_and_not_heard(world: World) -> tuple[Orchestrator, str]:
    """A job that waits for what will never come, and whose cancel the scheduler has not heard."""
    orchestrator, job = world.one_job()
    world.scheduler.say(job, "PENDING", reason="PartitionTimeLimit")
    orchestrator.step()
    world.clock.sleep(60)
    world.scheduler.cancel_error = SchedulerError("away")
    orchestrator.step()
    return orchestrator, job


def test_a_job_that_begins_after_all_is_not_ended_as_hopeless(world: World) -> None:
    orchestrator, job = _hopeless_and_not_heard(world)
    world.scheduler.cancel_error = None
    world.scheduler.say(job, "RUNNING")
    for _ in range(5):
        orchestrator.step()
        world.clock.sleep(30)
    assert world.scheduler.cancelled == []
    world.end_all(orchestrator, "CANCELLED by 1000")
    assert orchestrator.snapshot().actions[0].outcome is Outcome.CANCELLED, "that was not this tool"


def test_a_job_that_began_after_all_and_is_requeued_can_be_ended_as_hopeless_anew(world: World) -> None:
    """Its first stop has lapsed; the second is written down once, and repeated to the scheduler until it is heard."""
    orchestrator, job = _hopeless_and_not_heard(world)
    world.scheduler.cancel_error, world.scheduler.takes_its_time = None, True
    world.scheduler.say(job, "RUNNING", started_at=world.clock.now() + 1)
    orchestrator.step()
    world.scheduler.say(job, "PENDING", reason="PartitionTimeLimit")
    for _ in range(10):
        world.clock.sleep(30)
        orchestrator.step()
    stops = world.events(StopRequested)
    assert len(stops) == 2
    assert len(world.scheduler.cancelled) > 3, "and the scheduler is told again"
    world.scheduler.say(job, "CANCELLED by 0", started_at=None)
    assert world.look_twice(orchestrator).actions[0].outcome is Outcome.REJECTED_BY_SCHEDULER


def test_a_job_that_waits_longer_than_the_user_lets_it_is_ended_with_the_schedulers_reason(world: World) -> None:
    world.policy = replace(CALM, pending_limit_h=2.0)
    orchestrator, job = world.one_job()
    world.scheduler.say(job, "PENDING", reason="QOSGrpNodeLimit")
    world.clock.sleep(2 * 3600 - 1)
    orchestrator.step()
    assert world.scheduler.cancelled == []
    world.clock.sleep(1)
    world.orchestrator().step()
    assert world.scheduler.cancelled == [job], "who takes over counts on"
    world.clock.sleep(CLUSTER.result_grace_s)
    (action,) = world.orchestrator().step().actions
    assert (action.kind, action.outcome) == (ActionKind.GIVE_UP, Outcome.REJECTED_BY_SCHEDULER)
    assert "it waited for more than policy.pending_limit_h=2: QOSGrpNodeLimit" in action.reason


def test_the_remedy_for_a_held_job_is_reported_once(world: World) -> None:
    orchestrator, job = world.one_job()
    world.scheduler.say(job, "PENDING", reason="(JobHeldUser)")
    for _ in range(3):
        orchestrator.step()
        world.clock.sleep(10)
    (note,) = world.reporter.notes
    assert "its user held it: `scontrol release JOB`" in note
