"""Effects of a settlement, as data: an executor carries them out, and ``status`` drops them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
