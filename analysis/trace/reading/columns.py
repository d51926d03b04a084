"""Intervals of a trace in columns: a few bytes each, however many there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from analysis.trace.reading.intervals import Times, outermost

if TYPE_CHECKING:
    from collections.abc import Iterable

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
