"""The ledger: what was reserved, submitted, cancelled and how it ended, as events, one line of JSON each."""

from __future__ import annotations

import contextlib
import gc
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, field
from typing import TYPE_CHECKING, Any, TypeVar

from sweep.core.attempts.attempt import AttemptKey, Outcome, Phase, StopKind
from sweep.core.encoding.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


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
        is_cut: Whether the walltime was cut to end before a maintenance.
    """

    time: float
    submission: str
    tasks: tuple[AttemptKey, ...]
    gpu_hours: float
    gpus: int
    is_cut: bool = False


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
        kind: ``oom_inferred``, ``over_budget``, ``over_limit`` or ``paused``.
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
    """Jobs were first seen to be over, or not to be known, and their attempts could not be ended yet; or are back.

    Attributes:
        time: Unix time.
        keys: Their attempts.
        phase: ``ended`` or ``absent``; any other takes back what was seen before.
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
_Kind = TypeVar("_Kind")
_Line = TypeVar("_Line", str, bytes)
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


def render_event(event: Event) -> str:
    """One JSON line, without its line end."""
    return json.dumps({"v": LEDGER_VERSION, "event": EVENT_NAMES[type(event)], **asdict(event)}, allow_nan=False)


def parse_event(line: str) -> Event:
    """Read one line back; fields that a later version may have added are left aside.

    Raises:
        ValueError: If it is damaged or of another version.
    """
    line = line.strip()
    try:
        # raw_decode: json.loads looks at every line three more times, and a ledger may have a million of them.
        data, end = _DECODER.raw_decode(line)
        if end != len(line) or type(data) is not dict or data.get("v") != LEDGER_VERSION:
            raise ValueError(f"not a ledger line of version {LEDGER_VERSION}")
        return _PARSERS[data["event"]](data)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"a damaged or unknown event: {type(error).__name__} {error}") from error


_DECODER = json.JSONDecoder()


def _typed(kind: type[_Kind], value: Any) -> _Kind:
    if type(value) is not kind:
        raise ValueError(f"{value!r} is not of the type {kind.__name__}")
    return value


def _number(value: Any) -> float:
    try:
        if type(value) in (float, int) and math.isfinite(value):
            return float(value)
    except OverflowError:  # a whole number that no float can hold
        pass
    raise ValueError(f"{value!r} is not a finite number")


def _key(data: Any) -> AttemptKey:
    return AttemptKey(cell_id=data["cell_id"], repeat=data["repeat"], attempt=data["attempt"])


def _parse_reserved(data: dict[str, Any]) -> Reserved:
    return Reserved(
        time=_number(data["time"]),
        submission=_typed(str, data["submission"]),
        tasks=tuple([_key(task) for task in data["tasks"]]),
        gpu_hours=_number(data["gpu_hours"]),
        gpus=_typed(int, data["gpus"]),
        is_cut=_typed(bool, data.get("is_cut", False)),
    )


def _parse_submitted(data: dict[str, Any]) -> Submitted:
    jobs = tuple([_typed(str, job) for job in _typed(list, data["jobs"])])
    return Submitted(time=_number(data["time"]), submission=_typed(str, data["submission"]), jobs=jobs)


def _parse_refused(data: dict[str, Any]) -> Refused:
    return Refused(
        time=_number(data["time"]), submission=_typed(str, data["submission"]), reason=_typed(str, data["reason"])
    )


def _parse_released(data: dict[str, Any]) -> Released:
    return Released(
        time=_number(data["time"]), submission=_typed(str, data["submission"]), reason=_typed(str, data["reason"])
    )


def _parse_ended(data: dict[str, Any]) -> Ended:
    used = data["gpu_seconds"]
    return Ended(
        time=_number(data["time"]),
        key=_key(data["key"]),
        outcome=Outcome(data["outcome"]),
        reason=_typed(str, data["reason"]),
        gpu_seconds=None if used is None else _number(used),
        evidence=_typed(dict, data.get("evidence", {})),
    )


def _parse_cancel_requested(data: dict[str, Any]) -> CancelRequested:
    keys = tuple([_key(key) for key in data["keys"]])
    repeats = tuple([(_typed(str, cell), _typed(int, repeat)) for cell, repeat in data.get("repeats", ())])
    return CancelRequested(time=_number(data["time"]), keys=keys, repeats=repeats)


def _parse_reopened(data: dict[str, Any]) -> Reopened:
    repeats = tuple([(_typed(str, cell), _typed(int, repeat)) for cell, repeat in data["repeats"]])
    return Reopened(time=_number(data["time"]), repeats=repeats)


def _parse_skipped(data: dict[str, Any]) -> Skipped:
    repeats = tuple([(_typed(str, cell), _typed(int, repeat)) for cell, repeat in data["repeats"]])
    kind, reason = _typed(str, data["kind"]), _typed(str, data["reason"])
    return Skipped(time=_number(data["time"]), repeats=repeats, kind=kind, reason=reason)


def _parse_stop_requested(data: dict[str, Any]) -> StopRequested:
    time, kind, reason = _number(data["time"]), StopKind(data["kind"]), _typed(str, data["reason"])
    return StopRequested(time=time, key=_key(data["key"]), kind=kind, reason=reason)


def _parse_withdrawn(data: dict[str, Any]) -> Withdrawn:
    return Withdrawn(time=_number(data["time"]), key=_key(data["key"]), reason=_typed(str, data["reason"]))


def _parse_requeued(data: dict[str, Any]) -> Requeued:
    return Requeued(time=_number(data["time"]), key=_key(data["key"]), gpu_seconds=_number(data["gpu_seconds"]))


def _parse_sighted(data: dict[str, Any]) -> Sighted:
    keys = tuple([_key(key) for key in _typed(list, data["keys"])])
    return Sighted(time=_number(data["time"]), keys=keys, phase=Phase(data["phase"]))


_PARSERS: Mapping[str, Callable[[dict[str, Any]], Event]] = {
    "reserved": _parse_reserved,
    "submitted": _parse_submitted,
    "refused": _parse_refused,
    "released": _parse_released,
    "ended": _parse_ended,
    "cancel_requested": _parse_cancel_requested,
    "reopened": _parse_reopened,
    "skipped": _parse_skipped,
    "stop_requested": _parse_stop_requested,
    "withdrawn": _parse_withdrawn,
    "requeued": _parse_requeued,
    "sighted": _parse_sighted,
}


def read_lines(lines: Iterable[_Line], parse: Callable[[_Line], Event]) -> tuple[list[Event], list[str]]:
    """Events of a ledger's lines, and what is wrong with the lines that are none (kept in the file, never used).

    Args:
        lines: Of the file, as text or as bytes.
        parse: Reads one line (:func:`parse_event` or a faster one); raises ValueError where it is no event.
    """
    events: list[Event] = []
    problems: list[str] = []
    with no_collection():
        for number, line in enumerate(lines, 1):
            try:
                events.append(parse(line))
            except ValueError as error:
                if line and not line.isspace():
                    problems.append(f"ledger line {number} cannot be read ({error}); the rest was kept")
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
