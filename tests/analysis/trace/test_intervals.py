from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from analysis.trace.reading.intervals import (
    Spans,
    intersect,
    length_ns,
    lengths_between_ns,
    merge,
    outermost,
    subtract,
    union,
)

_END = 60
intervals = st.lists(
    st.tuples(st.integers(0, _END), st.integers(0, 15)).map(lambda pair: (pair[0], min(pair[0] + pair[1], _END))),
    max_size=12,
)


def spans(pairs: list[tuple[int, int]]) -> Spans:
    starts, ends = (np.array([pair[at] for pair in pairs], dtype=np.int64) for at in (0, 1))
    return union(starts, ends)


def points(pairs: list[tuple[int, int]]) -> set[int]:
    """The oracle: every unit of time by itself."""
    return {time for start, end in pairs for time in range(start, end)}


def covered(found: Spans) -> set[int]:
    return points([(int(start), int(end)) for start, end in found])


@given(intervals)
def test_a_union_covers_what_its_intervals_cover_and_is_sorted_and_disjoint(pairs: list[tuple[int, int]]) -> None:
    found = spans(pairs)
    assert covered(found) == points(pairs)
    assert length_ns(found) == len(points(pairs))
    assert (found[:, 0] < found[:, 1]).all()
    assert (found[1:, 0] > found[:-1, 1]).all()


@given(intervals, intervals)
def test_intersection_difference_and_merge_agree_with_every_unit_of_time(
    one: list[tuple[int, int]], other: list[tuple[int, int]]
) -> None:
    first, second = spans(one), spans(other)
    assert covered(intersect(first, second)) == points(one) & points(other)
    assert covered(subtract(first, second)) == points(one) - points(other)
    assert covered(merge(first, second)) == points(one) | points(other)
    assert length_ns(subtract(first, second)) + length_ns(intersect(first, second)) == length_ns(first)


@given(intervals, st.lists(st.integers(-5, _END + 5), max_size=6).map(sorted))
def test_lengths_between_edges_agree_with_every_unit_of_time(pairs: list[tuple[int, int]], edges: list[int]) -> None:
    found = lengths_between_ns(spans(pairs), np.array(edges, dtype=np.int64))
    every = points(pairs)
    assert found.tolist() == [len(every & set(range(low, high))) for low, high in pairwise(edges)]


def test_times_since_the_epoch_lose_no_nanosecond() -> None:
    base = 1_694_128_201_428_006_123
    found = spans([(base, base + 1), (base + 2, base + 5)])
    assert length_ns(found) == 4
    assert length_ns(subtract(found, spans([(base + 3, base + 9)]))) == 2


def test_the_outermost_of_nested_calls_in_each_thread_is_kept() -> None:
    threads = np.array([1, 0, 0, 0, 1, 0], dtype=np.int64)
    starts = np.array([0, 10, 11, 20, 1, 10], dtype=np.int64)
    ends = np.array([5, 20, 12, 30, 5, 20], dtype=np.int64)
    kept = outermost(threads, starts, ends)
    assert sorted((int(threads[at]), int(starts[at]), int(ends[at])) for at in kept) == [
        (0, 10, 20),
        (0, 20, 30),
        (1, 0, 5),
    ]
