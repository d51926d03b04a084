"""The whole reduction against an oracle that looks at every microsecond by itself."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.trace.record import RankProfile
from analysis.trace.reduce import reduce_trace
from tests.analysis.trace.synthetic import (
    GEMM,
    MEMCPY,
    NCCL_ALL_GATHER,
    NCCL_ALL_REDUCE,
    POINTWISE,
    Trace,
    random_trace,
)

US = 1000
NAMES = {
    GEMM: "compute",
    POINTWISE: "compute",
    NCCL_ALL_GATHER: "comm",
    NCCL_ALL_REDUCE: "comm",
    MEMCPY: "memory",
}
records = st.lists(
    st.tuples(st.sampled_from(sorted(NAMES)), st.integers(0, 200), st.integers(0, 40), st.integers(0, 2)),
    min_size=1,
    max_size=25,
)
"""Name, start, duration, and the step that launches it (2: after the last)."""
Record = tuple[str, int, int, int]


def trace_of(found: list[Record]) -> Trace:
    trace = Trace().step(0, 0, 10).step(1, 10, 20)
    for name, start, duration, step in found:
        cat = "gpu_memcpy" if name == MEMCPY else "kernel"
        trace.kernel(name, start, start + duration, launch=10 * step + 1, cat=cat)
    return trace


def covered(found: list[Record], kind: str) -> set[int]:
    return {
        time
        for name, start, duration, _ in found
        if kind in (NAMES[name], "any")
        for time in range(start, start + duration)
    }


def reduced(trace: Trace, folder: Path) -> RankProfile:
    return reduce_trace(trace.write(folder, "rank0.json"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("traces")


@given(records)
def test_totals_agree_with_every_microsecond(folder: Path, found: list[Record]) -> None:
    totals = reduced(trace_of(found), folder).totals
    comm, compute, memory, every = (covered(found, kind) for kind in ("comm", "compute", "memory", "any"))
    assert totals.span_ns == US * (max(r[1] + r[2] for r in found) - min(r[1] for r in found))
    assert totals.busy_ns == US * len(every)
    assert totals.compute_merged_ns == US * len(compute)
    assert totals.comm_merged_ns == US * len(comm)
    assert totals.memory_merged_ns == US * len(memory)
    assert totals.overlap_ns == US * len(comm & compute)
    assert totals.exposed_comm_ns == US * len(comm - compute)
    assert totals.exposed_vs_any_ns == US * len(comm - compute - memory)
    for kind, sum_ns in (("comm", totals.comm_sum_ns), ("compute", totals.compute_sum_ns)):
        assert sum_ns == US * sum(record[2] for record in found if NAMES[record[0]] == kind)
    assert (totals.n_comm, totals.n_compute, totals.n_memory) == tuple(
        sum(NAMES[record[0]] == kind for record in found) for kind in ("comm", "compute", "memory")
    )


@given(records)
def test_steps_agree_with_every_microsecond_and_their_parts_add_up(folder: Path, found: list[Record]) -> None:
    profile = reduced(trace_of(found), folder)
    comm, compute, memory, every = (covered(found, kind) for kind in ("comm", "compute", "memory", "any"))
    begin = _begin(found)
    for times in profile.steps:
        end = max([begin, *(r[1] + r[2] for r in found if r[3] == times.step and NAMES[r[0]] != "memory")])
        window = set(range(begin, end))
        assert times.span_ns == US * len(window)
        assert times.compute_ns == US * len(window & compute)
        assert times.comm_ns == US * len(window & comm)
        assert times.exposed_ns == US * len(window & (comm - compute))
        assert times.copy_alone_ns == US * len(window & (memory - comm - compute))
        assert times.idle_ns == US * len(window - every)
        assert times.comm_sum_ns == US * sum(r[2] for r in found if r[3] == times.step and NAMES[r[0]] == "comm")
        begin = end
    for times in (profile.whole, *profile.steps):
        assert times.span_ns == times.compute_ns + times.exposed_ns + times.copy_alone_ns + times.idle_ns
        assert times.exposed_ns + times.overlapped_ns == times.comm_ns
        assert times.busy_ns + times.idle_ns == times.span_ns
        assert sum(times.collective_ns.values()) == sum(times.dimension_ns.values()) == times.comm_sum_ns


def _begin(found: list[Record]) -> int:
    """Where the first step's window begins; where it has no kernel, its window is empty and lies anywhere."""
    for step in (0, 1):
        kernels = [record for record in found if record[3] == step and NAMES[record[0]] != "memory"]
        if kernels:
            return min(record[1] for record in kernels)
    return 0


@given(records, st.integers(0, 1000))
def test_the_order_of_events_in_the_file_does_not_matter(folder: Path, found: list[Record], seed: int) -> None:
    trace = trace_of(found)
    before = reduced(trace, folder)
    random.Random(seed).shuffle(trace.events)
    assert reduced(trace, folder) == before


@given(records, st.integers(1, 10**9))
def test_numbers_do_not_depend_on_when_the_trace_was_made(folder: Path, found: list[Record], shift: int) -> None:
    before = reduced(trace_of(found), folder)
    trace = trace_of(found)
    for event in trace.events:
        event["ts"] += 1_600_000_000_000_000 + shift
    after = reduced(trace, folder)
    assert (after.totals, after.whole, after.steps) == (before.totals, before.whole, before.steps)
    assert after.kernels == before.kernels


GOLDEN = Path(__file__).parents[2] / "golden" / "hta_0_5_0.json"
RECORDED: dict[str, dict[str, float]] = json.loads(GOLDEN.read_text())
"""Values of Holistic Trace Analysis 0.5.0 for random traces; ``benchmarks/trace_vs_hta.py --record`` wrote it."""


@pytest.mark.parametrize("seed", list(RECORDED))
def test_numbers_agree_with_holistic_trace_analysis_where_definitions_do(tmp_path: Path, seed: str) -> None:
    totals, stated = reduced(random_trace(int(seed)), tmp_path).totals, RECORDED[seed]
    assert totals.busy_ns is not None
    assert totals.span_ns == pytest.approx(US * stated["span_us"], rel=1e-3)
    assert totals.span_ns - totals.busy_ns == pytest.approx(US * stated["idle_us"], rel=1e-3)
    assert totals.compute_merged_ns == pytest.approx(US * stated["compute_us"], rel=1e-3)
    assert 100 * totals.overlap_ns / totals.comm_merged_ns == pytest.approx(stated["overlap_pct"], rel=1e-3)
