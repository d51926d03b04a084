from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweep.core.attempts.attempt import (
    ABSENT,
    SLURM_STATES,
    ErrorClass,
    JobReport,
    Outcome,
    Phase,
    RankError,
    Stop,
    StopKind,
    slurm_state,
)
from sweep.core.attempts.error_text import STORAGE_ERRORS
from sweep.core.attempts.verdict import Evidence, first_cause, is_consequence, judge


def error(kind: ErrorClass, time: float = 1.0, *, rank: int | None = 0, message: str = "boom") -> RankError:
    return RankError(rank=rank, node_rank=0, time=time, error_class=kind, message=message)


def report(state: str = "FAILED", phase: Phase = Phase.ENDED, **more: object) -> JobReport:
    return JobReport(state=state, phase=phase, **more)  # type: ignore[arg-type]  # assembled from keywords


def evidence(**given: object) -> Evidence:
    return Evidence(**{"has_result": False, "report": report(), **given})  # type: ignore[arg-type]  # as above


# --- the first cause


@pytest.mark.parametrize("kind", ErrorClass)
def test_a_single_error_is_its_own_cause(kind: ErrorClass) -> None:
    one = error(kind)
    assert first_cause([one]) is one


def test_the_earliest_error_that_others_do_not_cause_is_the_cause() -> None:
    lost_peer = error(ErrorClass.COMMUNICATION, 1.0)
    stopped = error(ErrorClass.STOPPED, 0.5)
    out_of_memory = error(ErrorClass.OOM_DEVICE, 2.0, rank=3)
    later = error(ErrorClass.EXCEPTION, 3.0, rank=4)
    for order in itertools.permutations([lost_peer, stopped, out_of_memory, later]):
        assert first_cause(order) is out_of_memory


def test_ranks_that_torchrun_stops_after_a_lost_peer_are_not_the_cause() -> None:
    lost_peer, stopped = error(ErrorClass.COMMUNICATION, 1.0), error(ErrorClass.STOPPED, 1.1, rank=1)
    assert first_cause([stopped, lost_peer]) is lost_peer


def test_peers_that_are_lost_because_all_were_stopped_are_not_the_cause() -> None:
    stopped, lost_peer = error(ErrorClass.STOPPED, 1.0), error(ErrorClass.COMMUNICATION, 1.1, rank=1)
    assert first_cause([lost_peer, stopped]) is stopped


def test_no_error_has_no_cause() -> None:
    assert first_cause([]) is None


def test_only_lost_peers_and_signals_are_consequences() -> None:
    found = {kind for kind in ErrorClass if is_consequence(error(kind))}
    assert found == {ErrorClass.COMMUNICATION, ErrorClass.STOPPED}


# --- the verdict


@pytest.mark.parametrize(("number", "words"), STORAGE_ERRORS.items())
def test_a_launcher_that_could_write_nothing_tells_of_it_by_its_exit_code(number: int, words: str) -> None:
    verdict = judge(evidence(report=report(exit_code=number)))
    assert verdict.outcome is Outcome.STORAGE_ERROR
    assert f"{words} (exit code {number})" in verdict.reason
    beside = judge(evidence(report=report(exit_code=number), errors=[error(ErrorClass.OOM_DEVICE)]))
    assert beside.outcome is Outcome.OOM_DEVICE, "what was written counts first"


@pytest.mark.parametrize("words", [*STORAGE_ERRORS.values(), "Stale NFS file handle"])
@pytest.mark.parametrize("kind", [ErrorClass.STORAGE, ErrorClass.EXCEPTION, ErrorClass.REFUSED])
def test_an_error_of_a_file_system_is_one_whoever_reports_it_and_is_quoted(kind: ErrorClass, words: str) -> None:
    verdict = judge(evidence(errors=[error(kind, message=f"the sources cannot be checked: [Errno 1] {words}: '/x'")]))
    assert verdict.outcome is Outcome.STORAGE_ERROR
    assert words in verdict.reason


def test_the_evidence_is_weighed_in_the_stated_order() -> None:
    """Each kind of evidence, taken away one after the other, uncovers the next."""
    whole: dict[str, object] = {
        "has_result": True,
        "cancelled_by_user": True,
        "stop": Stop(kind=StopKind.HOPELESS, reason="it would have waited for ever"),
        "report": report("TIMEOUT", reason="TimeLimit", nodes=("n1", "n2")),
        "outcome_of_state": Outcome.TIMEOUT,
        "errors": [error(ErrorClass.COMMUNICATION, 1.0), error(ErrorClass.OOM_DEVICE, 2.0, rank=7)],
        "exit_codes": {0: 1},
    }
    order = [
        ({}, Outcome.SUCCEEDED),
        ({"has_result": False}, Outcome.CANCELLED),
        ({"cancelled_by_user": False}, Outcome.TIMEOUT),
        ({"report": report("CANCELLED by 0"), "outcome_of_state": Outcome.CANCELLED}, Outcome.OOM_DEVICE),
        ({"errors": [error(ErrorClass.COMMUNICATION)]}, Outcome.REJECTED_BY_SCHEDULER),
        ({"stop": None}, Outcome.CANCELLED),
        ({"report": report("FAILED", exit_code=1), "outcome_of_state": None}, Outcome.COMM_FAILURE),
        ({"errors": []}, Outcome.TRAINER_ERROR),
        ({"exit_codes": {}, "report": ABSENT}, Outcome.LOST),
    ]
    for change, outcome in order:
        whole |= change
        assert judge(evidence(**whole)).outcome is outcome


@pytest.mark.parametrize(
    "worst",
    [
        {"cancelled_by_user": True},
        {"outcome_of_state": Outcome.NODE_FAIL, "report": report("NODE_FAIL")},
        {"errors": [error(ErrorClass.OOM_DEVICE)]},
        {"exit_codes": {0: -9, 1: 1}},
        {"report": ABSENT},
        {"result_problem": "an older file is damaged"},
    ],
)
def test_a_valid_result_wins_whatever_came_after_it(worst: dict[str, object]) -> None:
    assert judge(evidence(**{**worst, "has_result": True})).outcome is Outcome.SUCCEEDED


@pytest.mark.parametrize("report_", [report("COMPLETED", exit_code=0), report("", exit_code=0), report("COMPLETED")])
def test_an_exit_code_of_zero_is_no_success(report_: JobReport) -> None:
    verdict = judge(evidence(report=report_, exit_codes={0: 0}))
    assert verdict.outcome is Outcome.TRAINER_ERROR
    assert verdict.reason == "the job ended (exit code 0) without a result"


@pytest.mark.parametrize(
    ("report_", "codes", "outcome"),
    [
        (report("FAILED", exit_code=1), {}, Outcome.TRAINER_ERROR),
        (report("COMPLETED"), {}, Outcome.TRAINER_ERROR),
        (report("FAILED", exit_code=137), {}, Outcome.LOST),
        (report("FAILED", exit_code=-9), {}, Outcome.LOST),
        (report("FAILED"), {}, Outcome.LOST),
        (report("FAILED"), {0: -9}, Outcome.LOST),
        (report("FAILED", exit_code=137), {0: 2}, Outcome.TRAINER_ERROR),
        (ABSENT, {}, Outcome.LOST),
        (ABSENT, {0: 1}, Outcome.TRAINER_ERROR),
        (report("RUNNING", Phase.RUNNING, exit_code=0), {}, Outcome.LOST),
    ],
)
def test_a_silent_end_is_the_trainers_fault_unless_something_killed_it(
    report_: JobReport, codes: dict[int, int], outcome: Outcome
) -> None:
    assert judge(evidence(report=report_, exit_codes=codes)).outcome is outcome


def test_a_result_that_does_not_count_says_what_is_wrong_with_it() -> None:
    verdict = judge(evidence(result_problem="result.json lacks 'steps'"))
    assert verdict.outcome is Outcome.TRAINER_ERROR
    assert verdict.reason.endswith("without a result; result.json lacks 'steps'")


@pytest.mark.parametrize("kind", ErrorClass)
def test_every_kind_of_error_has_an_outcome_that_is_no_success(kind: ErrorClass) -> None:
    outcome = judge(evidence(errors=[error(kind)])).outcome
    assert outcome is not Outcome.SUCCEEDED
    assert outcome is not Outcome.LOST


def test_the_scheduler_can_say_more_than_the_ranks() -> None:
    # A host that ran out of memory kills ranks, whose peers report lost connections.
    verdict = judge(
        evidence(
            report=report("OUT_OF_MEMORY", nodes=("n1",)),
            outcome_of_state=slurm_state("OUT_OF_MEMORY").outcome,
            errors=[error(ErrorClass.COMMUNICATION)],
        )
    )
    assert (verdict.outcome, verdict.reason) == (Outcome.OOM_HOST, "OUT_OF_MEMORY on n1")


def test_reasons_name_the_rank_the_step_and_the_first_line_of_the_message() -> None:
    one = RankError(
        rank=3, node_rank=1, time=1.0, error_class=ErrorClass.EXCEPTION, message="ValueError: no\n  more", step=12
    )
    assert judge(evidence(errors=[one])).reason == "rank 3 in step 12: ValueError: no"
    launcher = error(ErrorClass.REFUSED, rank=None, message="")
    assert judge(evidence(errors=[launcher])).reason == "launcher of node 0: refused"


def test_a_cancelled_job_says_by_whom_as_far_as_that_is_known() -> None:
    by_root = report("CANCELLED by 0", nodes=("node1",), ended_by="root (an administrator)")
    untold = report("CANCELLED", reason="JobHeldAdmin")
    reasons = [judge(evidence(report=one, outcome_of_state=Outcome.CANCELLED)).reason for one in (by_root, untold)]
    assert reasons == [
        "cancelled by root (an administrator) on node1",
        "cancelled, by whom is not known (JobHeldAdmin)",
    ]
    asked = evidence(report=by_root, outcome_of_state=Outcome.CANCELLED, cancelled_by_user=True)
    assert judge(asked).reason == "cancelled by the user"


def test_reasons_show_the_schedulers_own_words() -> None:
    one = report("DEADLINE", reason="QOS limit")
    verdict = judge(evidence(report=one, outcome_of_state=Outcome.TIMEOUT))
    assert verdict.reason == "DEADLINE (QOS limit)"


EVIDENCE = st.builds(
    Evidence,
    has_result=st.booleans(),
    result_problem=st.sampled_from(["", "damaged"]),
    cancelled_by_user=st.booleans(),
    report=st.builds(
        JobReport,
        state=st.sampled_from([*SLURM_STATES, "", "NEW"]),
        phase=st.sampled_from(Phase),
        reason=st.sampled_from(["", "because"]),
        exit_code=st.none() | st.integers(-64, 255),
    ),
    outcome_of_state=st.none() | st.sampled_from([Outcome.NODE_FAIL, Outcome.TIMEOUT, Outcome.CANCELLED]),
    stop=st.none() | st.builds(Stop, kind=st.sampled_from(StopKind), reason=st.just("because")),
    errors=st.lists(
        st.builds(
            RankError,
            rank=st.none() | st.integers(0, 9),
            node_rank=st.integers(0, 3),
            time=st.floats(0, 1e9),
            error_class=st.sampled_from(ErrorClass),
            message=st.text(max_size=20),
        ),
        max_size=4,
    ),
    exit_codes=st.dictionaries(st.integers(0, 3), st.integers(-64, 255), max_size=2),
)


@given(EVIDENCE)
def test_every_evidence_has_one_verdict_and_only_a_result_is_success(found: Evidence) -> None:
    verdict = judge(found)
    assert (verdict.outcome is Outcome.SUCCEEDED) == found.has_result
    assert verdict.reason or found.has_result


@pytest.mark.parametrize(
    ("kind", "outcome"),
    [
        (StopKind.HANG, Outcome.COMM_FAILURE),
        (StopKind.HOPELESS, Outcome.REJECTED_BY_SCHEDULER),
        (StopKind.OUTLIVED, Outcome.LOST),
        (StopKind.OVER_BUDGET, Outcome.PREEMPTED),
        (StopKind.PAUSED, Outcome.PREEMPTED),
    ],
)
def test_what_this_tool_ended_was_cancelled_by_nobody_else(kind: StopKind, outcome: Outcome) -> None:
    stopped = Stop(kind=kind, reason="because")
    ours = evidence(report=report("CANCELLED by 0"), outcome_of_state=Outcome.CANCELLED, stop=stopped)
    assert judge(ours).outcome is outcome
    word = evidence(report=report("NODE_FAIL"), outcome_of_state=Outcome.NODE_FAIL, stop=stopped)
    assert judge(word).outcome is Outcome.NODE_FAIL
