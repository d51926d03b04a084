"""A profile as JSON for programs, with the keys of the reference values, and as a few lines for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from analysis.trace.join import Joined
from analysis.trace.record import RankProfile, Times
from sweep.core.encoding.message import counted

_NS_PER_US = 1000
_NS_PER_MS = 1_000_000


def to_object(profile: RankProfile) -> dict[str, Any]:
    """A profile as plain values: the reference values' keys, times in µs to the ns, then all that is known besides."""
    totals = profile.totals
    counts = ("n_events", "n_gpu_records", "n_comm", "n_compute", "n_memory")
    times = {
        "span": totals.span_ns,
        "busy": totals.busy_ns,
        "idle": None if totals.busy_ns is None else totals.span_ns - totals.busy_ns,
        "compute_merged": totals.compute_merged_ns,
        "compute_sum": totals.compute_sum_ns,
        "comm_merged": totals.comm_merged_ns,
        "comm_sum": totals.comm_sum_ns,
        "memory_merged": totals.memory_merged_ns,
        "overlap": totals.overlap_ns,
        "exposed_comm": totals.exposed_comm_ns,
        "exposed_vs_any": totals.exposed_vs_any_ns,
    }
    keys = {f"{name}_us": _us(value) for name, value in times.items()}
    percent = 100 * totals.overlap_ns / totals.comm_merged_ns if totals.comm_merged_ns else None
    return {
        "file": profile.file,
        "scope": profile.scope,
        **{name: getattr(totals, name) for name in counts},
        "n_other": 0,
        **keys,
        "overlap_pct": percent,
        "rank": profile.rank,
        "world_size": profile.world_size,
        "n_unlinked": profile.n_unlinked,
        "unknown": profile.unknown,
        "notes": profile.notes,
        "whole": _plain_times(profile.whole),
        "steps": [_plain_times(step) for step in profile.steps],
    }


def to_lines(profile: RankProfile) -> Iterator[str]:
    """A profile for people: the whole by names, and each step by classes, in ms."""
    totals = profile.totals
    rank = "rank unknown" if profile.rank is None else f"rank {profile.rank}"
    yield (
        f"{profile.file} ({rank}, {profile.scope}): {counted(totals.n_events, 'event')}, "
        f"{counted(totals.n_comm, 'communication kernel')}; span {_ms(totals.span_ns)} ms, "
        f"compute {_ms(totals.compute_merged_ns)}, communication {_ms(totals.comm_sum_ns)} "
        f"(merged {_ms(totals.comm_merged_ns)}, exposed {_ms(totals.exposed_comm_ns)})"
    )
    for step in profile.steps:
        parts = {
            "compute": step.compute_ns,
            "exposed": step.exposed_ns,
            "copies alone": step.copy_alone_ns,
            "idle": step.idle_ns,
        }
        yield f"  step {step.step}: {_ms(step.span_ns)} ms = " + " + ".join(f"{n} {_ms(v)}" for n, v in parts.items())
        yield "    by class: " + _listed(step.class_ns)
        if step.comm_sum_ns:
            yield f"    by collective: {_listed(step.collective_ns)}; by dimension: {_listed(step.dimension_ns)}"
    for name, count in profile.unknown.items():
        yield f"  unknown collective: {count} x {name[:100]}"
    for note in profile.notes:
        yield f"  note: {note}"


def joined_lines(joined: Joined) -> Iterator[str]:
    """Several ranks together, for people: the rank that the others wait for, and the spread over ranks."""
    for step in joined.steps:
        slowest = "slowest rank unknown" if step.slowest_rank is None else f"slowest is rank {step.slowest_rank}"
        yield f"step {step.step} over {counted(len(step.ranks), 'rank')}: {slowest}"
    for name in ("span_ns", "compute_ns", "exposed_ns", "transfer_ns", "wait_ns", "idle_ns"):
        if spread := joined.over_ranks.get(name):
            shown = f"mean {_ms(spread.mean)}, min {_ms(spread.min)}, max {_ms(spread.max)} ms"
            yield f"  {name.removesuffix('_ns')} over ranks: {shown}"


def _plain_times(times: Times) -> dict[str, Any]:
    return asdict(times) | {"overlapped_ns": times.overlapped_ns, "busy_ns": times.busy_ns}


def _us(value_ns: int | None) -> float | None:
    return None if value_ns is None else value_ns / _NS_PER_US


def _ms(value_ns: float) -> str:
    return f"{value_ns / _NS_PER_MS:,.3f}"


def _listed(values: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {_ms(value)}" for name, value in values.items() if value) or "none"
