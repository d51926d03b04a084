"""``progress.json``: the step a running trainer is at."""

from __future__ import annotations

from dataclasses import asdict

from sweep.core.encoding.frozen import dataclass
from sweep.core.encoding.record import parse_object, read_fields, render
from sweep.core.records.layout import PROGRESS_FILE


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """Where a running trainer is (``progress.json``, replaced every second or so)."""

    step: int
    steps: int
    time: float
    tokens_per_s: float | None

    def render(self) -> str:
        """Text of the file."""
        return render("progress", asdict(self))

    @classmethod
    def parse(cls, text: str) -> Progress:
        """Read the file back.

        Raises:
            RecordError: If it is damaged.
        """
        return cls(**read_fields(cls, parse_object(text, "progress"), PROGRESS_FILE))
