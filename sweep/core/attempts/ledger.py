"""The ledger: what was reserved, submitted, cancelled and how it ended, as events, one line of JSON each."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field

from sweep.core.attempts.attempt import AttemptKey, Outcome, Phase, StopKind
from sweep.core.encoding.frozen import dataclass
from sweep.core.encoding.names import CellId, JobId, SubmissionName, UnixTime
from sweep.core.encoding.plain import plain
from sweep.core.encoding.record import SCHEMA_VERSION, RecordError, parse_line, read_record, render_line

LEDGER_VERSION = SCHEMA_VERSION

RepeatKey = tuple[CellId, int]
"""Cell id and repeat."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reserved:
    """A submission is about to be handed to the scheduler: written, and on disk, before it is.

    Attributes:
        time: Unix time.
        submission: Its name, by which the scheduler can be asked after a crash.
        tasks: Attempts by array index.
        gpu_hours: Walltime x GPUs of each task: the most it can cost.
        gpus: GPUs of each task.
        is_cut: Whether the walltime was cut to end before a maintenance.
    """

    time: UnixTime
    submission: SubmissionName
    tasks: tuple[AttemptKey, ...]
    gpu_hours: float
    gpus: int
    is_cut: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Submitted:
    """The scheduler took a submission and named its jobs, by array index."""

    time: float
    submission: SubmissionName
    jobs: tuple[JobId, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Refused:
    """The scheduler refused a submission, in its own words; its attempts are over."""

    time: float
    submission: SubmissionName
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Released:
    """A reservation never became a job (a crash before sbatch); its attempts did not happen."""

    time: float
    submission: SubmissionName
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """An attempt is over.

    Attributes:
        time: Unix time of the decision.
        key: The attempt.
        outcome: How it ended.
        reason: Why, in a line.
        gpu_seconds: What it used; None where unknown.
        evidence: What the decision rests on.
    """

    time: float
    key: AttemptKey
    outcome: Outcome
    reason: str
    gpu_seconds: float | None
    evidence: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class CancelRequested:
    """The user cancelled cells; written before the scheduler is told.

    Attributes:
        time: Unix time.
        keys: Attempts that were in flight.
        repeats: Cell and repeat: those that are not tried, or tried again, until the user asks for them.
    """

    time: float
    keys: tuple[AttemptKey, ...]
    repeats: tuple[RepeatKey, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Reopened:
    """The user asked for repeats that were given up, cancelled or found out of memory to be tried again."""

    time: float
    repeats: tuple[RepeatKey, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Skipped:
    """Repeats that the run ended without trying: the word that tables show for it, and why.

    Attributes:
        time: Unix time.
        repeats: Cell and repeat.
        kind: ``oom_inferred``, ``oom_predicted``, ``preflight_failed``, ``over_budget``, ``over_limit`` or ``paused``.
        reason: In words.
    """

    time: float
    repeats: tuple[RepeatKey, ...]
    kind: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class StopRequested:
    """This tool itself ends an attempt's job; written before the scheduler is told. How it ended is decided later."""

    time: float
    key: AttemptKey
    kind: StopKind
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Withdrawn:
    """An attempt's job was taken back before it began: it did not happen, and its number is not used again."""

    time: float
    key: AttemptKey
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Requeued:
    """An attempt's job was put back into the queue under its id; what its runs so far have used.

    Attributes:
        time: Unix time at which it was noticed.
        key: The attempt.
        gpu_seconds: Of all its runs before the one to come, or that runs now.
    """

    time: float
    key: AttemptKey
    gpu_seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Sighted:
    """Jobs were seen in another phase than before, and their attempts could not be ended yet.

    Attributes:
        time: Unix time.
        keys: Their attempts.
        phase: ``ended``, ``absent`` (the scheduler does not know the job), or ``running``: it is there again.
    """

    time: float
    keys: tuple[AttemptKey, ...]
    phase: Phase


Event = (
    Reserved
    | Submitted
    | Refused
    | Released
    | Ended
    | CancelRequested
    | Reopened
    | Skipped
    | StopRequested
    | Withdrawn
    | Requeued
    | Sighted
)
EVENT_NAMES: Mapping[type[Event], str] = {
    Reserved: "reserved",
    Submitted: "submitted",
    Refused: "refused",
    Released: "released",
    Ended: "ended",
    CancelRequested: "cancel_requested",
    Reopened: "reopened",
    Skipped: "skipped",
    StopRequested: "stop_requested",
    Withdrawn: "withdrawn",
    Requeued: "requeued",
    Sighted: "sighted",
}


_KINDS: Mapping[object, type[Event]] = {name: kind for kind, name in EVENT_NAMES.items()}
_NAME = "a ledger line"
NO_READERS: Mapping[bytes, Callable[[bytes], Event]] = {}
LINE_HEAD = f'{{"v": {LEDGER_VERSION}, "event": "'.encode()
"""How :func:`render_event` begins a line."""
_MOST_NAMED = 100
"""Damaged lines that are named; others are only counted."""


def render_event(event: Event) -> str:
    """One JSON line, without its line end."""
    return render_line({"event": EVENT_NAMES[type(event)], **plain(event)}, version=LEDGER_VERSION)


def parse_event(line: str) -> Event:
    """Read one line back.

    Raises:
        RecordError: If it is damaged or of another version.
    """
    data = parse_line(line, _NAME, may_be_bare=False)
    name = data.get("event")
    if type(name) is not str or name not in _KINDS:
        raise RecordError(f"{name!r} is no event of the ledger")
    return read_record(_KINDS[name], data, name)


def parse_lines(
    lines: Iterable[bytes], readers: Mapping[bytes, Callable[[bytes], Event]] = NO_READERS
) -> tuple[list[Event], list[str]]:
    """Events of a ledger's lines, and what is wrong with the lines that are none (kept in the file, never used).

    Args:
        lines: Of the file.
        readers: Faster readers of lines that begin as :func:`render_event` begins them, by the bytes before the quote
            that ends the event's name; :func:`parse_event` reads what has none, or what its reader refuses with a
            ValueError. They are called here, without a function between: a ledger has a million lines.
    """
    events: list[Event] = []
    problems: list[str] = []
    damaged, start = 0, len(LINE_HEAD)
    with no_collection():
        for number, line in enumerate(lines, 1):
            try:
                events.append(readers[line[: line.find(b'"', start)]](line))
                continue
            except (KeyError, ValueError, RecursionError):
                pass  # the other reader says what is wrong, if anything is
            try:
                events.append(parse_event(line.decode("utf-8", errors="replace")))
            except ValueError as error:
                if line and not line.isspace():
                    damaged += 1
                    if damaged <= _MOST_NAMED:
                        problems.append(f"ledger line {number} cannot be read ({error}); the rest was kept")
    if damaged > _MOST_NAMED:
        problems.append(f"{damaged - _MOST_NAMED:,} more ledger lines cannot be read")
    return events, problems


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Objects that all stay need no collector: of a million events it takes a third of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
