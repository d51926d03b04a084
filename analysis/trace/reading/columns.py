"""Intervals of a trace in columns: a few bytes each, however many there are."""

from __future__ import annotations

from array import array

import numpy as np

from analysis.trace.reading.intervals import Times, outermost

_FIRST_LIMIT = 1 << 16
_COLUMNS = 4


class Codes:
    """Numbers for names that recur."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._codes: dict[str, int] = {}

    def __getitem__(self, name: str) -> int:
        """The number of a name, which gets the next one where it is new."""
        code = self._codes.get(name)
        if code is None:
            code = self._codes[name] = len(self.names)
            self.names.append(name)
        return code


class Calls:
    """Intervals on threads, each with a label: operations, annotations, launches."""

    def __init__(self) -> None:
        self._rows = array("q")

    def __len__(self) -> int:
        return len(self._rows) // _COLUMNS

    def append(self, thread: int, start: int, end: int, label: int) -> None:
        """Add one, in any order."""
        self._rows.extend((thread, start, end, label))

    @property
    def threads(self) -> Times:
        """The code of each one's thread."""
        return self._column(0)

    @property
    def starts(self) -> Times:
        """Each one's start in ns."""
        return self._column(1)

    @property
    def ends(self) -> Times:
        """Each one's end in ns."""
        return self._column(2)

    @property
    def labels(self) -> Times:
        """The label of each."""
        return self._column(3)

    def _column(self, at: int) -> Times:
        # A copy: an array that numpy looks into cannot grow.
        return np.frombuffer(self._rows, dtype=np.int64).reshape(-1, _COLUMNS)[:, at].copy()


class OutermostCalls(Calls):
    """Calls of which only those count that no other encloses; the enclosed are forgotten now and then."""

    def __init__(self) -> None:
        super().__init__()
        self._limit = _FIRST_LIMIT

    def append(self, thread: int, start: int, end: int, label: int) -> None:
        """Add one, in any order."""
        super().append(thread, start, end, label)
        if len(self) >= self._limit:
            self.settle()
            self._limit = 2 * len(self) + _FIRST_LIMIT

    def settle(self) -> None:
        """Forget those that others enclose."""
        rows = np.frombuffer(self._rows, dtype=np.int64).reshape(-1, _COLUMNS)
        kept = rows[outermost(rows[:, 0], rows[:, 1], rows[:, 2])]
        self._rows = array("q", kept.tobytes())
