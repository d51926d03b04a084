"""What an attempt counts as, by what its scheduler, its ranks and its files say of its end."""

from __future__ import annotations

import pytest

from sweep.core.attempts.attempt import ErrorClass, JobReport, Outcome, Phase
from sweep.core.attempts.ledger import Ended
from sweep.core.attempts.verdict import Verdict
from sweep.core.decisions.plan import ActionKind
from sweep.ports import SchedulerError
from sweep.usecases.orchestrate import exit_code
from tests.sweep.usecases.world import CLUSTER, World, kinds, rank_error


@pytest.mark.parametrize("state", ["NODE_FAIL", "PREEMPTED"])
def test_a_job_that_the_cluster_took_away_is_retried_as_a_new_attempt(world: World, state: str) -> None:
    orchestrator, job = world.one_job()
    world.scheduler.say(job, state)
    world.clock.sleep(CLUSTER.result_grace_s)
    world.look_twice(orchestrator)
    (again,) = world.scheduler.live_jobs()
    assert world.scheduler.keys[again].attempt == 2
    assert world.reporter.verdicts[0][1].outcome is Outcome(state)


def test_a_trainer_error_is_shown_with_its_cause_and_not_retried(world: World) -> None:
    orchestrator, job = world.one_job()
    waited = rank_error(ErrorClass.COMMUNICATION, rank=1, time=0.5)
    world.fail(job, waited, rank_error(ErrorClass.EXCEPTION, "ValueError: no such thing"), exit_code=1)
    now = orchestrator.step()
    assert now.is_over
    assert now.actions[0].kind is ActionKind.GIVE_UP
    assert "rank 0: ValueError: no such thing" in now.actions[0].reason
    assert exit_code(now) == 1


def test_out_of_memory_is_a_finding_that_is_explained_and_never_retried(world: World) -> None:
    orchestrator, job = world.one_job()
    world.fail(job, rank_error(ErrorClass.OOM_DEVICE))
    now = orchestrator.step()
    assert kinds(now) == [ActionKind.EXPLAINED]
    assert exit_code(now) == 0


def test_a_trainer_that_exits_zero_without_a_result_has_not_succeeded(world: World) -> None:
    orchestrator, job = world.one_job()
    world.scheduler.say(job, "COMPLETED", exit_code=0)
    assert not orchestrator.step().is_over, "the file system may lag: the result has its grace"
    world.clock.sleep(CLUSTER.result_grace_s)
    now = orchestrator.step()
    assert now.actions[0].outcome is Outcome.TRAINER_ERROR
    assert "exit code 0) without a result" in now.actions[0].reason


def test_a_damaged_result_is_no_success_and_the_reason_names_the_damage(world: World) -> None:
    orchestrator, job = world.one_job()
    world.run_dir.result_problems[world.scheduler.keys[job]] = "result.json is not whole JSON"
    world.scheduler.say(job, "COMPLETED")
    assert "result.json is not whole JSON" in world.look_twice(orchestrator).actions[0].reason


def test_a_job_that_nobody_knows_is_lost_only_after_a_long_unbroken_absence(world: World) -> None:
    orchestrator, job = world.one_job()
    kept = world.scheduler.states.pop(job)
    orchestrator.step()
    world.clock.sleep(CLUSTER.lost_after_s - 1)
    orchestrator.step()
    world.scheduler.states[job] = kept  # it is seen again: the count starts anew
    orchestrator.step()
    del world.scheduler.states[job]
    orchestrator.step()
    world.clock.sleep(CLUSTER.lost_after_s - 1)
    orchestrator.step()
    assert world.reporter.verdicts == []
    world.clock.sleep(1)
    orchestrator.step()
    assert [verdict.outcome for _, verdict in world.reporter.verdicts] == [Outcome.LOST]


def test_a_scheduler_that_cannot_be_asked_decides_nothing(world: World) -> None:
    orchestrator, _ = world.one_job()
    world.scheduler.poll_error = SchedulerError("slurm_load_jobs error: Unable to contact slurm controller")
    for _ in range(100):
        world.clock.sleep(60)
        orchestrator.step()
    assert world.events(Ended) == []
    assert len(world.scheduler.by_name) == 1
    assert len([note for note in world.reporter.notes if "cannot be asked" in note]) == 1, "said once, not every time"


def test_a_task_that_began_does_not_count_as_cancelled_while_it_waited_whatever_is_inferred_from_its_array(
    world: World,
) -> None:
    orchestrator, job = world.one_job()
    world.scheduler.say(job, "CANCELLED", started_at=None, is_inferred=True)
    world.launched(job)
    (action,) = world.look_twice(orchestrator).actions
    assert action.kind is ActionKind.WAIT, "nothing is known of it: accounting may lag"
    world.scheduler.say(job, "COMPLETED", exit_code=0)
    assert world.look_twice(orchestrator).actions[0].outcome is Outcome.TRAINER_ERROR


def _logged(state: str, ended_at: float = 1010.0) -> JobReport:
    return JobReport(state=state, phase=Phase.ENDED, reason="as its log has it", ended_at=ended_at)


@pytest.mark.parametrize(
    ("word", "outcome"),
    [
        ("OUT_OF_MEMORY", Outcome.OOM_HOST),
        ("TIMEOUT", Outcome.TIMEOUT),
        ("PREEMPTED", Outcome.PREEMPTED),
        ("NODE_FAIL", Outcome.NODE_FAIL),
        ("CANCELLED", Outcome.CANCELLED),
    ],
)
def test_a_job_that_the_scheduler_has_forgotten_has_the_outcome_that_slurm_wrote_into_its_log(
    world: World, word: str, outcome: Outcome
) -> None:
    orchestrator, job = world.one_job()
    world.launched(job)
    key = world.scheduler.keys[job]
    world.run_dir.rank_errors[key] = [rank_error(ErrorClass.STOPPED, rank=None, message="stopped by SIGTERM")]
    world.scheduler.logs[job] = _logged(word)
    del world.scheduler.states[job]
    world.look_twice(orchestrator, CLUSTER.lost_after_s)
    shown = "cancelled, by whom is not known" if outcome is Outcome.CANCELLED else word
    assert world.reporter.verdicts[0][1] == Verdict(outcome=outcome, reason=f"{shown} (as its log has it) on n1")
    (ended,) = world.events(Ended)
    assert ended.gpu_seconds == 10.0, "the launcher's start, the log's end"


def test_a_job_that_failed_by_sigkill_has_the_outcome_in_its_log(world: World) -> None:
    orchestrator, job = world.one_job()
    world.launched(job)
    world.scheduler.logs[job] = _logged("OUT_OF_MEMORY")
    world.scheduler.say(job, "FAILED", nodes=("n1",))
    now = world.look_twice(orchestrator)
    assert kinds(now) == [ActionKind.EXPLAINED]
    assert now.actions[0].outcome is Outcome.OOM_HOST
    assert world.events(Ended)[0].gpu_seconds == 100.0, "the scheduler's own times come first"


def test_log_lines_about_an_earlier_run_or_a_completed_job_do_not_count(world: World) -> None:
    orchestrator = world.begun()
    requeued, completed = world.scheduler.live_jobs()
    for job, state in ((requeued, "FAILED"), (completed, "COMPLETED")):
        world.launched(job, restart=1)
        world.scheduler.logs[job] = _logged("OUT_OF_MEMORY", 990.0 if job == requeued else 1010.0)
        world.scheduler.say(job, state, exit_code=1 if job == requeued else 0, nodes=("n1",))
    world.look_twice(orchestrator)
    assert [verdict.outcome for _, verdict in world.reporter.verdicts] == [Outcome.TRAINER_ERROR] * 2
