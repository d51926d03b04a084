"""How an attempt ended: outcomes, the scheduler's words, and the order in which evidence decides."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Outcome(StrEnum):
    """How an attempt ended."""

    SUCCEEDED = "SUCCEEDED"
    OOM_DEVICE = "OOM_DEVICE"
    OOM_HOST = "OOM_HOST"
    TIMEOUT = "TIMEOUT"
    NODE_FAIL = "NODE_FAIL"
    PREEMPTED = "PREEMPTED"
    COMM_FAILURE = "COMM_FAILURE"
    DEVICE_ERROR = "DEVICE_ERROR"
    TRAINER_ERROR = "TRAINER_ERROR"
    REJECTED_BY_SCHEDULER = "REJECTED_BY_SCHEDULER"
    CANCELLED = "CANCELLED"
    LOST = "LOST"


class Phase(StrEnum):
    """Where a job is, as far as the scheduler says."""

    PENDING = "pending"
    RUNNING = "running"
    ENDED = "ended"
    ABSENT = "absent"


class StopKind(StrEnum):
    """Why this tool itself ends a job."""

    HANG = "hang"
    HOPELESS = "hopeless"
    OUTLIVED = "outlived"
    OVER_BUDGET = "over_budget"
    PAUSED = "paused"


WHILE_PENDING = (StopKind.HOPELESS, StopKind.PAUSED)
"""Stops of jobs that wait: one that begins meanwhile goes on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stop:
    """This tool's own word on a job: it is to end, and why, in a line; said at this Unix time."""

    kind: StopKind
    reason: str
    time: float = 0.0


class ErrorClass(StrEnum):
    """What kind of error one rank, or one node's launcher, reports."""

    OOM_DEVICE = "oom_device"
    OOM_HOST = "oom_host"
    COMMUNICATION = "communication"
    DEVICE = "device"
    EXCEPTION = "exception"
    REFUSED = "refused"
    STOPPED = "stopped"
    TIMEOUT = "timeout"


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptKey:
    """Which try at which repeat of which cell; repeats and attempts count from 1."""

    cell_id: str
    repeat: int
    attempt: int

    def __post_init__(self) -> None:
        """Refuse what no attempt can be called: its parts name a folder."""
        repeat, attempt = self.repeat, self.attempt
        if type(repeat) is not int or type(attempt) is not int or repeat < 1 or attempt < 1:
            raise ValueError(f"repeat {repeat!r} and attempt {attempt!r} are not whole numbers from 1.")
        if type(self.cell_id) is not str:
            raise ValueError(f"{self.cell_id!r} is not a cell id.")

    def __str__(self) -> str:
        """The form that people read and type: ``89c35e1f02ab77d4/1/2``."""
        return f"{self.cell_id}/{self.repeat}/{self.attempt}"


@dataclass(frozen=True, kw_only=True, slots=True)
class JobReport:
    """What the scheduler says of one job at one moment.

    Attributes:
        state: Its own word for the state, verbatim.
        phase: Where the job is.
        reason: Why it waits or ended, in the scheduler's words; empty where it gives none.
        nodes: Its nodes, as far as known.
        exit_code: Exit status, as far as known; never a proof of success.
        started_at: Unix time at which it began to run; None where unknown.
        ended_at: Unix time of its end; None where unknown.
        ended_by: Who ended it, in words that follow "cancelled by"; empty where the scheduler does not say.
        at_fault: Nodes that the scheduler names as the cause of the end; empty where it names none.
        is_inferred: Whether that is no word of the scheduler on this job but follows from what it says of others, which
            can be true only of a job that never began.
    """

    state: str
    phase: Phase
    reason: str = ""
    nodes: tuple[str, ...] = ()
    exit_code: int | None = None
    started_at: float | None = None
    ended_at: float | None = None
    ended_by: str = ""
    at_fault: tuple[str, ...] = ()
    is_inferred: bool = False

    @property
    def is_at_work(self) -> bool:
        """Whether its processes can make steps now: a job that is suspended, or completing, cannot."""
        return self.state == "RUNNING"


@dataclass(frozen=True, kw_only=True, slots=True)
class JobRun:
    """One run of a job, which has several where it was requeued under its id.

    Attributes:
        started_at: Unix time of its start.
        ended_at: Unix time of its end; None while it runs, or where the end is not known (yet).
    """

    started_at: float
    ended_at: float | None = None


ABSENT = JobReport(state="", phase=Phase.ABSENT)
"""The report on a job that the scheduler does not know."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SchedulerState:
    """What one of the scheduler's words means: the phase and, where the word is specific, the outcome."""

    phase: Phase
    outcome: Outcome | None = None


_PENDING, _RUNNING, _ENDED = (SchedulerState(phase=p) for p in (Phase.PENDING, Phase.RUNNING, Phase.ENDED))


def _ended(outcome: Outcome) -> SchedulerState:
    return SchedulerState(phase=Phase.ENDED, outcome=outcome)


SLURM_STATES: Mapping[str, SchedulerState] = {
    "PENDING": _PENDING,
    "CONFIGURING": _PENDING,
    "REQUEUED": _PENDING,
    "REQUEUE_FED": _PENDING,
    "REQUEUE_HOLD": _PENDING,
    "SPECIAL_EXIT": _PENDING,
    "RESV_DEL_HOLD": _PENDING,
    "POWER_UP_NODE": _PENDING,
    "RUNNING": _RUNNING,
    "COMPLETING": _RUNNING,
    "STAGE_OUT": _RUNNING,
    "SIGNALING": _RUNNING,
    "RESIZING": _RUNNING,
    "STOPPED": _RUNNING,
    "SUSPENDED": _RUNNING,
    "COMPLETED": _ENDED,
    "FAILED": _ENDED,
    "BOOT_FAIL": _ended(Outcome.NODE_FAIL),
    "NODE_FAIL": _ended(Outcome.NODE_FAIL),
    "LAUNCH_FAILED": _ended(Outcome.NODE_FAIL),
    "RECONFIG_FAIL": _ended(Outcome.NODE_FAIL),
    "TIMEOUT": _ended(Outcome.TIMEOUT),
    "DEADLINE": _ended(Outcome.TIMEOUT),
    "PREEMPTED": _ended(Outcome.PREEMPTED),
    "REVOKED": _ended(Outcome.PREEMPTED),
    "OUT_OF_MEMORY": _ended(Outcome.OOM_HOST),
    "CANCELLED": _ended(Outcome.CANCELLED),
}
UNKNOWN_STATE = _RUNNING
"""A word that is not in the table counts as alive: a job is never given up for a word that is not understood."""


def slurm_state(word: str) -> SchedulerState:
    """The meaning of a state as squeue and sacct print it (``CANCELLED by 1000``, ``NODE_FAIL+``)."""
    first = word.split(maxsplit=1)[0].upper() if word.strip() else ""
    start = first.rstrip("+")
    if start in SLURM_STATES or start == first:
        return SLURM_STATES.get(start, UNKNOWN_STATE)
    # A column too narrow for the word ends in a plus sign: OUT_OF_ME+.
    meant = [state for name, state in SLURM_STATES.items() if start and name.startswith(start)]
    return meant[0] if len(meant) == 1 else UNKNOWN_STATE


@dataclass(frozen=True, kw_only=True, slots=True)
class RankError:
    """An error file of one rank, or of one node's launcher (then ``rank`` is None).

    Attributes:
        rank: Global rank; None for a launcher.
        node_rank: Node on which it happened.
        time: Unix time at which it was caught.
        error_class: Its kind.
        message: What was raised, in one line or a few.
        step: Step in which it happened; None before the first.
        memory_bytes: Device memory allocated at the time; None where unknown.
    """

    rank: int | None
    node_rank: int
    time: float
    error_class: ErrorClass
    message: str
    step: int | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """All that is known of an attempt that is over, or is taken to be.

    Attributes:
        has_result: A valid, complete result of this very attempt is there.
        result_problem: What is wrong with a result file that is there but does not count.
        cancelled_by_user: The user cancelled it through this tool.
        report: The scheduler's last word.
        outcome_of_state: What that word means where it is specific (:func:`slurm_state`).
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
    """Whether an error is of a kind that another one causes; the cause's own file may still be on its way."""
    return error.error_class in _CONSEQUENCES


def first_cause(errors: Sequence[RankError]) -> RankError | None:
    """The earliest error that is not the consequence of another; else the earliest of all.

    Where a signal and a lost peer are all there is, whichever came first brought the other about: torchrun stops the
    ranks that are left when one loses its peer, and ranks that are stopped are lost to their peers.
    """
    causes = [error for error in errors if not is_consequence(error)]
    return min(causes or errors, key=lambda error: error.time, default=None)


def judge(evidence: Evidence) -> Verdict:
    """How an attempt ended, decided in the stated order; an exit code alone is never success.

    A valid result of this attempt; the user's cancel; a specific word of the scheduler; errors that no other causes;
    why this tool itself ended it; errors that others cause; LOST.
    That a job was cancelled says nothing where it was this tool that ended it.
    One end without any of these is no loss: a job that ended by itself, without a result or with one that does not
    count. That is the trainer's fault, and it would do so again.
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
        return Verdict(outcome=_OUTCOME_OF_ERROR[cause.error_class], reason=_error_reason(cause))
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
        return f"the scheduler does not know the job{f': {report.reason}' if report.reason else ''}"
    code = "" if report.exit_code is None else f" (exit code {report.exit_code})"
    return f"the job was ended{code} without a result, and nothing says why"


def _cancelled_reason(report: JobReport) -> str:
    who = f"by {report.ended_by}" if report.ended_by else "by whom is not known"
    said = f" ({report.reason})" if report.reason else ""
    return f"cancelled{'' if report.ended_by else ','} {who}{said}{_place(report)}"


def _place(report: JobReport) -> str:
    return f" on {','.join(report.nodes)}" if report.nodes else ""


def _state_reason(report: JobReport) -> str:
    shown = f"{report.state} ({report.reason})" if report.reason else report.state
    return f"{shown}{_place(report)}"


def _error_reason(error: RankError) -> str:
    where = f"launcher of node {error.node_rank}" if error.rank is None else f"rank {error.rank}"
    at = "" if error.step is None else f" in step {error.step}"
    return f"{where}{at}: {error.message.strip().splitlines()[0] if error.message.strip() else error.error_class}"


class Disposition(StrEnum):
    """What an outcome means for the cell once no retry is left."""

    MEASURED = "measured"
    FINDING = "finding"
    GAVE_UP = "gave_up"
    HELD = "held"


@dataclass(frozen=True, kw_only=True, slots=True)
class OutcomeRule:
    """What follows from an outcome.

    Attributes:
        max_retries: Further attempts that it is worth; 0 for what would fail again. One outcome's do not count
            against another's.
        disposition: What it means for the cell in the end.
        shown_as: The word in the table's status column.
        backoff_s: Seconds before the first retry; doubled for each further one.
        walltime_factor: Walltime of a retry over that of the attempt before it, up to the partition's limit.
        avoid_nodes: Whether a retry keeps away from the nodes that the evidence blames.
    """

    max_retries: int
    disposition: Disposition
    shown_as: str
    backoff_s: float = 0.0
    walltime_factor: float = 1.0
    avoid_nodes: bool = False

    def __post_init__(self) -> None:
        """Refuse what no retry can mean."""
        if self.max_retries < 0 or self.backoff_s < 0 or self.walltime_factor < 1:
            raise ValueError(
                f"max_retries={self.max_retries}, backoff_s={self.backoff_s}, walltime_factor={self.walltime_factor}: "
                "the first two must be 0 or more, the factor 1 or more."
            )


OUTCOME_RULES: Mapping[Outcome, OutcomeRule] = {
    Outcome.SUCCEEDED: OutcomeRule(max_retries=0, disposition=Disposition.MEASURED, shown_as="measured"),
    Outcome.OOM_DEVICE: OutcomeRule(max_retries=0, disposition=Disposition.FINDING, shown_as="oom_device"),
    Outcome.OOM_HOST: OutcomeRule(max_retries=0, disposition=Disposition.FINDING, shown_as="oom_host"),
    Outcome.TIMEOUT: OutcomeRule(
        max_retries=1, disposition=Disposition.GAVE_UP, shown_as="timeout", walltime_factor=2.0
    ),
    Outcome.NODE_FAIL: OutcomeRule(
        max_retries=5, disposition=Disposition.GAVE_UP, shown_as="node_fail", avoid_nodes=True
    ),
    Outcome.PREEMPTED: OutcomeRule(max_retries=20, disposition=Disposition.GAVE_UP, shown_as="preempted"),
    Outcome.COMM_FAILURE: OutcomeRule(
        max_retries=2, disposition=Disposition.GAVE_UP, shown_as="comm_failure", backoff_s=10.0
    ),
    Outcome.DEVICE_ERROR: OutcomeRule(
        max_retries=2, disposition=Disposition.GAVE_UP, shown_as="device_error", avoid_nodes=True
    ),
    Outcome.TRAINER_ERROR: OutcomeRule(max_retries=0, disposition=Disposition.GAVE_UP, shown_as="trainer_error"),
    Outcome.REJECTED_BY_SCHEDULER: OutcomeRule(
        max_retries=0, disposition=Disposition.GAVE_UP, shown_as="rejected_by_scheduler"
    ),
    Outcome.CANCELLED: OutcomeRule(max_retries=0, disposition=Disposition.HELD, shown_as="cancelled"),
    Outcome.LOST: OutcomeRule(max_retries=2, disposition=Disposition.GAVE_UP, shown_as="lost", backoff_s=60.0),
}
