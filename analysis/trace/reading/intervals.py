"""Arithmetic of time intervals in whole nanoseconds.

A set of intervals is an array of shape (n, 2), start and end: sorted, disjoint, none empty. Every function returns such
a set, and takes one wherever the type says :data:`Spans`.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Times: TypeAlias = npt.NDArray[np.int64]
"""Points in time or lengths in ns, one-dimensional."""
Spans: TypeAlias = npt.NDArray[np.int64]
"""Sorted, disjoint intervals, shape (n, 2)."""

_FIRST, _LAST = np.iinfo(np.int64).min, np.iinfo(np.int64).max
EMPTY: Spans = np.empty((0, 2), dtype=np.int64)


def union(starts: Times, ends: Times) -> Spans:
    """The union of intervals in any order, which may overlap or touch."""
    keep = ends > starts
    starts, ends = starts[keep], ends[keep]
    if not len(starts):
        return EMPTY
    order = np.argsort(starts, kind="stable")
    starts, reach = starts[order], np.maximum.accumulate(ends[order])
    opens = np.concatenate(([True], starts[1:] > reach[:-1]))
    closes = np.concatenate((opens[1:], [True]))
    return np.stack((starts[opens], reach[closes]), axis=1)


def merge(*sets: Spans) -> Spans:
    """The union of sets of intervals."""
    together = np.concatenate(sets)
    return union(together[:, 0], together[:, 1])


def length_ns(spans: Spans) -> int:
    """The total length."""
    return int((spans[:, 1] - spans[:, 0]).sum())


def intersect(one: Spans, other: Spans) -> Spans:
    """The time that lies in both sets."""
    first = np.searchsorted(other[:, 1], one[:, 0], side="right")
    last = np.searchsorted(other[:, 0], one[:, 1], side="left")
    counts = np.maximum(last - first, 0)
    mine = np.repeat(np.arange(len(one)), counts)
    # The k-th meeting of interval i is with interval first[i] + k of the other set.
    theirs = np.arange(len(mine)) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(first, counts)
    starts = np.maximum(one[mine, 0], other[theirs, 0])
    ends = np.minimum(one[mine, 1], other[theirs, 1])
    return np.stack((starts, ends), axis=1)


def subtract(one: Spans, other: Spans) -> Spans:
    """The time that lies in the first set and not in the second."""
    starts = np.concatenate(([_FIRST], other[:, 1]))
    ends = np.concatenate((other[:, 0], [_LAST]))
    keep = ends > starts
    return intersect(one, np.stack((starts[keep], ends[keep]), axis=1))


def lengths_between_ns(spans: Spans, edges: Times) -> Times:
    """The length within each window between neighbouring edges, which are in order."""
    if not len(spans):
        return np.zeros(max(len(edges) - 1, 0), dtype=np.int64)
    total = np.concatenate(([0], np.cumsum(spans[:, 1] - spans[:, 0])))
    begun = np.searchsorted(spans[:, 0], edges, side="right")
    # Of the last interval that begins before an edge, what lies behind the edge does not count.
    behind = np.maximum(spans[np.maximum(begun - 1, 0), 1] - edges, 0)
    covered = total[begun] - np.where(begun > 0, behind, 0)
    inside: Times = np.diff(covered)
    return inside


def outermost(threads: Times, starts: Times, ends: Times) -> Times:
    """The indices of the intervals that no other interval of the same thread encloses, sorted by thread and start.

    Of equal intervals one is kept. The intervals of a thread are nested or disjoint, as calls are.
    """
    order = np.lexsort((-ends, starts, threads))
    threads, starts, ends = threads[order], starts[order], ends[order]
    if not len(order):
        return order
    # One running maximum serves all threads: each thread's times are moved behind those of the thread before it.
    low = starts.min()
    width = ends.max() - low + 1
    if int(width) * (int(threads.max()) + 1) > _LAST:
        raise ValueError("The times of the trace span more than 64-bit nanoseconds can hold.")
    moved = ends - low + threads * width
    before = np.concatenate(([-1], np.maximum.accumulate(moved)[:-1]))
    kept: Times = order[moved > before]
    return kept
