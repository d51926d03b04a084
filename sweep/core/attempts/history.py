"""Folds the events of a ledger into the state of attempts, repeats and submissions, and notes contradictions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sweep.core.attempts.attempt import AttemptKey, Outcome, Phase, Stop
from sweep.core.attempts.ledger import (
    CancelRequested,
    Ended,
    Event,
    Refused,
    Released,
    Reopened,
    RepeatKey,
    Requeued,
    Reserved,
    Sighted,
    Skipped,
    StopRequested,
    Submitted,
    Withdrawn,
    no_collection,
)


@dataclass(slots=True)
class AttemptState:
    """The state of one attempt.

    Attributes:
        key: The attempt.
        submission: Name of its submission; empty where the line of its reservation is lost.
        index: Its array index there.
        reserved_at: Unix time of the reservation.
        gpu_hours: The most it can cost.
        gpus: Its GPUs.
        is_cut: True if its walltime was cut to end before a maintenance.
        job_id: The scheduler's id; None until it is known.
        outcome: How it ended; None while it is in flight.
        reason: Why.
        gpu_seconds: What it used; None where unknown.
        earlier_gpu_seconds: What runs of its job used before it was requeued, as far as noticed.
        is_cancel_requested: The user asked for its end.
        stop: Why this tool itself ends it; None where it does not.
        released: The reservation never became a job, or the job was taken back before it began.
        gone: That its job was seen to be over, or not to be known, and since when (Unix time); None: it was not.
        ended_at: Unix time of the decision.
        evidence: What the decision rests on.
    """

    key: AttemptKey
    submission: str
    index: int
    reserved_at: float
    gpu_hours: float
    gpus: int
    is_cut: bool = False
    job_id: str | None = None
    outcome: Outcome | None = None
    reason: str = ""
    gpu_seconds: float | None = None
    earlier_gpu_seconds: float = 0.0
    is_cancel_requested: bool = False
    stop: Stop | None = None
    released: bool = False
    gone: tuple[Phase, float] | None = None
    ended_at: float | None = None
    evidence: Mapping[str, object] = field(default_factory=dict)

    @property
    def in_flight(self) -> bool:
        """True if it may still be running, or may yet begin."""
        return self.outcome is None and not self.released


@dataclass(slots=True)
class RepeatHistory:
    """All attempts at one repeat of a cell.

    Attributes:
        attempts: By number.
        reopened_after: Number of the attempt after which retries are counted anew.
        skipped: Why a run ended without trying it, as (kind, reason); None once it was tried or reopened, or never was.
        held: The user cancelled it: it is not tried, or tried again, before it is reopened.
    """

    attempts: list[AttemptState] = field(default_factory=list)
    reopened_after: int = 0
    skipped: tuple[str, str] | None = None
    held: bool = False

    @property
    def last(self) -> AttemptState | None:
        """The latest attempt that happened or may be happening."""
        return next((attempt for attempt in reversed(self.attempts) if not attempt.released), None)

    @property
    def highest_number(self) -> int:
        """The highest attempt number ever reserved (numbers are not used twice)."""
        return max((attempt.key.attempt for attempt in self.attempts), default=0)

    def ended(self, outcome: Outcome) -> int:
        """How many attempts since the last reopening ended so; a TIMEOUT of a walltime that was cut says nothing."""
        return sum(
            attempt.outcome is outcome and not (outcome is Outcome.TIMEOUT and attempt.is_cut)
            for attempt in self.attempts
            if attempt.key.attempt > self.reopened_after
        )

    @property
    def succeeded(self) -> AttemptState | None:
        """The attempt that measured it, if one did."""
        return next((attempt for attempt in self.attempts if attempt.outcome is Outcome.SUCCEEDED), None)


_NEVER_RUN = RepeatHistory()


@dataclass(slots=True)
class History:
    """The state that the events of a ledger add up to.

    Attributes:
        repeats: Attempts by cell and repeat.
        submissions: Attempts of each submission, by array index.
        problems: Messages about events that contradict what went before.
        unreserved: Events of submissions whose reservation is not there (its line is damaged). Which attempts they
            are about is not known until a reservation of that name comes, be it late; then they are taken in.
        changes: Goes up with every event that is taken in after the first ones were folded.
    """

    repeats: dict[RepeatKey, RepeatHistory] = field(default_factory=dict)
    submissions: dict[str, list[AttemptState]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    unreserved: dict[str, list[Submitted | Refused | Released]] = field(default_factory=dict)
    changes: int = field(default=0, compare=False)

    def of(self, cell_id: str, repeat: int) -> RepeatHistory:
        """Attempts at one repeat; empty where there were none."""
        return self.repeats.get((cell_id, repeat), _NEVER_RUN)

    def attempt(self, key: AttemptKey) -> AttemptState | None:
        """One attempt, if it was reserved."""
        for attempt in self.of(key.cell_id, key.repeat).attempts:
            if attempt.key.attempt == key.attempt:
                return attempt
        return None

    def in_flight(self) -> Iterator[AttemptState]:
        """Attempts that may still be running."""
        return (attempt for repeat in self.repeats.values() for attempt in repeat.attempts if attempt.in_flight)

    def apply(self, event: Event) -> None:
        """Take one more event in."""
        self.changes += 1
        _APPLY[type(event)](self, event)


def _reserved(history: History, event: Reserved) -> None:
    if event.submission in history.submissions:
        history.problems.append(f"submission {event.submission} was reserved twice")
        return
    states = [_reserve(history, event, index, key) for index, key in enumerate(event.tasks)]
    history.submissions[event.submission] = states
    for held in history.unreserved.pop(event.submission, ()):
        history.apply(held)


def _reserve(history: History, event: Reserved, index: int, key: AttemptKey) -> AttemptState:
    repeat = _repeat_of(history, key)
    attempts, repeat.skipped, number = repeat.attempts, None, key.attempt
    for other in attempts:
        if other.key.attempt != number:
            if other.outcome is None and not other.released:
                history.problems.append(f"attempt {key} was reserved while {other.key} was in flight")
        elif other.submission:
            history.problems.append(f"attempt {key} was reserved by {other.submission} and by {event.submission}")
        else:
            # It ended, or was cancelled, under a reservation that comes late.
            other.submission, other.index, other.reserved_at = event.submission, index, event.time
            other.gpu_hours, other.gpus, other.is_cut = event.gpu_hours, event.gpus, event.is_cut
            return other
    state = AttemptState(
        key=key,
        submission=event.submission,
        index=index,
        reserved_at=event.time,
        gpu_hours=event.gpu_hours,
        gpus=event.gpus,
        is_cut=event.is_cut,
    )
    _insert(attempts, state)
    return state


def _repeat_of(history: History, key: AttemptKey) -> RepeatHistory:
    name = (key.cell_id, key.repeat)
    return history.repeats.get(name) or history.repeats.setdefault(name, RepeatHistory())


def _insert(attempts: list[AttemptState], state: AttemptState) -> None:
    attempts.append(state)
    if len(attempts) > 1 and attempts[-2].key.attempt > state.key.attempt:
        attempts.sort(key=lambda attempt: attempt.key.attempt)


def _attempts_of(history: History, event: Submitted | Refused | Released) -> list[AttemptState]:
    states = history.submissions.get(event.submission)
    if states is None:
        if event.submission not in history.unreserved:
            history.problems.append(f"submission {event.submission} has events but no reservation")
        history.unreserved.setdefault(event.submission, []).append(event)
    return states or []


def _submitted(history: History, event: Submitted) -> None:
    states = _attempts_of(history, event)
    if states and len(states) != len(event.jobs):
        counts = f"{len(event.jobs)} jobs for {len(states)} attempts"
        history.problems.append(f"submission {event.submission} was given {counts}")
    for state, job_id in zip(states, event.jobs, strict=False):
        state.job_id, state.gone = job_id, None
        if state.released or state.outcome is Outcome.REJECTED_BY_SCHEDULER:
            # The job exists after all: it must be watched, or the repeat would be run twice.
            history.problems.append(f"attempt {state.key} was given up, yet is job {job_id}")
            state.released, state.outcome, state.reason, state.ended_at = False, None, "", None
            state.gpu_seconds = None


def _refused(history: History, event: Refused) -> None:
    for state in _attempts_of(history, event):
        if not state.in_flight:
            continue
        if state.job_id is not None:
            history.problems.append(f"attempt {state.key} is job {state.job_id}, yet was refused")
            continue
        state.outcome, state.reason, state.ended_at = Outcome.REJECTED_BY_SCHEDULER, event.reason, event.time
        state.gpu_seconds = 0.0


def _released(history: History, event: Released) -> None:
    for state in _attempts_of(history, event):
        if state.job_id is None and state.outcome is Outcome.CANCELLED:
            continue  # the user's word on one task of an array; the others did not happen
        if state.job_id is not None or state.outcome is not None:
            history.problems.append(f"attempt {state.key} did happen, yet was released")
            continue
        state.released, state.reason = True, event.reason


def _ended(history: History, event: Ended) -> None:
    attempts = _repeat_of(history, event.key).attempts
    number = event.key.attempt
    states = [state for state in attempts if state.key.attempt == number]
    if not states:
        # The line of its reservation is lost; what it measured is not, nor is its number used again.
        history.problems.append(f"attempt {event.key} ended but was never reserved")
        states = [AttemptState(key=event.key, submission="", index=0, reserved_at=event.time, gpu_hours=0.0, gpus=0)]
        _insert(attempts, states[0])
    for state in states:
        if state.outcome is Outcome.SUCCEEDED:
            continue  # a finished measurement stands, whatever is said later
        if state.released:
            history.problems.append(f"attempt {event.key} was released, yet ended")
            state.released = False
        state.outcome, state.reason, state.ended_at = event.outcome, event.reason, event.time
        state.gpu_seconds, state.evidence = event.gpu_seconds, event.evidence


def _known(history: History, key: AttemptKey, was: str) -> AttemptState | None:
    """The attempt that an event is about; one that was never reserved is a problem."""
    state = history.attempt(key)
    if state is None:
        history.problems.append(f"attempt {key} was {was} but never reserved")
    return state


def _cancel_requested(history: History, event: CancelRequested) -> None:
    for key in event.keys:
        if (state := _known(history, key, "cancelled")) is not None:
            state.is_cancel_requested = True
    for cell_id, number in event.repeats:
        history.repeats.setdefault((cell_id, number), RepeatHistory()).held = True


def _stop_requested(history: History, event: StopRequested) -> None:
    if (state := _known(history, event.key, "to be stopped")) is not None:
        state.stop = Stop(kind=event.kind, reason=event.reason, time=event.time)


def _withdrawn(history: History, event: Withdrawn) -> None:
    state = _known(history, event.key, "taken back")
    if state is not None and state.outcome is not None:
        history.problems.append(f"attempt {event.key} ended, yet was taken back")
    elif state is not None:
        state.released, state.reason = True, event.reason


def _requeued(history: History, event: Requeued) -> None:
    if (state := _known(history, event.key, "requeued")) is not None:
        state.earlier_gpu_seconds = event.gpu_seconds


def _sighted(history: History, event: Sighted) -> None:
    for key in event.keys:
        if (state := _known(history, key, "looked for")) is not None:
            state.gone = (event.phase, event.time) if event.phase in (Phase.ENDED, Phase.ABSENT) else None


def _reopened(history: History, event: Reopened) -> None:
    for key in event.repeats:
        repeat = history.repeats.setdefault(key, RepeatHistory())
        # An attempt in flight was not what the user had given up on: how it ends is judged anew.
        over = (attempt.key.attempt for attempt in repeat.attempts if not attempt.in_flight)
        repeat.reopened_after, repeat.held, repeat.skipped = max(over, default=0), False, None


def _skipped(history: History, event: Skipped) -> None:
    for key in event.repeats:
        history.repeats.setdefault(key, RepeatHistory()).skipped = (event.kind, event.reason)


_APPLY: Mapping[type, Any] = {
    Reserved: _reserved,
    Submitted: _submitted,
    Refused: _refused,
    Released: _released,
    Ended: _ended,
    CancelRequested: _cancel_requested,
    Reopened: _reopened,
    Skipped: _skipped,
    StopRequested: _stop_requested,
    Withdrawn: _withdrawn,
    Requeued: _requeued,
    Sighted: _sighted,
}


def fold(events: Iterable[Event]) -> History:
    """The history that the events add up to."""
    history = History()
    with no_collection():
        for event in events:
            _APPLY[type(event)](history, event)
    return history
