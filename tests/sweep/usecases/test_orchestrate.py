from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from sweep.core.attempt import (
    OUTCOME_RULES,
    AttemptKey,
    ErrorClass,
    JobReport,
    JobRun,
    Outcome,
    Phase,
    RankError,
    Verdict,
)
from sweep.core.cancel import held_back
from sweep.core.ledger import CancelRequested, Ended, Event, Refused, Released, Requeued, Reserved, Skipped, Submitted
from sweep.core.plan import Action, ActionKind, decide
from sweep.core.policy import Policy
from sweep.core.record import AttemptFile, Result
from sweep.core.submission import Submission
from sweep.ports import SchedulerError, SchedulerUnreachableError, SubmissionRejectedError, SubmissionUncertainError
from sweep.usecases.orchestrate import Orchestrator, exit_code
from tests.fakes import Crash, FakeScheduler, result_of, tiny_cell
from tests.sweep.usecases.conftest import CLUSTER, World

from sweep.core.cell import cell_id  # isort: skip


def _one_cell(world: World) -> None:
    world.cells = {cell_id(cell): cell for cell in [tiny_cell(nodes=1)]}


def _events(world: World, kind: type) -> list:
    return [event for event in world.ledger.events() if isinstance(event, kind)]


def _rank_error(error_class: ErrorClass, **changes: object) -> RankError:
    values = {"rank": 0, "node_rank": 0, "time": 1.0, "error_class": error_class, "message": "boom", **changes}
    return RankError(**values)  # type: ignore[arg-type]  # assembled from keywords


def test_every_cell_is_submitted_once_and_ends_measured(world: World) -> None:
    orchestrator = world.run_to_the_end()
    kinds = [action.kind for action in orchestrator.snapshot().actions]
    assert kinds == [ActionKind.DONE, ActionKind.DONE]
    assert exit_code(orchestrator.snapshot()) == 0
    assert len(world.scheduler.by_name) == 2
    assert [type(event) for event in world.ledger.events()][:2] == [Reserved, Submitted]


def test_cells_with_the_same_resources_go_out_in_one_submission(world: World) -> None:
    cells = [tiny_cell(nodes=1), tiny_cell(nodes=1, seq_len=64), tiny_cell(nodes=2), tiny_cell(nodes=1, seq_len=96)]
    world.cells = {cell_id(cell): cell for cell in cells}
    world.orchestrator().step()
    assert sorted(len(jobs) for jobs in world.scheduler.by_name.values()) == [1, 3]


def test_a_look_at_which_nothing_happened_works_nothing_out_anew(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 10,000 cells that is what a watcher's processor time goes into."""
    world.policy = replace(world.policy, max_concurrent_jobs=1)
    orchestrator = world.orchestrator()
    orchestrator.step()
    worked_out: list[int] = []

    def counted(cells: Iterable[str], **given: object) -> list[Action]:
        worked_out.append(1)
        return decide(cells, **given)  # type: ignore[arg-type]  # handed on

    monkeypatch.setattr("sweep.usecases.orchestrate.decide", counted)
    world.clock.sleep(CLUSTER.poll_interval_s)
    now = orchestrator.step()
    assert worked_out == []
    (job,) = world.scheduler.live_jobs()
    world.finish(job)
    assert orchestrator.step().actions != now.actions
    assert worked_out


def test_a_second_run_repeats_nothing(world: World) -> None:
    world.run_to_the_end()
    before = len(world.ledger.lines)
    again = world.orchestrator()
    assert again.step().is_over
    assert len(world.ledger.lines) == before
    assert len(world.scheduler.by_name) == 2


def test_a_run_taken_up_by_another_process_doubles_no_running_job(world: World) -> None:
    world.orchestrator().step()
    jobs = world.scheduler.live_jobs()
    for job in jobs:
        world.scheduler.say(job, "RUNNING")
    heir = world.orchestrator()
    heir.step()
    assert world.scheduler.live_jobs() == jobs
    for job in jobs:
        world.finish(job)
    assert exit_code(heir.step()) == 0


@pytest.mark.parametrize("state", ["NODE_FAIL", "PREEMPTED"])
def test_a_job_that_the_cluster_took_away_is_retried_as_a_new_attempt(world: World, state: str) -> None:
    _one_cell(world)
    orchestrator = world.orchestrator()
    orchestrator.step()
    (job,) = world.scheduler.live_jobs()
    world.scheduler.say(job, state)
    world.clock.sleep(CLUSTER.result_grace_s)
    orchestrator.step()
    world.clock.sleep(CLUSTER.result_grace_s)
    orchestrator.step()
    (again,) = world.scheduler.live_jobs()
    assert world.scheduler.keys[again].attempt == 2
    assert world.reporter.verdicts[0][1].outcome is Outcome(state)


def test_a_result_counts_although_the_job_was_preempted_after_it(world: World) -> None:
    _one_cell(world)
    orchestrator = world.orchestrator()
    orchestrator.step()
    (job,) = world.scheduler.live_jobs()
    world.finish(job, state="PREEMPTED")
    assert orchestrator.step().is_over
    assert world.reporter.verdicts[0][1].outcome is Outcome.SUCCEEDED


def test_a_trainer_error_is_shown_with_its_cause_and_not_retried(world: World) -> None:
    _one_cell(world)
    orchestrator = world.orchestrator()
    orchestrator.step()
    (job,) = world.scheduler.live_jobs()
    world.run_dir.rank_errors[world.scheduler.keys[job]] = [
        _rank_error(ErrorClass.COMMUNICATION, rank=1, time=0.5),
        _rank_error(ErrorClass.EXCEPTION, rank=0, time=1.0, message="ValueError: no such thing"),
    ]
    world.scheduler.say(job, "FAILED", exit_code=1)
    now = orchestrator.step()
    assert now.is_over
    assert now.actions[0].kind is ActionKind.GIVE_UP
    assert "rank 0: ValueError: no such thing" in now.actions[0].reason
    assert exit_code(now) == 1


def test_out_of_memory_is_a_finding_that_is_explained_and_never_retried(world: World) -> None:
    _one_cell(world)
    orchestrator = world.orchestrator()
    orchestrator.step()
    (job,) = world.scheduler.live_jobs()
    world.run_dir.rank_errors[world.scheduler.keys[job]] = [_rank_error(ErrorClass.OOM_DEVICE)]
    world.scheduler.say(job, "FAILED")
    now = orchestrator.step()
    assert [action.kind for action in now.actions] == [ActionKind.EXPLAINED]
    assert exit_code(now) == 0


def test_a_trainer_that_exits_zero_without_a_result_has_not_succeeded(world: World) -> None:
    _one_cell(world)
    orchestrator = world.orchestrator()
    orchestrator.step()
    (job,) = world.scheduler.live_jobs()
    world.scheduler.say(job, "COMPLETED", exit_code=0)
    assert not orchestrator.step().is_over, "the file system may lag: the result has its grace"
    world.clock.sleep(CLUSTER.result_grace_s)
    now = orchestrator.step()
    assert now.actions[0].outcome is Outcome.TRAINER_ERROR
    assert "exit code 0) without a result" in now.actions[0].reason


def test_a_result_that_appears_a_little_late_counts(world: World) -> None:
    _one_cell(world)
    orchestrator = world.orchestrator()
    orchestrator.step()
    (job,) = world.scheduler.live_jobs()
    world.scheduler.say(job, "COMPLETED")
    orchestrator.step()
    world.clock.sleep(CLUSTER.result_grace_s - 1)
    world.finish(job)
    assert exit_code(orchestrator.step()) == 0


def test_a_trainer_that_hangs_after_its_result_is_ended_and_its_result_counts(world: World) -> None:
    _one_cell(world)
    orchestrator = world.orchestrator()
    orchestrator.step()
    (job,) = world.scheduler.live_jobs()
    world.finish(job, state="RUNNING")
    assert not orchestrator.step().is_over
    assert world.scheduler.cancelled == []
    world.clock.sleep(CLUSTER.hang_grace_s)
    assert not orchestrator.step().is_over
    assert world.scheduler.cancelled == [job]
    assert exit_code(orchestrator.step()) == 0


def test_a_damaged_result_is_no_success_and_the_cell_says_what_is_wrong_with_it(world: World) -> None:
    _one_cell(world)
    orchestrator = world.orchestrator()
    orchestrator.step()
    (job,) = world.scheduler.live_jobs()
    world.run_dir.result_problems[world.scheduler.keys[job]] = "result.json is not whole JSON"
    world.scheduler.say(job, "COMPLETED")
    orchestrator.step()
    world.clock.sleep(CLUSTER.result_grace_s)
    assert "result.json is not whole JSON" in orchestrator.step().actions[0].reason


def test_a_job_that_nobody_knows_is_lost_only_after_a_long_unbroken_absence(world: World) -> None:
    _one_cell(world)
    orchestrator = world.orchestrator()
    orchestrator.step()
    (job,) = world.scheduler.live_jobs()
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


def test_a_job_under_another_name_is_watched_once_it_has_claimed_its_submission(world: World) -> None:
    _one_cell(world)
    orchestrator = world.orchestrator()
    orchestrator.step()
    ((name, (job,)),) = world.scheduler.by_name.items()
    world.scheduler.say(job, "RUNNING")
    world.scheduler.not_ours.add(job)
    world.run_dir.claims[name] = job
    for _ in range(3):
        world.clock.sleep(CLUSTER.lost_after_s)
        orchestrator.step()
    assert world.reporter.verdicts == []
    world.finish(job)
    assert orchestrator.step().is_over
    assert [event.outcome for event in _events(world, Ended)] == [Outcome.SUCCEEDED]


def test_what_seems_to_be_anothers_job_counts_as_lost_only_once_it_cannot_begin_any_more(world: World) -> None:
    """It may be ours all the same: then it would run beside the next attempt's."""
    _one_cell(world)
    orchestrator = world.orchestrator()
    orchestrator.step()
    ((name, (job,)),) = world.scheduler.by_name.items()
    world.scheduler.not_ours.add(job)
    orchestrator.step()
    world.clock.sleep(CLUSTER.lost_after_s)
    orchestrator.step()
    assert [event.outcome for event in _events(world, Ended)] == [Outcome.LOST]
    assert world.run_dir.claims[name] == "", "and its job will find that"


def test_the_next_owner_of_an_id_is_not_taken_for_a_job_whose_end_its_launcher_has_written(world: World) -> None:
    _one_cell(world)
    orchestrator = world.orchestrator()
    orchestrator.step()
    ((name, (job,)),) = world.scheduler.by_name.items()
    world.scheduler.say(job, "RUNNING")
    world.run_dir.claims[name] = job
    orchestrator.step()
    _launched(world, job, ended_at=world.clock.now(), exit_code=1)
    world.scheduler.not_ours.add(job)
    orchestrator.step()
    world.clock.sleep(CLUSTER.lost_after_s)
    orchestrator.step()
    assert [event.outcome for event in _events(world, Ended)] == [Outcome.TRAINER_ERROR]


def test_a_scheduler_that_cannot_be_asked_decides_nothing(world: World) -> None:
    _one_cell(world)
    orchestrator = world.orchestrator()
    orchestrator.step()
    world.scheduler.poll_error = SchedulerError("slurm_load_jobs error: Unable to contact slurm controller")
    for _ in range(100):
        world.clock.sleep(60)
        orchestrator.step()
    assert _events(world, Ended) == []
    assert len(world.scheduler.by_name) == 1
    assert len([note for note in world.reporter.notes if "cannot be asked" in note]) == 1, "said once, not every time"


def test_one_poll_asks_once_whatever_the_number_of_jobs(world: World) -> None:
    cells = [tiny_cell(nodes=1, seq_len=32 * i) for i in range(1, 40)]
    world.cells = {cell_id(cell): cell for cell in cells}
    orchestrator = world.orchestrator()
    orchestrator.step()
    before = world.scheduler.polls
    orchestrator.step()
    assert world.scheduler.polls == before + 1


def test_a_refused_submission_shows_the_schedulers_own_words_and_is_not_repeated(world: World) -> None:
    _one_cell(world)
    world.scheduler.submit_error = SubmissionRejectedError("invalid partition specified: debgu")
    orchestrator = world.orchestrator()
    now = orchestrator.step()
    assert now.is_over
    assert now.actions[0].outcome is Outcome.REJECTED_BY_SCHEDULER
    assert "invalid partition specified: debgu" in now.actions[0].reason
    assert len(_events(world, Refused)) == 1
    assert exit_code(now) == 1


def test_a_result_that_appears_while_others_run_counts_at_the_end_of_the_run(world: World) -> None:
    orchestrator = world.orchestrator()
    orchestrator.step()
    early, late = world.scheduler.live_jobs()
    world.run_dir.rank_errors[world.scheduler.keys[late]] = [_rank_error(ErrorClass.EXCEPTION)]
    world.scheduler.say(late, "FAILED")
    assert [action.kind for action in orchestrator.step().actions].count(ActionKind.GIVE_UP) == 1
    world.run_dir.results[world.scheduler.keys[late]] = result_of(world.scheduler.keys[late])
    world.finish(early)
    now = orchestrator.step()
    assert now.is_over
    assert exit_code(now) == 0


def test_what_waited_behind_a_result_that_appears_at_the_end_goes_out(world: World) -> None:
    world.policy = Policy()
    orchestrator = world.orchestrator()
    orchestrator.step()
    (canary,) = world.scheduler.live_jobs()
    world.scheduler.say(canary, "COMPLETED")
    orchestrator.step()
    world.clock.sleep(CLUSTER.result_grace_s)
    key = world.scheduler.keys[canary]
    look = world.run_dir.result

    def after_it_was_judged(wanted: AttemptKey) -> tuple[Result | None, str]:
        is_judged = any(event.key == key for event in _events(world, Ended))
        return (result_of(key), "") if wanted == key and is_judged else look(wanted)

    world.run_dir.result = after_it_was_judged  # type: ignore[method-assign]  # a file system that lags
    now = orchestrator.step()
    assert [action.kind for action in now.actions] == [ActionKind.DONE, ActionKind.WAIT]


def test_why_cells_were_not_tried_is_written_down_although_nobody_watches(world: World) -> None:
    world.policy = Policy()
    world.orchestrator().step()
    (canary,) = world.scheduler.live_jobs()
    world.run_dir.rank_errors[world.scheduler.keys[canary]] = [_rank_error(ErrorClass.EXCEPTION)]
    world.scheduler.say(canary, "FAILED")
    assert world.orchestrator().step().is_over
    (skipped,) = _events(world, Skipped)
    assert (skipped.kind, len(skipped.repeats)) == ("paused", 1)
    world.orchestrator().step()
    assert len(_events(world, Skipped)) == 1, "it is said once"


def test_a_submit_limit_holds_cells_back_and_later_takes_them(world: World) -> None:
    _one_cell(world)
    world.scheduler.submit_error = SubmissionRejectedError("QOSMaxSubmitJobPerUserLimit", is_transient=True)
    orchestrator = world.orchestrator()
    assert not orchestrator.step().is_over
    orchestrator.step()
    assert len(_events(world, Reserved)) == 1, "it waits before it asks again"
    world.scheduler.submit_error = None
    world.clock.sleep(5)
    orchestrator.step()
    (job,) = world.scheduler.live_jobs()
    world.finish(job)
    assert exit_code(orchestrator.step()) == 0
    assert len(_events(world, Reserved)) == 1


def test_a_submission_that_was_taken_although_sbatch_timed_out_is_found_by_name_and_not_doubled(world: World) -> None:
    _one_cell(world)
    world.scheduler.submit_error = SubmissionUncertainError("Socket timed out on send/recv operation")
    world.scheduler.takes_it_all_the_same = True
    orchestrator = world.orchestrator()
    orchestrator.step()
    world.scheduler.submit_error = None
    world.clock.sleep(10)
    orchestrator.step()
    (job,) = world.scheduler.live_jobs()
    world.finish(job)
    assert exit_code(orchestrator.step()) == 0
    assert len(world.scheduler.by_name) == 1


def test_a_submission_that_never_arrived_is_released_after_a_grace_and_submitted_again(world: World) -> None:
    _one_cell(world)
    world.scheduler.submit_error = SubmissionUncertainError("Socket timed out on send/recv operation")
    orchestrator = world.orchestrator()
    orchestrator.step()
    world.scheduler.submit_error = None
    for _ in range(5):
        world.clock.sleep(10)
        orchestrator.step()
    assert world.scheduler.by_name == {}, "an sbatch may still be under way: no second one yet"
    world.clock.sleep(60)
    orchestrator.step()
    (job,) = world.scheduler.live_jobs()
    assert world.scheduler.keys[job].attempt == 2, "a reserved number is not used again"


@pytest.mark.parametrize("is_there", [True, False])
def test_a_result_that_appears_after_its_attempt_was_judged_is_taken_before_a_retry_goes_out(
    world: World, *, is_there: bool
) -> None:
    _one_cell(world)
    orchestrator = world.orchestrator()
    orchestrator.step()
    (job,) = world.scheduler.live_jobs()
    key = world.scheduler.keys[job]
    del world.scheduler.states[job]
    orchestrator.step()
    world.clock.sleep(CLUSTER.lost_after_s)
    assert orchestrator.step().actions[0].outcome is Outcome.LOST
    if is_there:
        world.run_dir.results[key] = result_of(key)
    world.clock.sleep(3600)
    now = orchestrator.step()
    if is_there:
        assert exit_code(now) == 0
        assert [event.outcome for event in _events(world, Ended)] == [Outcome.LOST, Outcome.SUCCEEDED]
    assert len(_events(world, Reserved)) == (1 if is_there else 2)


def test_a_new_process_takes_what_appeared_since_a_cell_was_given_up(world: World) -> None:
    _one_cell(world)
    orchestrator = world.orchestrator()
    orchestrator.step()
    (job,) = world.scheduler.live_jobs()
    key = world.scheduler.keys[job]
    world.scheduler.say(job, "COMPLETED", exit_code=0)
    orchestrator.step()
    world.clock.sleep(CLUSTER.result_grace_s)
    assert orchestrator.step().actions[0].kind is ActionKind.GIVE_UP
    world.run_dir.results[key] = result_of(key)
    assert exit_code(world.orchestrator().step()) == 0
    assert len(_events(world, Reserved)) == 1


def test_a_cancel_request_ends_the_cell_and_holds_it(world: World) -> None:
    orchestrator = world.orchestrator()
    orchestrator.step()
    target = next(iter(world.cells))
    world.run_dir.requests["cancel-1"] = [target]
    now = orchestrator.step()
    world.clock.sleep(CLUSTER.result_grace_s)
    now = orchestrator.step()
    by_cell = {action.cell_id: action for action in now.actions}
    assert by_cell[target].kind is ActionKind.HOLD
    assert len(world.scheduler.cancelled) == 1
    assert len(_events(world, CancelRequested)) == 1
    assert world.run_dir.requests == {}
    assert sum(action.kind is ActionKind.WAIT for action in now.actions) == 1, "the other cell goes on"


def test_a_held_cell_runs_again_only_when_asked(world: World) -> None:
    _one_cell(world)
    orchestrator = world.orchestrator()
    orchestrator.step()
    orchestrator.reconciler.cancel(list(world.cells))
    orchestrator.step()
    world.clock.sleep(CLUSTER.result_grace_s)
    assert orchestrator.step().is_over
    assert world.orchestrator().step().is_over
    asked = world.orchestrator()
    asked.reopen([Outcome.CANCELLED])
    assert not asked.step().is_over
    (job,) = world.scheduler.live_jobs()
    world.finish(job)
    assert exit_code(asked.step()) == 0


def test_a_cancel_holds_back_what_is_not_in_the_queue_yet(world: World) -> None:
    """One runs, one waits for a place in the queue, one for its retry."""
    cells = [tiny_cell(seq_len=32 * number) for number in (1, 2, 3)]
    running, retried, waiting = world.cells = {cell_id(cell): cell for cell in cells}
    world.policy = replace(world.policy, max_concurrent_jobs=2)
    orchestrator = world.orchestrator()
    orchestrator.step()
    key_of = world.scheduler.keys
    (failed,) = [job for job in world.scheduler.live_jobs() if key_of[job].cell_id == retried]
    world.run_dir.rank_errors[key_of[failed]] = [_rank_error(ErrorClass.COMMUNICATION)]
    world.scheduler.say(failed, "FAILED")
    world.policy = replace(world.policy, max_concurrent_jobs=1)
    orchestrator = world.orchestrator()
    orchestrator.step()
    world.clock.sleep(CLUSTER.result_grace_s)
    assert [action.kind for action in orchestrator.step().actions] == [
        ActionKind.WAIT, ActionKind.LATER, ActionKind.LATER,
    ]  # fmt: skip
    world.run_dir.requests["r"] = list(world.cells)
    orchestrator.step()
    world.clock.sleep(CLUSTER.result_grace_s)
    now = orchestrator.step()
    assert now.is_over
    assert {action.kind for action in now.actions} == {ActionKind.HOLD}
    assert exit_code(now) == 1
    reasons = {action.cell_id: action.reason for action in now.actions}
    assert reasons[waiting] == "cancelled by the user before it was submitted"
    assert reasons[retried].startswith("cancelled by the user before it was submitted again; before that COMM_FAILURE")
    assert "cancelled by the user" in reasons[running]
    (event,) = _events(world, CancelRequested)
    assert held_back([event], orchestrator.session.history, OUTCOME_RULES) == ((retried, 1), (waiting, 1))
    orchestrator.reconciler.cancel(world.cells)
    assert len(_events(world, CancelRequested)) == 1, "nothing is left to cancel"
    asked = world.orchestrator()
    assert asked.step().is_over
    asked.reopen([Outcome.CANCELLED])
    kinds = [action.kind for action in asked.step().actions]
    assert kinds.count(ActionKind.HOLD) == 0
    assert kinds.count(ActionKind.WAIT) == 1


def test_a_cancel_leaves_what_is_measured_or_explained_as_it_is(world: World) -> None:
    cells = [tiny_cell(seq_len=32 * number) for number in (1, 2, 3)]
    measured, *_ = world.cells = {cell_id(cell): cell for cell in cells}
    orchestrator = world.orchestrator()
    orchestrator.step()
    for job, key in list(world.scheduler.keys.items()):
        if key.cell_id == measured:
            world.finish(job)
        else:
            world.run_dir.rank_errors[key] = [_rank_error(ErrorClass.OOM_DEVICE)]
            world.scheduler.say(job, "FAILED")
    before = orchestrator.step().actions
    orchestrator.reconciler.cancel(world.cells)
    assert orchestrator.step().actions == before
    assert {action.kind for action in before} == {ActionKind.DONE, ActionKind.EXPLAINED}
    assert held_back(_events(world, CancelRequested), orchestrator.session.history, OUTCOME_RULES) == ()


def test_a_cancel_that_the_scheduler_did_not_hear_is_repeated(world: World) -> None:
    _one_cell(world)
    orchestrator = world.orchestrator()
    orchestrator.step()
    (job,) = world.scheduler.live_jobs()
    orchestrator.reconciler.cancel(list(world.cells))
    world.scheduler.say(job, "RUNNING")
    orchestrator.step()
    world.clock.sleep(30)
    orchestrator.step()
    assert world.scheduler.cancelled == [job, job]


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
    succeeded = [event.key for event in _events(world, Ended) if event.outcome is Outcome.SUCCEEDED]
    assert sorted({(key.cell_id, key.repeat) for key in succeeded}) == sorted((name, 1) for name in world.cells)
    assert len(succeeded) == len(world.cells), "none ran twice to success"
    assert len(world.scheduler.keys) == len(world.cells), "no job was submitted for what was running or done"


def test_a_crash_between_sbatch_and_the_recording_of_its_job_id_is_healed_by_the_name(world: World) -> None:
    _one_cell(world)
    world.scheduler.submit_error = Crash()
    world.scheduler.takes_it_all_the_same = True
    with pytest.raises(Crash):
        world.orchestrator().step()
    world.scheduler.submit_error = None
    heir = world.orchestrator()
    heir.step()
    assert len(world.scheduler.keys) == 1
    world.finish(next(iter(world.scheduler.keys)))
    assert exit_code(heir.step()) == 0


@pytest.mark.parametrize("cells", [1, 3])
def test_a_job_that_the_scheduler_has_forgotten_is_known_by_its_own_claim(world: World, cells: int) -> None:
    """No accounting, and the crash between sbatch and its record was long ago."""
    made = [tiny_cell(seq_len=32 * number) for number in range(1, cells + 1)]
    world.cells = {cell_id(cell): cell for cell in made}
    world.scheduler.submit_error = Crash()
    with pytest.raises(Crash):
        world.orchestrator().step()
    world.scheduler.submit_error = None
    (submission,) = world.run_dir.submissions.values()
    world.run_dir.claims[submission.name] = "77"
    for key in submission.tasks:
        world.run_dir.results[key] = result_of(key)
    heir = world.orchestrator()
    assert exit_code(heir.step()) == 0
    assert world.scheduler.keys == {}, "nothing is run a second time"
    (submitted,) = _events(world, Submitted)
    assert submitted.jobs == (("77",) if cells == 1 else ("77_0", "77_1", "77_2"))


def _reserved_and_never_heard_of(world: World) -> str:
    """One submission of a process that died before its scheduler answered; gives its name."""
    world.scheduler.submit_error = Crash()
    with pytest.raises(Crash):
        world.orchestrator().step()
    world.scheduler.submit_error = None
    (name,) = world.run_dir.submissions
    return name


def test_a_submission_is_withdrawn_before_it_is_given_back_so_that_no_late_job_of_it_begins(world: World) -> None:
    _one_cell(world)
    name = _reserved_and_never_heard_of(world)
    heir = world.orchestrator()
    heir.step()
    assert world.run_dir.claims == {}, "it may still arrive"
    world.clock.sleep(60)
    heir.step()
    assert world.run_dir.claims == {name: ""}
    assert [event.submission for event in _events(world, Released)] == [name]


def test_a_job_that_begins_at_the_moment_in_which_it_would_be_given_back_is_taken_up(world: World) -> None:
    """It is claimed after the look for it, and before the withdrawal."""
    _one_cell(world)
    _reserved_and_never_heard_of(world)
    heir = world.orchestrator()
    heir.step()
    world.clock.sleep(60)
    world.run_dir.withdraw = lambda _: "55"  # type: ignore[method-assign]
    heir.step()
    assert [event.jobs for event in _events(world, Submitted)] == [("55",)]
    assert _events(world, Released) == []
    assert len(world.run_dir.submissions) == 1


def test_of_a_submission_that_is_in_the_queue_twice_the_job_that_began_it_is_watched(world: World) -> None:
    _one_cell(world)
    orchestrator = world.orchestrator()
    orchestrator.step()
    ((name, (job,)),) = world.scheduler.by_name.items()
    world.run_dir.claims[name] = "77"
    world.scheduler.keys["77"] = world.scheduler.keys[job]
    world.scheduler.say("77", "RUNNING")
    world.scheduler.say(job, "FAILED", exit_code=4)
    world.clock.sleep(CLUSTER.result_grace_s)
    assert not orchestrator.step().is_over
    world.finish("77")
    assert exit_code(orchestrator.step()) == 0
    assert [event.jobs for event in _events(world, Submitted)] == [(job,), ("77",)]


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_late_job_of_a_submission_that_was_being_given_back_is_cancelled_and_not_taken_up(
    world: World, *, cancelled: bool
) -> None:
    """A process died, or its disk was full, between the claim for nobody and the line that says so."""
    _one_cell(world)
    name = _reserved_and_never_heard_of(world)
    world.run_dir.claims[name] = ""
    world.scheduler.by_name[name] = ("77",)
    world.scheduler.say("77", "PENDING")
    heir = world.orchestrator()
    if cancelled:
        heir.reconciler.cancel(world.cells)
    world.scheduler.cancel_error = SchedulerError("away")
    heir.step()
    assert not _events(world, Released), "it is tried again"
    world.scheduler.cancel_error = None
    heir.step()
    assert world.scheduler.cancelled == ["77"]
    assert "77" not in [job for event in _events(world, Submitted) for job in event.jobs]
    if cancelled:
        assert [event.outcome for event in _events(world, Ended)] == [Outcome.CANCELLED]
    else:
        assert [event.submission for event in _events(world, Released)] == [name]
        assert len(world.scheduler.keys) == 1, "another attempt is submitted"


def test_what_the_user_cancelled_is_no_job_only_if_it_could_be_withdrawn(world: World) -> None:
    _one_cell(world)
    name = _reserved_and_never_heard_of(world)
    heir = world.orchestrator()
    heir.reconciler.cancel(world.cells)
    heir.step()
    world.clock.sleep(60)
    world.run_dir.withdraw = lambda _: "55"  # type: ignore[method-assign]
    heir.step()
    assert _events(world, Ended) == []
    assert world.ledger.events()[-1] == Submitted(time=world.clock.now(), submission=name, jobs=("55",))


def test_a_process_that_lost_the_run_hands_nothing_over(world: World) -> None:
    """Suspended between its reservation and sbatch, it has an heir that gave the reservation back."""
    _one_cell(world)
    orchestrator = world.orchestrator()
    append = world.ledger.append

    def suspended(event: Event) -> None:
        append(event)
        orchestrator.session.check_lease = _lost

    world.ledger.append = suspended  # type: ignore[method-assign]
    with pytest.raises(LookupError):
        orchestrator.step()
    assert world.scheduler.keys == {}


def _lost() -> None:
    raise LookupError("it is held by another")


def test_a_submission_whose_ledger_line_was_lost_is_won_back_from_its_file(world: World) -> None:
    _one_cell(world)
    world.orchestrator().step()
    world.ledger.lines.clear()
    heir = world.orchestrator()
    heir.step()
    assert len(world.scheduler.keys) == 1
    assert any("no ledger line" in note for note in world.reporter.notes)


def test_repeats_are_run_each_once(world: World) -> None:
    world.repeats = 3
    orchestrator = world.run_to_the_end()
    assert [action.kind for action in orchestrator.snapshot().actions] == [ActionKind.DONE] * 6
    assert len(world.run_dir.results) == 6


def test_gpu_seconds_of_an_attempt_are_its_time_times_its_gpus(world: World) -> None:
    world.run_to_the_end()
    used = {event.key.cell_id: event.gpu_seconds for event in _events(world, Ended)}
    assert {world.cells[name].gpus: seconds for name, seconds in used.items()} == {1: 100.0, 2: 200.0}


def test_what_a_job_used_before_it_was_requeued_counts_too(world: World) -> None:
    """Once with its end, and once killed: then it lasted until the last file that it wrote."""
    _one_cell(world)
    orchestrator = world.orchestrator()
    orchestrator.step()
    (job,) = world.scheduler.live_jobs()
    key = world.scheduler.keys[job]
    told = {"key": key, "job_id": job, "hosts": ("node1",), "pid": 5}
    world.run_dir.earlier[key] = [
        AttemptFile(**told, restart=0, started_at=10.0, ended_at=25.0),
        AttemptFile(**told, restart=1, started_at=60.0, ended_at=None),
    ]
    world.run_dir.signs[key, 1] = 70.0
    world.finish(job)
    orchestrator.step()
    (ended,) = _events(world, Ended)
    assert ended.gpu_seconds == 15 + 10 + 100


def test_what_a_job_used_before_it_was_requeued_is_what_accounting_says(world: World) -> None:
    _one_cell(world)
    orchestrator = world.orchestrator()
    orchestrator.step()
    (job,) = world.scheduler.live_jobs()
    key = world.scheduler.keys[job]
    killed = AttemptFile(key=key, job_id=job, hosts=("node1",), pid=5, restart=0, started_at=10.0)
    world.run_dir.earlier[key] = [killed]
    world.scheduler.runs[job] = [
        JobRun(started_at=9.0, ended_at=29.0), JobRun(started_at=100.0, ended_at=None)
    ]  # fmt: skip
    for state in ("RUNNING", "RUNNING"):
        world.scheduler.say(job, state, started_at=100.0)
        orchestrator.step()
    assert world.scheduler.asked_for_runs == 1, "asked again only where something has changed"
    assert world.ledger.events()[-1] == Requeued(time=world.clock.now(), key=key, gpu_seconds=20.0)
    world.finish(job)
    orchestrator.step()
    (ended,) = _events(world, Ended)
    assert ended.gpu_seconds == 20 + 100


def test_a_job_that_is_over_within_the_second_in_which_it_began_was_not_requeued(world: World) -> None:
    """Slurm gives whole seconds, and still has it as COMPLETING."""
    _one_cell(world)
    orchestrator = world.orchestrator()
    orchestrator.step()
    (job,) = world.scheduler.live_jobs()
    _launched(world, job, started_at=100.3, ended_at=100.4)
    world.scheduler.say(job, "COMPLETING", started_at=100.0)
    orchestrator.step()
    assert _events(world, Requeued) == []


def test_what_requeued_jobs_used_that_end_together_is_asked_for_once(world: World) -> None:
    orchestrator = world.orchestrator()
    orchestrator.step()
    jobs = world.scheduler.live_jobs()
    for number, job in enumerate(jobs, 1):
        key = world.scheduler.keys[job]
        killed = AttemptFile(key=key, job_id=job, hosts=("node1",), pid=5, restart=0, started_at=10.0)
        world.run_dir.earlier[key] = [killed]
        world.scheduler.runs[job] = [JobRun(started_at=9.0, ended_at=9.0 + number), JobRun(started_at=100.0)]
        world.finish(job)
    orchestrator.step()
    assert world.scheduler.asked_for_runs == 1
    used = {event.key: event.gpu_seconds for event in _events(world, Ended)}
    gpus = {key: world.cells[key.cell_id].gpus for key in used}
    assert [used[world.scheduler.keys[job]] for job in jobs] == [
        (number + 100) * gpus[world.scheduler.keys[job]] for number, job in enumerate(jobs, 1)
    ]


def test_an_attempt_that_ended_before_it_began_used_nothing(world: World) -> None:
    _one_cell(world)
    orchestrator = world.orchestrator()
    orchestrator.step()
    (job,) = world.scheduler.live_jobs()
    world.scheduler.say(job, "CANCELLED by 1000", started_at=None)
    orchestrator.step()
    world.clock.sleep(CLUSTER.result_grace_s)
    orchestrator.step()
    assert [event.gpu_seconds for event in _events(world, Ended)] == [0.0]


def _launched(world: World, job: str, **changes: object) -> None:
    """The launcher of a job wrote its file, and was killed with the job."""
    key = world.scheduler.keys[job]
    values = {"key": key, "job_id": job, "restart": 0, "hosts": ("n1",), "pid": 1, "started_at": 1000.0, **changes}
    world.run_dir.attempt_files[key] = AttemptFile(**values)  # type: ignore[arg-type]  # assembled from keywords


def _said_in_the_log(state: str, ended_at: float = 1010.0) -> JobReport:
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
def test_a_job_that_the_scheduler_has_forgotten_ended_as_it_wrote_into_the_jobs_log(
    world: World, word: str, outcome: Outcome
) -> None:
    _one_cell(world)
    orchestrator = world.orchestrator()
    orchestrator.step()
    (job,) = world.scheduler.live_jobs()
    _launched(world, job)
    key = world.scheduler.keys[job]
    world.run_dir.rank_errors[key] = [_rank_error(ErrorClass.STOPPED, rank=None, message="stopped by SIGTERM")]
    world.scheduler.logs[job] = _said_in_the_log(word)
    del world.scheduler.states[job]
    orchestrator.step()
    world.clock.sleep(CLUSTER.lost_after_s)
    orchestrator.step()
    shown = "cancelled, by whom is not known" if outcome is Outcome.CANCELLED else word
    assert world.reporter.verdicts[0][1] == Verdict(outcome=outcome, reason=f"{shown} (as its log has it) on n1")
    (ended,) = _events(world, Ended)
    assert ended.gpu_seconds == 10.0, "the launcher's start, the log's end"


def test_a_job_that_failed_by_sigkill_ended_as_its_log_says(world: World) -> None:
    _one_cell(world)
    orchestrator = world.orchestrator()
    orchestrator.step()
    (job,) = world.scheduler.live_jobs()
    _launched(world, job)
    world.scheduler.logs[job] = _said_in_the_log("OUT_OF_MEMORY")
    world.scheduler.say(job, "FAILED", nodes=("n1",))
    orchestrator.step()
    world.clock.sleep(CLUSTER.result_grace_s)
    now = orchestrator.step()
    assert [action.kind for action in now.actions] == [ActionKind.EXPLAINED]
    assert now.actions[0].outcome is Outcome.OOM_HOST
    assert _events(world, Ended)[0].gpu_seconds == 100.0, "the scheduler's own times come first"


def test_what_the_log_says_of_an_earlier_run_and_of_a_job_that_completed_does_not_count(world: World) -> None:
    orchestrator = world.orchestrator()
    orchestrator.step()
    requeued, completed = world.scheduler.live_jobs()
    for job, state in ((requeued, "FAILED"), (completed, "COMPLETED")):
        _launched(world, job, restart=1)
        world.scheduler.logs[job] = _said_in_the_log("OUT_OF_MEMORY", 990.0 if job == requeued else 1010.0)
        world.scheduler.say(job, state, exit_code=1 if job == requeued else 0, nodes=("n1",))
    orchestrator.step()
    world.clock.sleep(CLUSTER.result_grace_s)
    orchestrator.step()
    assert [verdict.outcome for _, verdict in world.reporter.verdicts] == [Outcome.TRAINER_ERROR] * 2


def _away() -> SchedulerUnreachableError:
    return SchedulerUnreachableError("Unable to contact slurm controller (connect failure)")


def test_what_never_arrived_is_handed_over_again_as_the_same_attempt(world: World) -> None:
    _one_cell(world)
    orchestrator = world.orchestrator()
    world.scheduler.submit_error = _away()
    for _ in range(20):
        orchestrator.step()
        world.clock.sleep(CLUSTER.poll_interval_s)
    assert not world.scheduler.by_name
    assert [type(event) for event in world.ledger.events()] == [Reserved], "one reservation, no pile of attempts"
    assert world.run_dir.away == (1_000_000.0, "Unable to contact slurm controller (connect failure)")
    assert "not been reached since" in orchestrator.session.contact.describe()
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


def test_what_seemed_never_to_arrive_and_is_there_by_its_name_is_adopted(world: World) -> None:
    _one_cell(world)
    orchestrator = world.orchestrator()
    world.scheduler.submit_error, world.scheduler.takes_it_all_the_same = _away(), True
    orchestrator.step()
    world.scheduler.submit_error = None
    world.clock.sleep(10)
    orchestrator.step()
    assert len(world.scheduler.by_name) == 1
    assert [type(event) for event in world.ledger.events()] == [Reserved, Submitted]


def test_what_is_cancelled_before_it_arrives_is_never_submitted(world: World) -> None:
    _one_cell(world)
    orchestrator = world.orchestrator()
    world.scheduler.submit_error = _away()
    orchestrator.step()
    world.run_dir.requests["please"] = list(world.cells)
    world.scheduler.submit_error = None
    world.clock.sleep(10)
    orchestrator.step()
    now = orchestrator.step()
    assert not world.scheduler.by_name
    assert [action.kind for action in now.actions] == [ActionKind.HOLD]
    assert [verdict.outcome for _, verdict in world.reporter.verdicts] == [Outcome.CANCELLED]


def test_who_leaves_gives_back_what_never_arrived_and_the_next_submits_it_at_once(world: World) -> None:
    _one_cell(world)
    orchestrator = world.orchestrator()
    world.scheduler.submit_error = _away()
    orchestrator.step()
    orchestrator.leave()
    assert [type(event) for event in world.ledger.events()] == [Reserved, Released]
    world.scheduler.submit_error = None
    world.orchestrator().step()
    (job,) = world.scheduler.live_jobs()
    assert world.scheduler.keys[job].attempt == 2
    assert world.run_dir.away is None


def test_a_scheduler_that_is_away_from_the_start_is_an_error_and_nothing_was_reserved(world: World) -> None:
    world.scheduler.site_error = _away()
    with pytest.raises(SchedulerUnreachableError):
        world.orchestrator().step()
    assert world.ledger.lines == []


def test_a_scheduler_that_is_away_while_jobs_are_in_flight_is_waited_for(world: World) -> None:
    world.policy = Policy(canary=False, max_concurrent_jobs=1)
    world.orchestrator().step()
    (job,) = world.scheduler.live_jobs()
    world.scheduler.site_error = world.scheduler.poll_error = _away()
    world.policy = Policy(canary=False)
    heir = world.orchestrator()
    heir.step()
    assert len(world.scheduler.by_name) == 1
    assert world.run_dir.away is not None
    world.scheduler.site_error = world.scheduler.poll_error = None
    world.finish(job)
    heir.step()
    assert len(world.scheduler.by_name) == 2


def _uncertain(world: World, *, taken: bool) -> Orchestrator:
    """Two equal cells went out as an array, sbatch timed out, and then the submission's file was damaged."""
    cells = [tiny_cell(nodes=1), tiny_cell(nodes=1, seq_len=64)]
    world.cells = {cell_id(cell): cell for cell in cells}
    orchestrator = world.orchestrator()
    world.scheduler.submit_error = SubmissionUncertainError("Socket timed out on send/recv operation")
    world.scheduler.takes_it_all_the_same = taken
    orchestrator.step()
    world.scheduler.submit_error = None
    (name,) = world.run_dir.submissions
    world.run_dir.damaged[name] = "submission is not whole JSON"
    return orchestrator


def test_a_submission_whose_file_is_damaged_is_adopted_by_what_the_ledger_knows_of_it(world: World) -> None:
    orchestrator = _uncertain(world, taken=True)
    orchestrator.step()
    (submitted,) = _events(world, Submitted)
    assert submitted.jobs == tuple(world.scheduler.live_jobs())
    assert any("its file is damaged: submission is not whole JSON" in note for note in world.reporter.notes)
    measured, lost = submitted.jobs
    world.finish(measured)
    # Its launcher could not read what to run.
    world.scheduler.say(lost, "FAILED", exit_code=2, nodes=("n1",))
    orchestrator.step()
    world.clock.sleep(CLUSTER.result_grace_s)
    now = orchestrator.step()
    assert [action.kind for action in now.actions] == [ActionKind.DONE, ActionKind.GIVE_UP]
    assert "its submission's file is damaged: submission is not whole JSON" in now.actions[1].reason
    assert len(world.scheduler.by_name) == 1


def test_one_that_never_arrived_is_released_although_its_file_is_damaged(world: World) -> None:
    orchestrator = _uncertain(world, taken=False)
    for _ in range(10):
        orchestrator.step()
        world.clock.sleep(CLUSTER.poll_interval_s)
    assert len(_events(world, Released)) == 1
    jobs = world.scheduler.live_jobs()
    assert [world.scheduler.keys[job].attempt for job in jobs] == [2, 2]


def test_one_that_the_scheduler_has_forgotten_is_known_by_what_its_jobs_wrote_although_its_file_is_damaged(
    world: World,
) -> None:
    orchestrator = _uncertain(world, taken=True)
    jobs = world.scheduler.live_jobs()
    (name,) = world.run_dir.submissions
    world.run_dir.claims[name] = jobs[0].partition("_")[0]
    for job in jobs:
        world.finish(job)
    world.scheduler.by_name.clear()
    world.scheduler.states.clear()
    now = orchestrator.step()
    assert now.is_over
    assert exit_code(now) == 0
    assert world.scheduler.by_name == {}


class _TakesThree(FakeScheduler):
    """Takes three jobs at a time, and says of no limit before it is hit."""

    def submit(self, submission: Submission) -> tuple[str, ...]:
        if len(self.live_jobs()) + len(submission.tasks) > 3:
            raise SubmissionRejectedError("QOSMaxSubmitJobPerUserLimit", is_transient=True)
        return super().submit(submission)


def test_a_limit_that_cannot_be_asked_for_is_found_by_halves_and_leaves_no_pile_of_attempts(world: World) -> None:
    cells = [tiny_cell(nodes=1, seq_len=32 * number) for number in range(1, 13)]
    world.cells = {cell_id(cell): cell for cell in cells}
    world.scheduler = _TakesThree()
    orchestrator = world.orchestrator()
    for _ in range(400):
        if orchestrator.step().is_over:
            break
        for job in world.scheduler.live_jobs():
            world.finish(job)
        world.clock.sleep(CLUSTER.poll_interval_s)
    assert exit_code(orchestrator.snapshot()) == 0
    assert max(key.attempt for key in world.scheduler.keys.values()) <= 4
    assert max(len(jobs) for jobs in world.scheduler.by_name.values()) > 1, "not one by one"


def test_a_full_queue_is_waited_for_by_the_same_attempt(world: World) -> None:
    _one_cell(world)
    orchestrator = world.orchestrator()
    world.scheduler.submit_error = SubmissionRejectedError("QOSMaxSubmitJobPerUserLimit", is_transient=True)
    for _ in range(100):
        orchestrator.step()
        world.clock.sleep(CLUSTER.poll_interval_s)
    assert world.run_dir.away is None, "it is there, and full"
    world.scheduler.submit_error = None
    world.clock.sleep(300)
    orchestrator.step()
    assert [key.attempt for key in world.scheduler.keys.values()] == [1]
    assert [type(event) for event in world.ledger.events()] == [Reserved, Submitted]


@pytest.mark.parametrize("is_away", [True, False], ids=["known-not-taken", "uncertain"])
def test_one_of_an_array_that_was_cancelled_before_it_arrived_stays_cancelled_and_the_other_runs(
    world: World, *, is_away: bool
) -> None:
    cells = [tiny_cell(nodes=1), tiny_cell(nodes=1, seq_len=64)]
    world.cells = {cell_id(cell): cell for cell in cells}
    orchestrator = world.orchestrator()
    world.scheduler.submit_error = _away() if is_away else SubmissionUncertainError("Socket timed out")
    orchestrator.step()
    world.scheduler.submit_error = None
    world.run_dir.requests["please"] = [cell_id(cells[0])]
    for _ in range(20):
        orchestrator.step()
        world.clock.sleep(CLUSTER.poll_interval_s)
    (job,) = world.scheduler.live_jobs()
    assert world.scheduler.keys[job].cell_id == cell_id(cells[1])
    world.finish(job)
    now = orchestrator.step()
    assert [action.kind for action in now.actions] == [ActionKind.HOLD, ActionKind.DONE]
    assert "before it was submitted" in now.actions[0].reason
    assert world.orchestrator().session.history.problems == []


def test_what_cannot_be_looked_up_is_told_once_and_not_at_every_look(world: World) -> None:
    _one_cell(world)
    orchestrator = world.orchestrator()
    world.scheduler.submit_error = SubmissionUncertainError("Socket timed out")
    orchestrator.step()
    world.scheduler.find_error = _away()
    for _ in range(10):
        orchestrator.step()
        world.clock.sleep(CLUSTER.poll_interval_s)
    assert sum("cannot be looked up yet" in note for note in world.reporter.notes) == 1
    assert world.run_dir.away is not None
    world.scheduler.find_error = None
    orchestrator.step()
    assert world.run_dir.away is None, "an answer is an answer, whatever it says"


def test_a_cancel_that_the_scheduler_did_not_hear_is_known_and_repeated(world: World) -> None:
    _one_cell(world)
    orchestrator = world.orchestrator()
    orchestrator.step()
    (job,) = world.scheduler.live_jobs()
    world.scheduler.cancel_error = _away()
    orchestrator.reconciler.cancel(world.cells)
    assert "connect failure" in orchestrator.reconciler.cancel_failure
    world.scheduler.cancel_error = None
    heir = world.orchestrator()
    for _ in range(5):
        heir.step()
        world.clock.sleep(CLUSTER.poll_interval_s)
    assert world.scheduler.cancelled == [job]
    assert heir.reconciler.cancel_failure == ""


def test_a_task_that_began_was_not_cancelled_while_it_waited_whatever_is_inferred_from_its_array(world: World) -> None:
    _one_cell(world)
    orchestrator = world.orchestrator()
    orchestrator.step()
    (job,) = world.scheduler.live_jobs()
    world.scheduler.say(job, "CANCELLED", started_at=None, is_inferred=True)
    _launched(world, job)
    orchestrator.step()
    world.clock.sleep(CLUSTER.result_grace_s)
    assert orchestrator.step().actions[0].kind is ActionKind.WAIT, "nothing is known of it: accounting may lag"
    world.scheduler.say(job, "COMPLETED", exit_code=0)
    orchestrator.step()
    world.clock.sleep(CLUSTER.result_grace_s)
    assert orchestrator.step().actions[0].outcome is Outcome.TRAINER_ERROR
