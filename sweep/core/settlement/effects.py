"""Data of a settlement: what a process remembers between two looks at a run, and effects for an executor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sweep.core.attempts.attempt import AttemptKey, Phase
from sweep.core.attempts.ledger import Event
from sweep.core.settlement.facts import Question


@dataclass(frozen=True, slots=True)
class Note:
    """Tell people something that changes nothing by itself."""

    text: str


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Claim a submission for nobody, so that no job begins it; the claim that is there then is a new fact."""

    submission: str


@dataclass(frozen=True, slots=True)
class Cancel:
    """Ask the scheduler to end a job; with ``only_pending`` one that has begun is left alone."""

    job_id: str
    submission: str
    only_pending: bool = False


@dataclass(frozen=True, slots=True)
class DropRequest:
    """Remove a request of ``sweep cancel`` that was acted on."""

    name: str


Effect = Event | Note | Withdraw | Cancel | DropRequest | Question[Any]
"""An event is recorded; a question is answered, and the settlement done again."""


@dataclass(frozen=True, slots=True)
class AbsenceTimer:
    """Since when (monotonic) a job has ended or been unknown without a break; ``RUNNING``: it was there again."""

    phase: Phase
    since: float


@dataclass(frozen=True, kw_only=True, slots=True)
class JobMemory:
    """The memory of one attempt's job; times are monotonic seconds.

    Attributes:
        job_id: The job: another one has a memory of its own.
        absence: Since when it has been over or unknown; None: it never was.
        run: The run of the job whose earlier runs are counted already: True if it waited, and its start (Unix time).
        cancel_heard_at: When the scheduler last heard a cancel of it.
        is_stop_new: True if this process itself asked for its end.
        has_stop_lapsed: True if it began before it could be taken back, and goes on.
        measured_since: Since when it runs although its result is there.
        hopeless_since: Since when it waits for what never comes.
        is_held: True if somebody must release it, and people were told.
        stalled_since: Since when it has made no step.
        step: The step that it was at.
    """

    job_id: str | None
    absence: AbsenceTimer | None = None
    run: tuple[bool, float | None] | None = None
    cancel_heard_at: float | None = None
    is_stop_new: bool = False
    has_stop_lapsed: bool = False
    measured_since: float | None = None
    hopeless_since: float | None = None
    is_held: bool = False
    stalled_since: float | None = None
    step: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """The memory of a run.

    Attributes:
        jobs: Of attempts in flight.
        poll_failure: Why the scheduler could last not be asked; empty: it could. People are told once.
        cancel_failure: Why the scheduler did not hear the last cancel; empty: it did.
        lookup_failures: Why submissions could last not be looked up.
    """

    jobs: Mapping[AttemptKey, JobMemory] = field(default_factory=dict)
    poll_failure: str = ""
    cancel_failure: str = ""
    lookup_failures: Mapping[str, str] = field(default_factory=dict)
