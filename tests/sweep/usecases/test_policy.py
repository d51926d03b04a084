"""What the policy makes of a run: retries with a change, budget, canary, pause, limits, bad nodes, watchdog."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sweep.core.attempt import OUTCOME_RULES, ErrorClass, JobRun, Outcome, RankError, StopKind
from sweep.core.blame import Blame
from sweep.core.cell import Cell, cell_id
from sweep.core.ledger import Ended, Reserved, Skipped, StopRequested
from sweep.core.plan import ActionKind
from sweep.core.policy import Policy
from sweep.core.record import AttemptFile, Progress
from sweep.core.restraint import gpu_hours_committed
from sweep.core.site import Site, SizeLimit
from sweep.core.spec import SlurmSpec
from sweep.ports import SchedulerError, SubmissionRejectedError
from sweep.usecases.orchestrate import Orchestrator, exit_code
from tests.fakes import tiny_cell
from tests.sweep.usecases.conftest import CLUSTER, World

CALM = Policy(canary=False)


def _cells(world: World, *cells: Cell) -> list[str]:
    world.cells = {cell_id(cell): cell for cell in cells}
    return list(world.cells)


def _end(world: World, orchestrator: Orchestrator, state: str, *errors: RankError, **details: object) -> None:
    """Every job in the queue ends so, and its files have had their time to appear."""
    for job in world.scheduler.live_jobs():
        world.run_dir.rank_errors[world.scheduler.keys[job]] = list(errors)
        world.scheduler.say(job, state, **details)
    orchestrator.reconciler.settle()
    world.clock.sleep(CLUSTER.result_grace_s)
    orchestrator.reconciler.settle()


def _error(error_class: ErrorClass, message: str = "boom", **changes: object) -> RankError:
    values = {"rank": 0, "node_rank": 0, "time": 1.0, "error_class": error_class, "message": message, **changes}
    return RankError(**values)  # type: ignore[arg-type]  # assembled from keywords


def _reserved(world: World) -> list[Reserved]:
    return [event for event in world.ledger.events() if isinstance(event, Reserved)]


def _site(*nodes: str) -> Site:
    return Site(nodes=frozenset(nodes), usable=frozenset(nodes))


def test_a_job_that_ran_out_of_walltime_is_retried_with_twice_as_much(world: World) -> None:
    _cells(world, tiny_cell())
    orchestrator = world.orchestrator()
    orchestrator.step()
    _end(world, orchestrator, "TIMEOUT")
    orchestrator.step()
    assert [event.gpu_hours for event in _reserved(world)] == [0.5, 1.0]
    assert [submission.walltime_min for submission, _ in world.reporter.submissions] == [30, 60]


def test_a_walltime_that_the_partition_does_not_allow_is_not_asked_for(world: World) -> None:
    _cells(world, tiny_cell())
    world.scheduler.limits = Site(max_walltime_min=30)
    orchestrator = world.orchestrator()
    orchestrator.step()
    _end(world, orchestrator, "TIMEOUT")
    now = orchestrator.step()
    assert now.actions[0].kind is ActionKind.GIVE_UP
    assert "allows no more than 30 min" in now.actions[0].reason


def test_a_preempted_job_does_not_use_up_the_retries_of_another_outcome(world: World) -> None:
    _cells(world, tiny_cell())
    orchestrator = world.orchestrator()
    for _ in range(OUTCOME_RULES[Outcome.COMM_FAILURE].max_retries + 3):
        orchestrator.step()
        _end(world, orchestrator, "PREEMPTED")
    orchestrator.step()
    _end(world, orchestrator, "FAILED", _error(ErrorClass.COMMUNICATION))
    world.clock.sleep(600)
    assert not orchestrator.step().is_over


def test_a_retry_waits_for_its_back_off_which_doubles(world: World) -> None:
    rules = {**OUTCOME_RULES, Outcome.LOST: replace(OUTCOME_RULES[Outcome.LOST], max_retries=3, backoff_s=100.0)}
    world.policy = Policy(canary=False, outcomes=rules)
    _cells(world, tiny_cell())
    orchestrator = world.orchestrator()
    for wait_s in (100, 200):
        orchestrator.step()
        (job,) = world.scheduler.live_jobs()
        del world.scheduler.states[job]
        orchestrator.reconciler.settle()
        world.clock.sleep(CLUSTER.lost_after_s)
        now = orchestrator.step()
        assert now.actions[0].kind is ActionKind.LATER
        world.clock.sleep(wait_s - 1)
        assert orchestrator.step().actions[0].kind is ActionKind.LATER
        world.clock.sleep(1)
    assert orchestrator.step().actions[0].kind is ActionKind.WAIT


def test_a_cell_that_needs_more_than_one_that_ran_out_of_memory_is_inferred_and_not_run(world: World) -> None:
    small, larger, longer = tiny_cell(), tiny_cell(micro_batch=4, global_batch=4), tiny_cell(seq_len=64)
    other = tiny_cell(nodes=2, seq_len=64)
    names = _cells(world, small, larger, longer, other)
    world.policy = replace(CALM, max_concurrent_jobs=1)
    orchestrator = world.orchestrator()
    orchestrator.step()
    _end(world, orchestrator, "FAILED", _error(ErrorClass.OOM_DEVICE, "CUDA out of memory"))
    now = orchestrator.step()
    kinds = {action.cell_id: action.kind for action in now.actions}
    assert [kinds[name] for name in names[:3]] == [ActionKind.EXPLAINED] * 3
    assert kinds[names[3]] is ActionKind.WAIT, "another layout may fit"
    for job in world.scheduler.live_jobs():
        world.finish(job)
    final = orchestrator.watch(lambda _: None)
    assert exit_code(final) == 0
    skipped = [event for event in world.ledger.events() if isinstance(event, Skipped)]
    assert {event.kind for event in skipped} == {"oom_inferred"}
    assert {cell for event in skipped for cell, _ in event.repeats} == set(names[1:3])
    assert names[0] in skipped[0].reason


def test_a_cell_of_an_earlier_command_that_ran_out_counts_too(world: World) -> None:
    (small,) = _cells(world, tiny_cell())
    world.policy = CALM
    orchestrator = world.orchestrator()
    orchestrator.step()
    _end(world, orchestrator, "FAILED", _error(ErrorClass.OOM_DEVICE, "CUDA out of memory"))
    world.known, world.cells = world.cells, {}
    _cells(world, tiny_cell(seq_len=64))
    (action,) = world.orchestrator().step().actions
    assert (action.kind, action.hole) == (ActionKind.EXPLAINED, "oom_inferred")
    assert small in action.reason


def test_inference_can_be_switched_off(world: World) -> None:
    _cells(world, tiny_cell(), tiny_cell(seq_len=64))
    world.policy = replace(CALM, max_concurrent_jobs=1, infer_oom=False)
    orchestrator = world.orchestrator()
    orchestrator.step()
    _end(world, orchestrator, "FAILED", _error(ErrorClass.OOM_DEVICE))
    assert not orchestrator.step().is_over


def test_the_smallest_cell_of_a_model_goes_first_and_the_rest_follows_its_success(world: World) -> None:
    world.policy = Policy()
    _cells(world, tiny_cell(nodes=4), tiny_cell(nodes=1), tiny_cell(nodes=2))
    orchestrator = world.orchestrator()
    orchestrator.step()
    assert [submission.nodes for submission, _ in world.reporter.submissions] == [1]
    world.finish(world.scheduler.live_jobs()[0])
    orchestrator.step()
    assert sorted(submission.nodes for submission, _ in world.reporter.submissions) == [1, 2, 4]


def test_a_canary_that_fails_by_its_own_fault_keeps_the_rest_at_home(world: World) -> None:
    world.policy = Policy()
    _cells(world, tiny_cell(nodes=1), tiny_cell(nodes=2))
    orchestrator = world.orchestrator()
    orchestrator.step()
    _end(world, orchestrator, "FAILED", _error(ErrorClass.EXCEPTION, "ImportError: no module"))
    now = orchestrator.watch(lambda _: None)
    assert [action.kind for action in now.actions] == [ActionKind.GIVE_UP, ActionKind.PAUSED]
    assert "ImportError" in now.actions[1].reason
    assert exit_code(now) == 1
    assert len(world.scheduler.by_name) == 1


@pytest.mark.parametrize(
    ("state", "errors", "retries", "words"),
    [
        ("FAILED", [ErrorClass.DEVICE], 2, "retry=[DEVICE_ERROR]"),
        ("FAILED", [ErrorClass.COMMUNICATION], 2, "retry=[COMM_FAILURE]"),
        ("TIMEOUT", [], 1, "retry=[TIMEOUT]"),
        ("FAILED", [], 2, "retry=[LOST]"),
        ("OUT_OF_MEMORY", [], 0, "cluster.slurm.mem=0"),
        ("CANCELLED", [], 0, "retry=[CANCELLED]"),
    ],
)
def test_a_canary_that_was_given_up_for_whatever_reason_keeps_the_rest_at_home(
    world: World, state: str, errors: list[ErrorClass], retries: int, words: str
) -> None:
    world.policy = Policy()
    _cells(world, tiny_cell(nodes=1), tiny_cell(nodes=2))
    orchestrator = world.orchestrator()
    for _ in range(retries + 1):
        orchestrator.step()
        _end(world, orchestrator, state, *(_error(error, "No CUDA GPUs are available") for error in errors))
        world.clock.sleep(600)
    now = orchestrator.watch(lambda _: None)
    assert now.actions[1].kind is ActionKind.PAUSED
    assert words in now.actions[1].reason
    assert "policy.canary=false" in now.actions[1].reason
    assert exit_code(now) == 1
    assert {submission.nodes for submission, _ in world.reporter.submissions} == {1}


def test_a_canary_that_runs_out_of_device_memory_is_a_finding_and_lets_the_rest_go(world: World) -> None:
    world.policy = Policy()
    _cells(world, tiny_cell(nodes=1), tiny_cell(nodes=2))
    orchestrator = world.orchestrator()
    orchestrator.step()
    _end(world, orchestrator, "FAILED", _error(ErrorClass.OOM_DEVICE))
    orchestrator.step()
    assert [submission.nodes for submission, _ in world.reporter.submissions] == [1, 2]


def test_a_smallest_cell_that_the_user_cancelled_before_it_was_submitted_is_no_canary(world: World) -> None:
    world.policy = Policy()
    smallest, *_ = _cells(world, tiny_cell(nodes=1), tiny_cell(nodes=2), tiny_cell(nodes=4))
    orchestrator = world.orchestrator()
    orchestrator.reconciler.cancel([smallest])
    orchestrator.step()
    assert [submission.nodes for submission, _ in world.reporter.submissions] == [2]
    world.finish(world.scheduler.live_jobs()[0])
    orchestrator.step()
    assert [submission.nodes for submission, _ in world.reporter.submissions] == [2, 4]


def test_the_canary_is_one_that_can_be_tried_and_its_budget_is_reserved_first(world: World) -> None:
    world.policy = Policy(budget_gpu_hours=4.25)
    barred, big, small = _cells(world, tiny_cell(nodes=1), tiny_cell(nodes=8), tiny_cell(nodes=2))
    orchestrator = world.orchestrator()
    orchestrator.session.barred = {barred: ("oom_predicted", "too large")}
    kinds = {action.cell_id: action.kind for action in orchestrator.step().actions}
    assert kinds[small] is ActionKind.WAIT
    world.finish(world.scheduler.live_jobs()[0])
    orchestrator.step()
    assert [submission.nodes for submission, _ in world.reporter.submissions] == [2, 8]
    assert kinds[big] is ActionKind.LATER


def test_where_cells_go_out_one_by_one_no_canary_holds_them_back(world: World) -> None:
    world.policy, world.canary_helps = Policy(), False
    world.orchestrator().step()
    assert len(world.scheduler.keys) == 2


def test_after_some_identical_trainer_errors_the_sweep_pauses_and_says_why(world: World) -> None:
    names = _cells(world, *(tiny_cell(seq_len=32 * i) for i in range(1, 7)))
    world.policy = replace(CALM, pause_after=3, max_concurrent_jobs=1)
    orchestrator = world.orchestrator()
    for step in range(3):
        orchestrator.step()
        _end(world, orchestrator, "FAILED", _error(ErrorClass.EXCEPTION, "KeyError: 'rope'", rank=step, step=step))
    now = orchestrator.watch(lambda _: None)
    kinds = [action.kind for action in now.actions]
    assert kinds == [ActionKind.GIVE_UP] * 3 + [ActionKind.PAUSED] * 3
    assert "KeyError: 'rope'" in now.actions[3].reason
    assert len(world.scheduler.keys) == 3
    asked = world.orchestrator()
    asked.reopen([Outcome.TRAINER_ERROR])
    assert not asked.step().is_over, "it was mended: everything goes on"
    assert len(names) == 6


def _three_fail_of_six(world: World, **policy: object) -> Orchestrator:
    """All six are in the queue; two have failed alike, a third runs, and three wait."""
    _cells(world, *(tiny_cell(seq_len=32 * i) for i in range(1, 7)))
    world.policy = replace(CALM, pause_after=3, **policy)  # type: ignore[arg-type]  # keywords
    orchestrator = world.orchestrator()
    orchestrator.step()
    for number, job in enumerate(world.scheduler.live_jobs()[:3]):
        world.scheduler.say(job, "RUNNING")
        orchestrator.step()
        message = f"no file /runs/{number}/x of {number} steps"
        world.run_dir.rank_errors[world.scheduler.keys[job]] = [_error(ErrorClass.EXCEPTION, message)]
        world.scheduler.say(job, "FAILED")
        if number < 2:
            orchestrator.step()
    return orchestrator


def test_a_pause_takes_back_what_has_not_begun_and_that_did_not_happen(world: World) -> None:
    orchestrator = _three_fail_of_six(world, budget_gpu_hours=3.2)
    waiting = world.scheduler.live_jobs()
    orchestrator.step()
    assert world.scheduler.cancelled == waiting
    now = orchestrator.watch(lambda _: None)
    assert [action.kind for action in now.actions] == [ActionKind.GIVE_UP] * 3 + [ActionKind.PAUSED] * 3
    assert gpu_hours_committed(orchestrator.session.history) == pytest.approx(3 * 100 / 3600)
    (skipped,) = [event for event in world.ledger.events() if isinstance(event, Skipped)]
    assert (skipped.kind, len(skipped.repeats)) == ("paused", 3)
    asked = world.orchestrator()
    asked.reopen([Outcome.TRAINER_ERROR])
    asked.step()
    assert sorted(world.scheduler.keys[job].attempt for job in world.scheduler.live_jobs()) == [2] * 6


def test_a_job_that_began_before_the_pause_was_heard_goes_on(world: World) -> None:
    orchestrator = _three_fail_of_six(world)
    first, second, third = world.scheduler.live_jobs()
    world.scheduler.cancel_error = SchedulerError("away")
    orchestrator.step()
    world.scheduler.cancel_error = None
    world.scheduler.say(first, "RUNNING")
    orchestrator.step()
    assert world.scheduler.cancelled == [second, third]
    world.finish(first)
    orchestrator.watch(lambda _: None)
    assert [end.outcome for end in _ends(world)] == [Outcome.TRAINER_ERROR] * 3 + [Outcome.SUCCEEDED]


def test_what_the_user_cancels_while_it_is_taken_back_stays_cancelled(world: World) -> None:
    orchestrator = _three_fail_of_six(world)
    first, *_ = world.scheduler.live_jobs()
    world.scheduler.takes_its_time = True
    orchestrator.step()
    orchestrator.reconciler.cancel([world.scheduler.keys[first].cell_id])
    world.scheduler.takes_its_time = False
    world.clock.sleep(30)
    orchestrator.step()
    world.clock.sleep(CLUSTER.result_grace_s)
    now = orchestrator.watch(lambda _: None)
    assert [action.kind for action in now.actions][3:] == [ActionKind.HOLD, ActionKind.PAUSED, ActionKind.PAUSED]


def test_different_trainer_errors_do_not_pause_the_sweep(world: World) -> None:
    _cells(world, *(tiny_cell(seq_len=32 * i) for i in range(1, 5)))
    world.policy = replace(CALM, pause_after=2, max_concurrent_jobs=1)
    orchestrator = world.orchestrator()
    for message in ("KeyError: 'a'", "KeyError: 'b'", "KeyError: 'c'"):
        orchestrator.step()
        _end(world, orchestrator, "FAILED", _error(ErrorClass.EXCEPTION, message))
    assert not orchestrator.step().is_over


def test_a_budget_is_never_overdrawn_and_what_it_stops_is_a_hole_with_that_reason(world: World) -> None:
    names = _cells(world, tiny_cell(nodes=1), tiny_cell(nodes=2), tiny_cell(nodes=4))
    # Half an hour each: 0.5, 1 and 2 GPU-hours at most; a fake job uses 100 s a GPU.
    world.policy = replace(CALM, budget_gpu_hours=2.0)
    orchestrator = world.orchestrator()
    orchestrator.step()
    assert gpu_hours_committed(orchestrator.session.history) == pytest.approx(1.5)
    assert len(world.scheduler.keys) == 2
    assert orchestrator.snapshot().actions[2].kind is ActionKind.LATER, "what runs may turn out cheaper"
    for job in world.scheduler.live_jobs():
        world.finish(job)
    now = orchestrator.watch(lambda _: None)
    assert gpu_hours_committed(orchestrator.session.history) == pytest.approx(3 * 100 / 3600)
    assert now.actions[2].kind is ActionKind.OVER_BUDGET
    assert exit_code(now) == 1
    (skipped,) = [event for event in world.ledger.events() if isinstance(event, Skipped)]
    assert (skipped.kind, skipped.repeats) == ("over_budget", ((names[2], 1),))
    assert "2.00 GPU-hours" in skipped.reason
    world.policy = replace(CALM, budget_gpu_hours=3.0)
    assert world.run_to_the_end().snapshot().is_over
    assert len(world.scheduler.keys) == 3


def _requeued(world: World, *, budget: float, ended_at: float | None = 720.0) -> Orchestrator:
    """A job of half an hour at most waits again, after it has run for 720 s."""
    _cells(world, tiny_cell())
    world.policy = replace(CALM, budget_gpu_hours=budget)
    orchestrator = world.orchestrator()
    orchestrator.step()
    (job,) = world.scheduler.live_jobs()
    key = world.scheduler.keys[job]
    world.scheduler.say(job, "RUNNING", started_at=0.0)
    orchestrator.step()
    world.run_dir.attempt_files[key] = AttemptFile(
        key=key, job_id=job, restart=0, hosts=("n1",), pid=1, started_at=0.0
    )  # fmt: skip
    world.run_dir.signs[key, 0] = 710.0
    world.scheduler.runs[job] = [JobRun(started_at=0.0, ended_at=ended_at)]
    world.scheduler.say(job, "PENDING", reason="BeginTime")
    orchestrator.step()
    return orchestrator


def test_a_requeued_job_counts_with_what_it_has_used_and_one_more_walltime(world: World) -> None:
    orchestrator = _requeued(world, budget=0.71)
    assert gpu_hours_committed(orchestrator.session.history) == pytest.approx(0.2 + 0.5)
    assert world.scheduler.cancelled == []
    heir = world.orchestrator()
    heir.step()
    assert gpu_hours_committed(heir.session.history) == pytest.approx(0.2 + 0.5)


def test_a_requeue_is_noticed_although_the_launcher_had_written_nothing(world: World) -> None:
    _cells(world, tiny_cell())
    orchestrator = world.orchestrator()
    orchestrator.step()
    (job,) = world.scheduler.live_jobs()
    world.scheduler.runs[job] = [JobRun(started_at=0.0, ended_at=720.0)]
    for state in ("RUNNING", "PENDING"):
        world.scheduler.say(job, state, started_at=0.0 if state == "RUNNING" else None)
        orchestrator.step()
    assert gpu_hours_committed(orchestrator.session.history) == pytest.approx(0.2 + 0.5)
    world.finish(job)
    orchestrator.step()
    assert _ends(world)[0].gpu_seconds == 720 + 100


def test_until_accounting_has_the_end_of_a_run_its_files_tell(world: World) -> None:
    orchestrator = _requeued(world, budget=0.71, ended_at=None)
    assert gpu_hours_committed(orchestrator.session.history) == pytest.approx(710 / 3600 + 0.5)
    (job,) = world.scheduler.live_jobs()
    world.scheduler.runs[job] = [JobRun(started_at=0.0, ended_at=720.0)]
    orchestrator.step()
    assert gpu_hours_committed(orchestrator.session.history) == pytest.approx(0.2 + 0.5)


def test_a_requeued_job_that_no_longer_fits_into_the_budget_is_stopped_while_it_waits(world: World) -> None:
    orchestrator = _requeued(world, budget=0.69)
    assert len(world.scheduler.cancelled) == 1
    orchestrator.step()
    world.clock.sleep(CLUSTER.result_grace_s)
    now = orchestrator.watch(lambda _: None)
    (ended,) = _ends(world)
    assert (ended.outcome, ended.gpu_seconds) == (Outcome.PREEMPTED, 720.0)
    assert "budget of 0.69" in ended.reason
    assert now.actions[0].kind is ActionKind.OVER_BUDGET
    (skipped,) = [event for event in world.ledger.events() if isinstance(event, Skipped)]
    assert skipped.kind == "over_budget"
    assert skipped.reason.startswith("after PREEMPTED, budget: up to 0.50 GPU-hours")


def test_an_attempt_whose_use_is_unknown_counts_with_all_that_it_could_have_used(world: World) -> None:
    _cells(world, tiny_cell())
    world.policy = replace(CALM, budget_gpu_hours=0.9)
    orchestrator = world.orchestrator()
    orchestrator.step()
    (job,) = world.scheduler.live_jobs()
    del world.scheduler.states[job]
    orchestrator.reconciler.settle()
    world.clock.sleep(CLUSTER.lost_after_s + 1000)
    now = orchestrator.step()
    assert now.actions[0].kind is ActionKind.OVER_BUDGET
    assert gpu_hours_committed(orchestrator.session.history) == pytest.approx(0.5)


@pytest.mark.parametrize(("limit", "jobs"), [({"max_concurrent_jobs": 2}, 2), ({"max_concurrent_gpus": 3}, 2)])
def test_no_more_is_in_the_queue_than_the_policy_allows(world: World, limit: dict[str, int], jobs: int) -> None:
    _cells(world, tiny_cell(nodes=1), tiny_cell(nodes=2), tiny_cell(nodes=1, seq_len=64), tiny_cell(nodes=4))
    world.policy = replace(CALM, **limit)  # type: ignore[arg-type]  # one keyword or the other
    orchestrator = world.orchestrator()
    orchestrator.step()
    assert len(world.scheduler.live_jobs()) == jobs


def test_the_sites_own_limit_counts_over_all_arrays_together(world: World) -> None:
    _cells(world, *(tiny_cell(seq_len=32 * i) for i in range(1, 9)))
    world.scheduler.limits = Site(max_array_tasks=2)
    orchestrator = world.orchestrator()
    orchestrator.session.cluster = replace(CLUSTER, slurm=SlurmSpec(max_concurrent_jobs=3))
    orchestrator.step()
    assert sorted(len(jobs) for jobs in world.scheduler.by_name.values()) == [1, 2]
    world.finish(world.scheduler.live_jobs()[0])
    now = orchestrator.step()
    assert len(world.scheduler.live_jobs()) == 3
    assert [a.reason for a in now.actions if a.kind is ActionKind.LATER] == [
        "max_concurrent_jobs=3 are in the queue"
    ] * 4


def test_cells_are_fed_in_as_the_cluster_takes_them(world: World) -> None:
    _cells(world, *(tiny_cell(seq_len=32 * i) for i in range(1, 21)))
    world.scheduler.limits = Site(free_tasks=3)
    orchestrator = world.orchestrator()
    orchestrator.step()
    assert len(world.scheduler.live_jobs()) == 3
    assert world.reporter.notes == [], "held back, not refused"
    world.scheduler.limits = Site(free_tasks=0)
    orchestrator.step()
    assert len(world.scheduler.live_jobs()) == 3
    for job in world.scheduler.live_jobs():
        world.finish(job)
    world.scheduler.limits = Site(free_tasks=3)
    orchestrator.step()
    assert len(world.scheduler.keys) == 6


def test_an_array_is_no_larger_than_the_cluster_allows(world: World) -> None:
    _cells(world, *(tiny_cell(seq_len=32 * i) for i in range(1, 13)))
    world.scheduler.limits = Site(max_array_tasks=5)
    world.orchestrator().step()
    assert sorted(len(jobs) for jobs in world.scheduler.by_name.values()) == [2, 5, 5]


def test_a_retry_keeps_away_from_the_node_that_failed_if_the_cluster_knows_its_name(world: World) -> None:
    _cells(world, tiny_cell(nodes=2))
    world.scheduler.limits = _site("n1", "n2", "n3")
    world.scheduler.out_of_service = {"n2": "Not responding", "n9": "elsewhere"}
    orchestrator = world.orchestrator()
    orchestrator.step()
    _end(world, orchestrator, "NODE_FAIL", nodes=("n1", "n2"))
    orchestrator.step()
    assert [submission.exclude for submission, _ in world.reporter.submissions] == [(), ("n2",)]
    assert [(blame.node, blame.outcome) for blame in world.blame.blames] == [("n2", Outcome.NODE_FAIL)]


def test_the_node_of_the_rank_whose_device_failed_is_blamed(world: World) -> None:
    _cells(world, tiny_cell(nodes=2))
    world.scheduler.limits = _site("n1", "n2", "n3")
    orchestrator = world.orchestrator()
    orchestrator.step()
    _end(world, orchestrator, "FAILED", _error(ErrorClass.DEVICE, "Xid 79", rank=1, node_rank=1), nodes=("n1", "n2"))
    orchestrator.step()
    assert world.reporter.submissions[-1][0].exclude == ("n2",)


def test_a_cell_that_failed_on_two_nodes_is_sent_back_to_neither(world: World) -> None:
    _cells(world, tiny_cell())
    world.scheduler.limits = _site("n1", "n2", "n3")
    orchestrator = world.orchestrator()
    for node in ("n1", "n2"):
        orchestrator.step()
        _end(world, orchestrator, "FAILED", _error(ErrorClass.DEVICE, "Xid 79"), nodes=(node,))
    orchestrator.step()
    assert world.reporter.submissions[-1][0].exclude == ("n1", "n2")


def test_where_no_node_is_left_without_those_that_are_blamed_they_are_used_all_the_same(world: World) -> None:
    _cells(world, tiny_cell())
    world.scheduler.limits = _site("n1", "n2")
    orchestrator = world.orchestrator()
    orchestrator.step()
    _end(world, orchestrator, "NODE_FAIL", nodes=("n1",))
    words = "Requested node configuration is not available"
    world.scheduler.submit_error = SubmissionRejectedError(words, leaves_no_node=True)
    orchestrator.step()
    assert not world.scheduler.live_jobs()
    assert words in world.reporter.notes[-1]
    world.scheduler.submit_error = None
    orchestrator.step()
    assert len(world.scheduler.live_jobs()) == 1
    assert world.reporter.submissions[-1][0].exclude == ()


def test_what_the_settings_name_and_the_cluster_does_not_know_is_said_once(world: World) -> None:
    _cells(world, tiny_cell(), tiny_cell(seq_len=64))
    world.policy = replace(CALM, max_concurrent_jobs=1)
    world.scheduler.limits = Site(notes=("slurm.exclude names gone, which this cluster does not know",))
    world.run_to_the_end()
    assert [note for note in world.reporter.notes if "gone" in note] == list(world.scheduler.limits.notes)


def test_a_node_that_several_cells_blame_is_excluded_for_all_until_the_blame_expires(world: World) -> None:
    now = world.clock.now()
    for cell in ("a" * 16, "b" * 16):
        blame = Blame(
            node="n1", time=now - 60, cell_id=cell, run="other", outcome=Outcome.NODE_FAIL, reason="NODE_FAIL"
        )
        world.blame.add([blame])
    world.blame.add([replace(world.blame.blames[0], node="n2")])
    world.scheduler.limits = _site("n1", "n2", "n3")
    _cells(world, tiny_cell())
    orchestrator = world.orchestrator()
    orchestrator.step()
    assert world.reporter.submissions[-1][0].exclude == ("n1",), "one cell alone proves nothing"
    _end(world, orchestrator, "PREEMPTED")
    world.clock.sleep(25 * 3600)
    orchestrator.step()
    assert world.reporter.submissions[-1][0].exclude == ()


def test_exclusion_never_leaves_too_few_nodes_nor_names_one_that_is_unknown(world: World) -> None:
    _cells(world, tiny_cell(nodes=2))
    world.scheduler.limits = _site("n1", "n2")
    world.scheduler.out_of_service = {"n2": "down", "gone": "down"}
    orchestrator = world.orchestrator()
    orchestrator.step()
    _end(world, orchestrator, "NODE_FAIL", nodes=("gone", "n2"))
    orchestrator.step()
    assert world.reporter.submissions[-1][0].exclude == ()


def test_a_cell_above_a_limit_of_the_cluster_is_not_submitted_to_wait_for_ever(world: World) -> None:
    fits, above = _cells(world, tiny_cell(nodes=1), tiny_cell(nodes=2))
    world.scheduler.limits = Site(size_limits=(SizeLimit(name="GrpTRES node=1 of the QOS normal", nodes=1),))
    now = world.run_to_the_end().watch(lambda _: None)
    assert {action.cell_id: action.kind for action in now.actions} == {fits: ActionKind.DONE, above: ActionKind.PAUSED}
    (skipped,) = [event for event in world.ledger.events() if isinstance(event, Skipped)]
    assert (skipped.kind, skipped.repeats) == ("over_limit", ((above, 1),))
    assert skipped.reason == "it needs 2 nodes x 1 GPUs; GrpTRES node=1 of the QOS normal never lets it run"
    assert exit_code(now) == 1


def test_a_job_that_would_wait_for_ever_is_ended_with_the_reason(world: World) -> None:
    _cells(world, tiny_cell())
    orchestrator = world.orchestrator()
    orchestrator.step()
    (job,) = world.scheduler.live_jobs()
    world.scheduler.say(job, "PENDING", reason="PartitionTimeLimit")
    orchestrator.step()
    assert world.scheduler.cancelled == []
    world.clock.sleep(60)
    orchestrator.step()
    assert world.scheduler.cancelled == [job]
    now = orchestrator.step()
    assert now.actions[0].outcome is Outcome.REJECTED_BY_SCHEDULER
    assert "PartitionTimeLimit" in now.actions[0].reason
    assert gpu_hours_committed(orchestrator.session.history) == 0, "it never began"


def _hopeless_and_not_heard(world: World) -> tuple[Orchestrator, str]:
    """A job that waits for what will never come, and whose cancel the scheduler has not heard."""
    _cells(world, tiny_cell())
    orchestrator = world.orchestrator()
    orchestrator.step()
    (job,) = world.scheduler.live_jobs()
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
    _end(world, orchestrator, "CANCELLED by 1000")
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
    stops = [event for event in world.ledger.events() if isinstance(event, StopRequested)]
    assert len(stops) == 2
    assert len(world.scheduler.cancelled) > 3, "and the scheduler is told again"
    world.scheduler.say(job, "CANCELLED by 0", started_at=None)
    orchestrator.step()
    world.clock.sleep(CLUSTER.result_grace_s)
    assert orchestrator.step().actions[0].outcome is Outcome.REJECTED_BY_SCHEDULER


@pytest.mark.parametrize("knows_the_start", [True, False])
def test_a_stop_that_has_lapsed_is_no_reason_to_the_next_process_either(world: World, *, knows_the_start: bool) -> None:
    """A pause took back what had just begun; it failed by itself while nobody watched."""
    _cells(world, tiny_cell())
    orchestrator = world.orchestrator()
    orchestrator.step()
    (job,) = world.scheduler.live_jobs()
    key = world.scheduler.keys[job]
    world.ledger.append(StopRequested(time=world.clock.now(), key=key, kind=StopKind.PAUSED, reason="paused"))
    started = world.clock.now() + 2
    world.run_dir.attempt_files[key] = AttemptFile(
        key=key, job_id=job, restart=0, hosts=("n1",), pid=1, started_at=started, ended_at=started + 9, exit_code=3
    )
    world.scheduler.say(job, "FAILED", exit_code=3, nodes=("n1",), started_at=started if knows_the_start else None)
    heir = world.orchestrator()
    heir.step()
    world.clock.sleep(CLUSTER.result_grace_s)
    heir.step()
    assert [event.outcome for event in world.ledger.events() if isinstance(event, Ended)] == [Outcome.TRAINER_ERROR]


def test_a_job_that_began_just_as_it_was_taken_back_is_worth_another_attempt(world: World) -> None:
    _cells(world, tiny_cell())
    orchestrator = world.orchestrator()
    orchestrator.step()
    (job,) = world.scheduler.live_jobs()
    key = world.scheduler.keys[job]
    world.ledger.append(StopRequested(time=world.clock.now(), key=key, kind=StopKind.PAUSED, reason="paused"))
    world.scheduler.say(job, "CANCELLED by 0", nodes=("n1",), started_at=world.clock.now() + 1)
    heir = world.orchestrator()
    heir.step()
    world.clock.sleep(CLUSTER.result_grace_s)
    heir.step()
    assert [event.outcome for event in world.ledger.events() if isinstance(event, Ended)] == [Outcome.PREEMPTED]


def test_a_job_that_makes_no_step_is_ended_by_the_watchdog_and_retried(world: World) -> None:
    _cells(world, tiny_cell())
    world.policy = replace(CALM, watchdog_s=100.0)
    orchestrator = world.orchestrator()
    orchestrator.step()
    (job,) = world.scheduler.live_jobs()
    world.scheduler.say(job, "RUNNING")
    for step in (1, 2, 3):
        world.run_dir.progresses[world.scheduler.keys[job]] = Progress(step=step, steps=9, time=0.0, tokens_per_s=None)
        orchestrator.step()
        world.clock.sleep(99)
    orchestrator.step()
    assert world.scheduler.cancelled == []
    world.clock.sleep(1)
    orchestrator.step()
    assert world.scheduler.cancelled == [job]
    orchestrator.step()
    world.clock.sleep(CLUSTER.result_grace_s)
    orchestrator.step()
    (ended,) = _ends(world)
    assert (ended.outcome, "no step for 100 s" in ended.reason) == (Outcome.COMM_FAILURE, True)
    assert ended.gpu_seconds == 100.0, "what Slurm counted, not the walltime"


def _ends(world: World) -> list[Ended]:
    return [event for event in world.ledger.events() if isinstance(event, Ended)]


def _hung(world: World) -> tuple[Orchestrator, str]:
    """A job that has just been stopped by the watchdog, and does not hear it."""
    _cells(world, tiny_cell())
    world.policy = replace(CALM, watchdog_s=100.0)
    orchestrator = world.orchestrator()
    orchestrator.step()
    (job,) = world.scheduler.live_jobs()
    world.scheduler.say(job, "RUNNING")
    orchestrator.step()
    world.clock.sleep(100)
    world.scheduler.cancel_error = SchedulerError("scancel failed: connect failure")
    orchestrator.step()
    return orchestrator, job


def test_a_stop_that_the_scheduler_does_not_hear_is_repeated_and_nothing_is_decided_before_the_job_is_gone(
    world: World,
) -> None:
    orchestrator, job = _hung(world)
    for _ in range(100):
        orchestrator.step()
        world.clock.sleep(CLUSTER.poll_interval_s)
    assert world.scheduler.live_jobs() == [job], "no second job beside it"
    assert _ends(world) == []
    assert sum("connect failure" in note for note in world.reporter.notes) == 1
    world.scheduler.cancel_error, world.scheduler.takes_its_time = None, True
    heir = world.orchestrator()
    heir.step()
    assert world.scheduler.cancelled == [job], "whoever takes the run over knows of it"
    heir.step()
    assert world.scheduler.cancelled == [job], "it was heard"
    world.clock.sleep(30)
    heir.step()
    assert world.scheduler.cancelled == [job, job], "and has not helped"
    assert _ends(world) == []
    _end(world, heir, "CANCELLED by 0")
    assert [end.outcome for end in _ends(world)] == [Outcome.COMM_FAILURE]


def test_a_result_that_comes_while_a_hang_is_being_ended_counts(world: World) -> None:
    orchestrator, job = _hung(world)
    world.finish(job, "CANCELLED by 0")
    orchestrator.step()
    assert [end.outcome for end in _ends(world)] == [Outcome.SUCCEEDED]


def test_an_error_that_made_the_others_wait_is_not_hidden_by_the_watchdog(world: World) -> None:
    orchestrator, job = _hung(world)
    stopped = _error(ErrorClass.STOPPED, rank=1, time=5.0)
    world.run_dir.rank_errors[world.scheduler.keys[job]] = [_error(ErrorClass.OOM_DEVICE, time=9.0), stopped]
    world.scheduler.say(job, "CANCELLED by 0")
    orchestrator.step()
    assert [end.outcome for end in _ends(world)] == [Outcome.OOM_DEVICE]


def test_the_watchdog_does_not_count_while_a_job_is_suspended(world: World) -> None:
    _cells(world, tiny_cell())
    world.policy = replace(CALM, watchdog_s=100.0)
    orchestrator = world.orchestrator()
    orchestrator.step()
    (job,) = world.scheduler.live_jobs()
    for state in ("RUNNING", "SUSPENDED", "SUSPENDED", "RUNNING", "COMPLETING", "RUNNING"):
        world.scheduler.say(job, state)
        orchestrator.step()
        world.clock.sleep(99)
        orchestrator.step()
    assert world.scheduler.cancelled == []
    world.clock.sleep(1)
    orchestrator.step()
    assert world.scheduler.cancelled == [job]


def test_a_job_that_waits_longer_than_the_user_lets_it_is_ended_with_the_schedulers_reason(world: World) -> None:
    _cells(world, tiny_cell())
    world.policy = replace(CALM, pending_limit_h=2.0)
    orchestrator = world.orchestrator()
    orchestrator.step()
    (job,) = world.scheduler.live_jobs()
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


def test_what_can_be_done_about_a_job_that_is_held_is_said_once(world: World) -> None:
    _cells(world, tiny_cell())
    orchestrator = world.orchestrator()
    orchestrator.step()
    (job,) = world.scheduler.live_jobs()
    world.scheduler.say(job, "PENDING", reason="(JobHeldUser)")
    for _ in range(3):
        orchestrator.step()
        world.clock.sleep(10)
    (note,) = world.reporter.notes
    assert "its user held it: `scontrol release JOB`" in note


@pytest.mark.parametrize("outcome", [Outcome.OOM_DEVICE, Outcome.CANCELLED, Outcome.SUCCEEDED])
def test_a_policy_that_would_retry_what_must_not_be_cannot_be_made(outcome: Outcome) -> None:
    rules = {**OUTCOME_RULES, outcome: replace(OUTCOME_RULES[outcome], max_retries=1)}
    with pytest.raises(ValueError, match="never retried by itself"):
        Policy(outcomes=rules)


def test_a_policy_that_keeps_away_from_nodes_that_nothing_blames_cannot_be_made() -> None:
    rules = {**OUTCOME_RULES, Outcome.LOST: replace(OUTCOME_RULES[Outcome.LOST], avoid_nodes=True)}
    with pytest.raises(ValueError, match="avoid_nodes for LOST: only DEVICE_ERROR and NODE_FAIL say"):
        Policy(outcomes=rules)


def test_a_policy_that_leaves_an_outcome_open_cannot_be_made() -> None:
    rules = {outcome: rule for outcome, rule in OUTCOME_RULES.items() if outcome is not Outcome.LOST}
    with pytest.raises(ValueError, match="says nothing of LOST"):
        Policy(outcomes=rules)


def test_a_walltime_is_cut_to_end_before_a_maintenance_where_the_cell_is_known_to_fit(world: World) -> None:
    _cells(world, tiny_cell())
    world.repeats = 2
    world.policy = replace(CALM, max_concurrent_jobs=1)
    maintenance_at = world.clock.now() + 20 * 60
    world.scheduler.limits = Site(maintenance_at=maintenance_at)
    orchestrator = world.orchestrator()
    orchestrator.step()
    world.finish(world.scheduler.live_jobs()[0])
    orchestrator.step()
    # A fake job takes 100 s: 2 min and a half with safety, and two to start; 18 are left of 20.
    assert [submission.walltime_min for submission, _ in world.reporter.submissions] == [30, 18]


def test_a_walltime_is_cut_by_what_another_cell_of_the_model_took(world: World) -> None:
    first, longer = _cells(world, tiny_cell(), tiny_cell(seq_len=64))
    world.policy = replace(CALM, max_concurrent_jobs=1)
    world.scheduler.limits = Site(maintenance_at=world.clock.now() + 20 * 60)
    orchestrator = world.orchestrator()
    orchestrator.step()
    world.finish(world.scheduler.live_jobs()[0])
    orchestrator.reconciler.settle()
    action = next(a for a in orchestrator.snapshot().actions if a.cell_id == longer)
    # 100 s, twice the tokens, three times for safety: 10 min, and two to start; 18 are left of 20.
    assert action.walltime_min == 18
    assert f"estimated: {first} took 1.7 min, 2.0 times its work per GPU" in action.reason
    orchestrator.step()
    assert [submission.walltime_min for submission, _ in world.reporter.submissions] == [30, 18]
    world.scheduler.limits = replace(world.scheduler.limits, max_walltime_min=30)
    _end(world, orchestrator, "TIMEOUT")
    heir = world.orchestrator()
    action = next(a for a in heir.step().actions if a.cell_id == longer)
    assert action.kind is ActionKind.WAIT
    assert world.reporter.submissions[-1][0].walltime_min == 30, "all that it was to have, and not cut again"
    _end(world, heir, "TIMEOUT")
    action = next(a for a in heir.step().actions if a.cell_id == longer)
    assert action.kind is ActionKind.GIVE_UP
    assert "the partition allows no more than 30 min" in action.reason


def test_a_cell_of_another_model_or_device_says_nothing_of_the_walltime(world: World) -> None:
    other = replace(tiny_cell().model, name="other", n_layers=1)
    _cells(world, tiny_cell(), tiny_cell(model=other))
    world.policy = replace(CALM, max_concurrent_jobs=1)
    world.scheduler.limits = Site(maintenance_at=world.clock.now() + 20 * 60)
    world.run_to_the_end()
    assert [submission.walltime_min for submission, _ in world.reporter.submissions] == [30, 30]


def test_a_walltime_is_left_alone_where_the_cell_may_not_fit_before_the_maintenance(world: World) -> None:
    _cells(world, tiny_cell())
    world.repeats = 2
    world.policy = replace(CALM, max_concurrent_jobs=1)
    world.scheduler.limits = Site(maintenance_at=world.clock.now() + 4 * 60)
    orchestrator = world.orchestrator()
    orchestrator.step()
    world.finish(world.scheduler.live_jobs()[0])
    orchestrator.step()
    assert [submission.walltime_min for submission, _ in world.reporter.submissions] == [30, 30]
