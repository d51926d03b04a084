"""Vocabulary of attempts and their jobs: outcomes, phases, errors, and the meaning of the scheduler's states."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from sweep.core.encoding.frozen import dataclass
from sweep.core.encoding.names import CELL_ID, CellId, UnixTime


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
    STORAGE_ERROR = "STORAGE_ERROR"
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

    @property
    def is_while_pending(self) -> bool:
        """True if only a job that waits is ended: one that begins meanwhile goes on."""
        return self in (StopKind.HOPELESS, StopKind.PAUSED)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stop:
    """This tool's own request that a job end: why, in a line, and when (Unix time)."""

    kind: StopKind
    reason: str
    time: float = 0.0


class ErrorClass(StrEnum):
    """The kind of error that a rank, or a node's launcher, reports."""

    OOM_DEVICE = "oom_device"
    OOM_HOST = "oom_host"
    COMMUNICATION = "communication"
    DEVICE = "device"
    STORAGE = "storage"
    EXCEPTION = "exception"
    REFUSED = "refused"
    STOPPED = "stopped"
    TIMEOUT = "timeout"


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptKey:
    """Which try at which repeat of which cell; repeats and attempts count from 1."""

    cell_id: CellId
    repeat: int
    attempt: int

    def __post_init__(self) -> None:
        """Refuse what no attempt can be called: its parts name a folder."""
        repeat, attempt = self.repeat, self.attempt
        if not (repeat.__class__ is int is attempt.__class__ and 0 < repeat < 1_000_000 and 0 < attempt < 1_000_000):
            raise ValueError(f"repeat {repeat!r:.40} and attempt {attempt!r:.40} are not whole numbers from 1.")
        cell_id = self.cell_id
        # Most ids are letters and digits, which costs less to find than a match; a ledger names them millions of times.
        is_plain = cell_id.__class__ is str and cell_id.isalnum() and cell_id.isascii() and len(cell_id) <= 64
        if not is_plain and (type(cell_id) is not str or not CELL_ID.holds(cell_id)):
            raise ValueError(f"{cell_id!r:.40} is not a cell id.")

    def __str__(self) -> str:
        """The form that people read and type: ``89c35e1f02ab77d4/1/2``."""
        return f"{self.cell_id}/{self.repeat}/{self.attempt}"


@dataclass(frozen=True, kw_only=True, slots=True)
class JobReport:
    """The scheduler's report on one job at one moment.

    Attributes:
        state: Its own word for the state, verbatim.
        phase: Where the job is.
        reason: Why it waits or ended, in the scheduler's own message; empty where it gives none.
        nodes: Its nodes, as far as known.
        exit_code: Exit status, as far as known; never a proof of success.
        started_at: Unix time at which it began to run; None where unknown.
        ended_at: Unix time of its end; None where unknown.
        ended_by: Who ended it, in words that follow "cancelled by"; empty where the scheduler does not say.
        at_fault: Nodes that the scheduler names as the cause of the end; empty where it names none.
        outcome: What the state's word means for the attempt, where it is specific.
        set_up: Hash of the set-up lines of which one failed; empty where none did.
        is_hopeless: True if the job waits for a reason that no waiting cures (a limit of its partition).
        is_inferred: True if the scheduler says nothing of this job, and its state follows from what it says of others.
            That can be true only of a job that never began.
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
    outcome: Outcome | None = None
    set_up: str = ""
    is_hopeless: bool = False
    is_inferred: bool = False

    @property
    def is_at_work(self) -> bool:
        """True if its processes can make steps now: a job that is suspended, or completing, cannot."""
        return self.state == "RUNNING"

    @property
    def is_anothers(self) -> bool:
        """True if it is absent because another job seems to have its id: no other absent job has a reason."""
        return self.phase is Phase.ABSENT and bool(self.reason)


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
    """The meaning of a scheduler's state: the phase and, where the state is specific, the outcome."""

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
    time: UnixTime
    error_class: ErrorClass
    message: str
    step: int | None = None
    memory_bytes: int | None = None


HINTS_FOR_HELD: Mapping[str, str] = {
    "jobhelduser": "its user held it: `scontrol release JOB`",
    "jobheldadmin": "an administrator held it: ask them, or cancel it",
    "requeue_hold": "it was requeued and held: `scontrol release JOB` once what ended it is mended, or cancel it",
    "special_exit": "it was requeued and held: `scontrol release JOB` once what ended it is mended, or cancel it",
    "launch failed requeued held": "its node could not start it: have the node seen to, then `scontrol release JOB`",
    "job requeued in held state": "it was requeued and held: `scontrol release JOB`, or cancel it",
}
"""By the scheduler's word for the state, or its reason, in small letters (Slurm's job reason codes page)."""


def held_hint(report: JobReport) -> str:
    """The remedy for a job that is held; empty for one that is not."""
    if report.phase is not Phase.PENDING:
        return ""
    words = (report.state.lower(), report.reason.strip().lower().strip("()").replace("_", " "), report.reason.lower())
    return next((HINTS_FOR_HELD[word] for word in words if word in HINTS_FOR_HELD), "")


def waits_for(report: JobReport) -> str:
    """Why a job waits, in the scheduler's word, and what can be done about it; empty for one that does not wait."""
    if report.phase is not Phase.PENDING:
        return ""
    why = report.reason.strip("()").replace("None", "") or report.state
    return "; ".join(filter(None, (why, held_hint(report))))
