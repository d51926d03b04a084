"""Intervals of a trace in columns, a few bytes each, and the calls of a thread that were open at a moment."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from analysis.trace.reading.intervals import Times, outermost, union

_FIRST_LIMIT = 1 << 16


class Codes:
    """Numbers for names that recur."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._codes: dict[str | int, int] = {}

    def of(self, names: Iterable[str | int]) -> Times:
        """The number of each name; a new one gets the next."""
        codes = self._codes
        found = [codes.setdefault(name, len(codes)) for name in names]
        if len(codes) > len(self.names):
            self.names.extend(map(str, list(codes)[len(self.names) :]))
        return np.array(found, dtype=np.int64)


class Calls:
    """Intervals on threads, each with a label: GPU records, operations, annotations, launches."""

    def __init__(self) -> None:
        self._parts: list[Times] = []
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def add(self, threads: Times, starts: Times, ends: Times, labels: Times) -> None:
        """Add several, in any order."""
        self._parts.append(np.stack((threads, starts, ends, labels)))
        self._length += len(starts)

    @property
    def threads(self) -> Times:
        """The code of each one's thread."""
        return self._columns()[0]

    @property
    def starts(self) -> Times:
        """Each one's start in ns."""
        return self._columns()[1]

    @property
    def ends(self) -> Times:
        """Each one's end in ns."""
        return self._columns()[2]

    @property
    def labels(self) -> Times:
        """The label of each."""
        return self._columns()[3]

    def _columns(self) -> list[Times]:
        if len(self._parts) != 1:
            self._parts = [np.concatenate((np.empty((4, 0), dtype=np.int64), *self._parts), axis=1)]
        return list(self._parts[0])


class OutermostCalls(Calls):
    """Calls of which only those count that no other encloses; the enclosed are forgotten now and then."""

    def __init__(self) -> None:
        super().__init__()
        self._limit = _FIRST_LIMIT

    def add(self, threads: Times, starts: Times, ends: Times, labels: Times) -> None:
        """Add several, in any order."""
        super().add(threads, starts, ends, labels)
        if len(self) >= self._limit:
            self.settle()
            self._limit = 2 * len(self) + _FIRST_LIMIT

    def settle(self) -> None:
        """Forget those that others enclose."""
        kept = outermost(self.threads, self.starts, self.ends)
        self._parts = [self._parts[0][:, kept]]
        self._length = self._parts[0].shape[1]


def is_inside(scopes: Calls, label: int | None, threads: Times, times: Times) -> npt.NDArray[np.bool_]:
    """For each moment on a thread, whether a call of this label (any, if None) was open there."""
    inside = np.zeros(len(times), dtype=bool)
    chosen = np.ones(len(scopes), dtype=bool) if label is None else scopes.labels == label
    for thread in np.unique(scopes.threads[chosen]):
        on_thread = chosen & (scopes.threads == thread)
        spans = union(scopes.starts[on_thread], scopes.ends[on_thread])
        mine = np.flatnonzero(threads == thread)
        if not len(spans):
            continue
        begun = np.searchsorted(spans[:, 0], times[mine], side="right") - 1
        inside[mine] = (begun >= 0) & (times[mine] <= spans[np.maximum(begun, 0), 1])
    return inside


class OpenCalls:
    """Finds the calls that were open at a moment, the innermost first."""

    def __init__(self, scopes: Calls) -> None:
        order = np.argsort(scopes.starts, kind="stable")
        self._by_thread: dict[int, tuple[list[int], list[int], list[int], list[int]]] = {}
        threads = scopes.threads[order]
        for thread in np.unique(threads):
            mine = order[threads == thread]
            ends = scopes.ends[mine]
            reach = np.maximum.accumulate(ends)
            columns = (scopes.starts[mine], ends, reach, scopes.labels[mine])
            starts, ends_, reach_, labels = (column.tolist() for column in columns)
            self._by_thread[int(thread)] = (starts, ends_, reach_, labels)

    def at(self, thread: int, time: int) -> Iterator[int]:
        """The labels of the calls that were open, the one that began last first."""
        starts, ends, reach, labels = self._by_thread.get(thread, ([], [], [], []))
        at = bisect_right(starts, time) - 1
        while at >= 0 and reach[at] >= time:
            if ends[at] >= time:
                yield labels[at]
            at -= 1
