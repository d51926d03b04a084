"""Notes between commands on one run directory: cells to cancel, and since when the scheduler is away."""

from __future__ import annotations

from sweep.core.encoding.frozen import dataclass
from sweep.core.encoding.names import CellId, UnixTime
from sweep.core.encoding.record import Record
from sweep.core.records.layout import AWAY_FILE


@dataclass(frozen=True, kw_only=True, slots=True)
class CancelRequest(Record):
    """Cells that the process which holds the run is to cancel (``requests/cancel-*.json``)."""

    KIND = "cancel_request"
    FILE = "a cancel request"
    MAY_BE_BARE = True

    cells: tuple[CellId, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class SchedulerAway(Record):
    """The scheduler has not been reached since then (Unix time), and its words; the file is there only then."""

    KIND = "scheduler-away"
    FILE = AWAY_FILE

    since: UnixTime
    words: str
