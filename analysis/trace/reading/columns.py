"""Intervals of a trace in columns: a few bytes each, however many there are."""

from __future__ import annotations

from array import array

import numpy as np

from analysis.trace.reading.intervals import Times, outermost

_FIRST_LIMIT = 1 << 16


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
        self._threads, self._labels = array("q"), array("q")
        self._starts, self._ends = array("q"), array("q")

    def __len__(self) -> int:
        return len(self._starts)

    def append(self, thread: int, start: int, end: int, label: int) -> None:
        """Add one, in any order."""
        self._threads.append(thread)
        self._starts.append(start)
        self._ends.append(end)
        self._labels.append(label)

    @property
    def threads(self) -> Times:
        """The code of each one's thread."""
        return _as_times(self._threads)

    @property
    def starts(self) -> Times:
        """Each one's start in ns."""
        return _as_times(self._starts)

    @property
    def ends(self) -> Times:
        """Each one's end in ns."""
        return _as_times(self._ends)

    @property
    def labels(self) -> Times:
        """The label of each."""
        return _as_times(self._labels)

    def keep(self, indices: Times) -> None:
        """Forget all but these."""
        for name in ("_threads", "_starts", "_ends", "_labels"):
            column = _as_times(getattr(self, name))[indices]
            setattr(self, name, array("q", column.tobytes()))


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
        self.keep(outermost(self.threads, self.starts, self.ends))


def _as_times(column: array[int]) -> Times:
    # A copy: an array that numpy looks into cannot grow.
    return np.frombuffer(column.tobytes(), dtype=np.int64)
