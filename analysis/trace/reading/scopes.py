"""Which calls of a thread were open at a moment."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

import numpy as np

from analysis.trace.reading.intervals import union

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from analysis.trace.reading.columns import Calls
    from analysis.trace.reading.intervals import Times


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
