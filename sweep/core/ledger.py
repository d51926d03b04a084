"""The ledger: what was reserved, submitted, cancelled and how it ended, as events that fold into a history."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from sweep.core.attempt import AttemptKey, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


LEDGER_VERSION = 1

RepeatKey = tuple[str, int]
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
    """

    time: float
    submission: str
    tasks: tuple[AttemptKey, ...]
    gpu_hours: float
    gpus: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Submitted:
    """The scheduler took a submission and named its jobs, by array index."""

    time: float
    submission: str
    jobs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Refused:
    """The scheduler refused a submission, in its own words; its attempts are over."""

    time: float
    submission: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Released:
    """A reservation never became a job (a crash before sbatch); its attempts did not happen."""

    time: float
    submission: str
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
    """The user asked for attempts to be cancelled; written before the scheduler is told."""

    time: float
    keys: tuple[AttemptKey, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Reopened:
    """The user asked for repeats that were given up, cancelled or found out of memory to be tried again."""

    time: float
    repeats: tuple[RepeatKey, ...]


Event = Reserved | Submitted | Refused | Released | Ended | CancelRequested | Reopened
_KINDS: Mapping[str, type[Event]] = {
    "reserved": Reserved,
    "submitted": Submitted,
    "refused": Refused,
    "released": Released,
    "ended": Ended,
    "cancel_requested": CancelRequested,
    "reopened": Reopened,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def render_event(event: Event) -> str:
    """One JSON line, without its line end."""
    return json.dumps({"v": LEDGER_VERSION, "event": _NAMES[type(event)], **asdict(event)}, allow_nan=False)


def parse_event(line: str) -> Event:
    """Read one line back.

    Raises:
        ValueError: If it is damaged or of another version.
    """
    data: Any = json.loads(line)
    if not isinstance(data, dict) or data.pop("v", None) != LEDGER_VERSION:
        raise ValueError(f"not a ledger line of version {LEDGER_VERSION}")
    kind = _KINDS.get(data.pop("event", ""))
    if kind is None:
        raise ValueError("an event of an unknown kind")
    try:
        return kind(**_typed(data))
    except (TypeError, KeyError) as error:
        raise ValueError(f"a damaged {kind.__name__} event: {error}") from error


def _typed(data: dict[str, Any]) -> dict[str, Any]:
    if "tasks" in data:
        data["tasks"] = tuple(AttemptKey(**key) for key in data["tasks"])
    if "keys" in data:
        data["keys"] = tuple(AttemptKey(**key) for key in data["keys"])
    if "key" in data:
        data["key"] = AttemptKey(**data["key"])
    if "jobs" in data:
        data["jobs"] = tuple(data["jobs"])
    if "repeats" in data:
        data["repeats"] = tuple((cell, repeat) for cell, repeat in data["repeats"])
    if "outcome" in data:
        data["outcome"] = Outcome(data["outcome"])
    return data


@dataclass(slots=True)
class AttemptState:
    """Where one attempt stands.

    Attributes:
        key: The attempt.
        submission: Name of its submission.
        index: Its array index there.
        reserved_at: Unix time of the reservation.
        gpu_hours: The most it can cost.
        gpus: Its GPUs.
        job_id: The scheduler's id; None until it is known.
        outcome: How it ended; None while it is in flight.
        reason: Why.
        gpu_seconds: What it used; None where unknown.
        is_cancel_requested: The user asked for its end.
        released: The reservation never became a job.
        ended_at: Unix time of the decision.
        evidence: What the decision rests on.
    """

    key: AttemptKey
    submission: str
    index: int
    reserved_at: float
    gpu_hours: float
    gpus: int
    job_id: str | None = None
    outcome: Outcome | None = None
    reason: str = ""
    gpu_seconds: float | None = None
    is_cancel_requested: bool = False
    released: bool = False
    ended_at: float | None = None
    evidence: Mapping[str, object] = field(default_factory=dict)

    @property
    def in_flight(self) -> bool:
        """Whether it may still be running, or about to."""
        return self.outcome is None and not self.released


@dataclass(slots=True)
class RepeatHistory:
    """All attempts at one repeat of a cell, and since which one its retries are counted anew."""

    attempts: list[AttemptState] = field(default_factory=list)
    reopened_after: int = 0

    @property
    def last(self) -> AttemptState | None:
        """The latest attempt that happened or may be happening."""
        return next((attempt for attempt in reversed(self.attempts) if not attempt.released), None)

    @property
    def highest_number(self) -> int:
        """The highest attempt number ever reserved (numbers are not used twice)."""
        return max((attempt.key.attempt for attempt in self.attempts), default=0)

    def ended(self, outcome: Outcome) -> int:
        """How many attempts since the last reopening ended so."""
        return sum(a.outcome is outcome for a in self.attempts if a.key.attempt > self.reopened_after)

    @property
    def succeeded(self) -> AttemptState | None:
        """The attempt that measured it, if one did."""
        return next((attempt for attempt in self.attempts if attempt.outcome is Outcome.SUCCEEDED), None)


_NEVER_RUN = RepeatHistory()


@dataclass(slots=True)
class History:
    """What the events of a ledger add up to.

    Attributes:
        repeats: Attempts by cell and repeat.
        submissions: Attempts of each submission, by array index.
        problems: Events that contradict what went before, in words.
    """

    repeats: dict[RepeatKey, RepeatHistory] = field(default_factory=dict)
    submissions: dict[str, list[AttemptState]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def of(self, cell_id: str, repeat: int) -> RepeatHistory:
        """Attempts at one repeat; empty where there were none."""
        return self.repeats.get((cell_id, repeat), _NEVER_RUN)

    def attempt(self, key: AttemptKey) -> AttemptState | None:
        """One attempt, if it was reserved."""
        found = self.repeats.get((key.cell_id, key.repeat))
        return None if found is None else next((a for a in found.attempts if a.key == key), None)

    def in_flight(self) -> Iterator[AttemptState]:
        """Attempts that may still be running."""
        for repeat in self.repeats.values():
            for attempt in repeat.attempts:
                if attempt.in_flight:
                    yield attempt

    def apply(self, event: Event) -> None:
        """Take one more event in."""
        _APPLY[type(event)](self, event)


def _reserved(history: History, event: Reserved) -> None:
    if event.submission in history.submissions:
        history.problems.append(f"submission {event.submission} was reserved twice")
        return
    states = [
        AttemptState(
            key=key,
            submission=event.submission,
            index=index,
            reserved_at=event.time,
            gpu_hours=event.gpu_hours,
            gpus=event.gpus,
        )
        for index, key in enumerate(event.tasks)
    ]
    history.submissions[event.submission] = states
    for state in states:
        history.repeats.setdefault((state.key.cell_id, state.key.repeat), RepeatHistory()).attempts.append(state)


def _of_submission(history: History, name: str) -> list[AttemptState]:
    if name not in history.submissions:
        history.problems.append(f"submission {name} has events but no reservation")
    return history.submissions.get(name, [])


def _submitted(history: History, event: Submitted) -> None:
    for state, job_id in zip(_of_submission(history, event.submission), event.jobs, strict=False):
        state.job_id = job_id


def _refused(history: History, event: Refused) -> None:
    for state in _of_submission(history, event.submission):
        if state.outcome is None:
            state.outcome, state.reason, state.ended_at = Outcome.REJECTED_BY_SCHEDULER, event.reason, event.time
            state.gpu_seconds = 0.0


def _released(history: History, event: Released) -> None:
    for state in _of_submission(history, event.submission):
        state.released, state.reason = True, event.reason


def _ended(history: History, event: Ended) -> None:
    state = history.attempt(event.key)
    if state is None:
        history.problems.append(f"attempt {event.key} ended but was never reserved")
        return
    if state.outcome is Outcome.SUCCEEDED:
        return  # a finished measurement stands, whatever is said later
    state.outcome, state.reason, state.ended_at = event.outcome, event.reason, event.time
    state.gpu_seconds, state.evidence = event.gpu_seconds, event.evidence


def _cancel_requested(history: History, event: CancelRequested) -> None:
    for key in event.keys:
        state = history.attempt(key)
        if state is not None:
            state.is_cancel_requested = True


def _reopened(history: History, event: Reopened) -> None:
    for key in event.repeats:
        repeat = history.repeats.setdefault(key, RepeatHistory())
        repeat.reopened_after = repeat.highest_number


_APPLY: Mapping[type, Any] = {
    Reserved: _reserved,
    Submitted: _submitted,
    Refused: _refused,
    Released: _released,
    Ended: _ended,
    CancelRequested: _cancel_requested,
    Reopened: _reopened,
}


def fold(events: Iterable[Event]) -> History:
    """The history that the events add up to."""
    history = History()
    for event in events:
        history.apply(event)
    return history


def read_lines(lines: Iterable[str]) -> tuple[list[Event], list[str]]:
    """Events of a ledger's lines, and what is wrong with the lines that are none (kept in the file, never used)."""
    events: list[Event] = []
    problems: list[str] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            events.append(parse_event(line))
        except ValueError as error:
            problems.append(f"ledger line {number} cannot be read ({error}); the rest was kept")
    return events, problems
