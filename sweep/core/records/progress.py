"""``progress.json``: the step a running trainer is at."""

from __future__ import annotations

from sweep.core.encoding.frozen import dataclass
from sweep.core.encoding.record import Record
from sweep.core.records.layout import PROGRESS_FILE


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress(Record):
    """The step a running trainer is at; the file is replaced every second or so."""

    KIND = "progress"
    FILE = PROGRESS_FILE

    step: int
    steps: int
    time: float
    tokens_per_s: float | None
