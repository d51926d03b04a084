"""Notes between commands on one run directory: cells to cancel, and a scheduler that cannot be reached."""

from __future__ import annotations

from sweep.core.encoding.frozen import dataclass
from sweep.core.encoding.names import CellId, UnixTime
from sweep.core.encoding.record import Record
from sweep.core.records.layout import AWAY_FILE


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
