"""How an attempt ended: the order in which evidence decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from sweep.core.attempts.attempt import ErrorClass, JobReport, Outcome, Phase, RankError, Stop, StopKind
from sweep.core.attempts.error_text import STORAGE_ERRORS, classify_text
from sweep.core.encoding.frozen import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """All that is known of an attempt that is over, or is taken to be.

    Attributes:
        has_result: A valid, complete result of this very attempt is there.
        result_problem: What is wrong with a result file that is there but does not count.
        cancelled_by_user: The user cancelled it through this tool.
        report: The scheduler's last word.
        outcome_of_state: What that word means where it is specific (:attr:`JobReport.outcome`).
        errors: Error files of ranks and launchers.
        exit_codes: Exit codes that the launchers wrote, by node.
        stop: This tool's own request that it end; None where there was none.
    """

    has_result: bool
    report: JobReport
    outcome_of_state: Outcome | None = None
    result_problem: str = ""
    cancelled_by_user: bool = False
    errors: Sequence[RankError] = ()
    exit_codes: Mapping[int, int] = field(default_factory=dict)
    stop: Stop | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """An outcome with the reason that tables and ``status`` show."""

    outcome: Outcome
    reason: str


_OUTCOME_OF_ERROR: Mapping[ErrorClass, Outcome] = {
    ErrorClass.OOM_DEVICE: Outcome.OOM_DEVICE,
    ErrorClass.OOM_HOST: Outcome.OOM_HOST,
    ErrorClass.COMMUNICATION: Outcome.COMM_FAILURE,
    ErrorClass.DEVICE: Outcome.DEVICE_ERROR,
    ErrorClass.STORAGE: Outcome.STORAGE_ERROR,
    ErrorClass.EXCEPTION: Outcome.TRAINER_ERROR,
    ErrorClass.REFUSED: Outcome.TRAINER_ERROR,
    ErrorClass.STOPPED: Outcome.PREEMPTED,
    # The launcher stops a job just before its time limit, so that the scheduler's own word may be FAILED.
    ErrorClass.TIMEOUT: Outcome.TIMEOUT,
}
_OUTCOME_OF_STOP: Mapping[StopKind, Outcome | None] = {
    StopKind.HANG: Outcome.COMM_FAILURE,
    StopKind.HOPELESS: Outcome.REJECTED_BY_SCHEDULER,
    # Its result was there, and is not any more: the rest of the evidence decides.
    StopKind.OUTLIVED: None,
    # It had been requeued, or began just as it was taken back: not its fault, and worth another attempt.
    StopKind.OVER_BUDGET: Outcome.PREEMPTED,
    StopKind.PAUSED: Outcome.PREEMPTED,
}
# Errors that others cause: a peer that died, a signal from outside. They explain only where nothing else does.
_CONSEQUENCES = (ErrorClass.COMMUNICATION, ErrorClass.STOPPED)


def is_consequence(error: RankError) -> bool:
    """True if another error causes errors of this kind; the cause's own file may still be on its way."""
    return error.error_class in _CONSEQUENCES


def first_cause(errors: Sequence[RankError]) -> RankError | None:
    """The earliest error that is not the consequence of another; else the earliest of all.

    Where a signal and a lost peer are all there is, whichever came first brought the other about: torchrun stops the
    ranks that are left when one loses its peer, and ranks that are stopped are lost to their peers.
    """
    causes = [error for error in errors if not is_consequence(error)]
    return min(causes or errors, key=lambda error: error.time, default=None)


def judge(evidence: Evidence) -> Verdict:
    """Decide how an attempt ended; an exit code alone is never success.

    The first of these that is known decides: a valid result of this attempt; the user's cancel; a specific word of the
    scheduler; errors that no other error causes; why this tool itself ended the job; errors that others cause. A
    CANCELLED of the scheduler is ignored where this tool ended the job. Without any of them a job that ended by itself
    is a TRAINER_ERROR, since it would do so again; any other end is LOST.
    """
    if evidence.has_result:
        return Verdict(outcome=Outcome.SUCCEEDED, reason="")
    if evidence.cancelled_by_user:
        return Verdict(outcome=Outcome.CANCELLED, reason="cancelled by the user")
    word = evidence.outcome_of_state
    if word is Outcome.CANCELLED and evidence.stop is None:
        return Verdict(outcome=word, reason=_cancelled_reason(evidence.report))
    if word is not None and word is not Outcome.CANCELLED:
        return Verdict(outcome=word, reason=_state_reason(evidence.report) or word)
    cause = first_cause(evidence.errors)
    stopped_as = None if evidence.stop is None else _OUTCOME_OF_STOP[evidence.stop.kind]
    if evidence.stop is not None and stopped_as is not None and (cause is None or is_consequence(cause)):
        return Verdict(outcome=stopped_as, reason=evidence.stop.reason)
    if cause is not None:
        # The check of the sources, and other programs than ours, know no class for it.
        is_storage = classify_text(cause.message) is ErrorClass.STORAGE and not is_consequence(cause)
        outcome = Outcome.STORAGE_ERROR if is_storage else _OUTCOME_OF_ERROR[cause.error_class]
        return Verdict(outcome=outcome, reason=_error_reason(cause))
    if evidence.report.phase is Phase.ENDED and (words := STORAGE_ERRORS.get(evidence.report.exit_code or 0)):
        reason = f"its records could not be written: {words} (exit code {evidence.report.exit_code})"
        return Verdict(outcome=Outcome.STORAGE_ERROR, reason=_with_problem(reason, evidence))
    codes = _own_exit_codes(evidence)
    if codes or evidence.result_problem:
        shown = ", ".join(str(code) for code in codes) or "unknown"
        reason = f"the job ended (exit code {shown}) without a result"
        return Verdict(outcome=Outcome.TRAINER_ERROR, reason=_with_problem(reason, evidence))
    return Verdict(outcome=Outcome.LOST, reason=_lost_reason(evidence.report))


def _own_exit_codes(evidence: Evidence) -> list[int]:
    """Exit codes that tell of an end without a signal; a job that was killed from outside did not fail by itself."""
    report = evidence.report
    codes = [*evidence.exit_codes.values()]
    if report.phase is Phase.ENDED:
        # squeue gives no exit code, but COMPLETED is its word for 0.
        codes.append(0 if report.state == "COMPLETED" else -1 if report.exit_code is None else report.exit_code)
    return sorted({code for code in codes if 0 <= code < 128})


def _with_problem(text: str, evidence: Evidence) -> str:
    return f"{text}; {evidence.result_problem}" if evidence.result_problem else text


def _lost_reason(report: JobReport) -> str:
    if report.phase is Phase.ABSENT:
        detail = f", although accounting says {report.state}" if report.state else ""
        return f"the scheduler does not know the job{detail}{f': {report.reason}' if report.reason else ''}"
    code = "" if report.exit_code is None else f" (exit code {report.exit_code})"
    return f"the job was ended{code} without a result, and nothing says why"


def _cancelled_reason(report: JobReport) -> str:
    who = f"by {report.ended_by}" if report.ended_by else "by whom is not known"
    detail = f" ({report.reason})" if report.reason else ""
    return f"cancelled{'' if report.ended_by else ','} {who}{detail}{_place(report)}"


def _place(report: JobReport) -> str:
    return f" on {','.join(report.nodes)}" if report.nodes else ""


def _state_reason(report: JobReport) -> str:
    if report.set_up:
        return report.reason
    shown = f"{report.state} ({report.reason})" if report.reason else report.state
    return f"{shown}{_place(report)}"


def _error_reason(error: RankError) -> str:
    where = f"launcher of node {error.node_rank}" if error.rank is None else f"rank {error.rank}"
    at = "" if error.step is None else f" in step {error.step}"
    return f"{where}{at}: {error.message.strip().splitlines()[0] if error.message.strip() else error.error_class}"
