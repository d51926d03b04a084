"""Records of what is under way: ``progress.json``, the lines of ``steps.jsonl``, and notes between commands."""

from __future__ import annotations

import math

from sweep.core.encoding.frozen import dataclass
from sweep.core.encoding.names import CellId, UnixTime
from sweep.core.encoding.plain import plain
from sweep.core.encoding.record import Record, parse_line, read_record, render_line
from sweep.core.records.layout import AWAY_FILE, PROGRESS_FILE, STEPS_FILE


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress(Record):
    """The current step of a running trainer; the file is replaced about once a second."""

    KIND = "progress"
    FILE = PROGRESS_FILE

    step: int
    steps: int
    time: UnixTime
    tokens_per_s: float | None


_NAME = f"a line of {STEPS_FILE}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One optimiser step (a line of ``steps.jsonl``); times are the maximum over ranks.

    Attributes:
        step: Counts from 0.
        step_time_s: Seconds; the maximum over ranks.
        tokens: Tokens over all ranks.
        loss: Mean cross-entropy a token over the global batch, before the update.
        grad_norm: Global norm of the gradient before clipping; None where it was not computed.
        is_warmup: True if it lies before the measured window.
    """

    step: int
    step_time_s: float
    tokens: int
    loss: float | None
    grad_norm: float | None
    is_warmup: bool

    def render(self) -> str:
        """One JSON line; a loss that is not finite becomes null, since JSON has no word for it."""
        data = plain(self)
        for name in ("loss", "grad_norm"):
            if data[name] is not None and not math.isfinite(data[name]):
                data[name] = None
        return render_line(data, version=None) + "\n"

    @classmethod
    def parse(cls, line: str) -> Step:
        """Read one line.

        Raises:
            RecordError: If the line is damaged.
        """
        return read_record(cls, parse_line(line, _NAME), _NAME)


@dataclass(frozen=True, kw_only=True, slots=True)
class CancelRequest(Record):
    """Cells to cancel, for the process that holds the lease (``requests/cancel-*.json``)."""

    KIND = "cancel_request"
    FILE = "a cancel request"
    MAY_BE_BARE = True

    cells: tuple[CellId, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class SchedulerAway(Record):
    """Since when the scheduler cannot be reached (Unix time), and its message; the file is absent while it can."""

    KIND = "scheduler-away"
    FILE = AWAY_FILE

    since: UnixTime
    words: str
