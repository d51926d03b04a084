"""A trace with GPU records: kernels, copies and fills, each linked to the call that launched it.

A kernel belongs to the step during which the CPU launched it: their correlation tells. The CPU may run 30 ms and more
ahead, so a step's time on the CPU says nothing of its kernels. A step's window on the GPU lasts from the end of the
previous step's last kernel to the end of its own last kernel, so the windows lie side by side. Kernels whose launches
the trace does not hold, most of them from before the first step, belong to no step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from analysis.trace.describe import Describer
from analysis.trace.reading.collect import CLASSES, Collected
from analysis.trace.reading.columns import is_inside
from analysis.trace.reading.intervals import Times as Column
from analysis.trace.reading.intervals import intersect, length_ns, merge, subtract, union
from analysis.trace.reading.names import Kind, WorkClass, class_of, kind_of
from analysis.trace.record import Totals
from analysis.trace.work import COMM, COMPUTE, ProfiledStep, Work

_COPY, _SHARD_COPY, _OPTIMIZER = map(CLASSES.index, (WorkClass.COPY, WorkClass.SHARD_COPY, WorkClass.OPTIMIZER))


def gpu_totals(found: Collected) -> Totals:
    """The whole trace by the rule of names."""
    records = found.records
    starts, ends = records.starts, records.ends
    kinds = np.array([tuple(Kind).index(kind_of(name)) for name in found.names.names])[records.labels]
    comm, compute, memory = (kinds == tuple(Kind).index(kind) for kind in (Kind.COMM, Kind.COMPUTE, Kind.MEMORY))
    comm_spans, compute_spans, memory_spans = (union(starts[mask], ends[mask]) for mask in (comm, compute, memory))
    return Totals(
        n_events=found.n_events,
        n_gpu_records=len(records),
        n_comm=int(comm.sum()),
        n_compute=int(compute.sum()),
        n_memory=int(memory.sum()),
        span_ns=int(ends.max() - starts.min()),
        busy_ns=length_ns(union(starts, ends)),
        compute_merged_ns=length_ns(compute_spans),
        compute_sum_ns=int((ends - starts)[compute].sum()),
        comm_merged_ns=length_ns(comm_spans),
        comm_sum_ns=int((ends - starts)[comm].sum()),
        memory_merged_ns=length_ns(memory_spans),
        overlap_ns=length_ns(intersect(comm_spans, compute_spans)),
        exposed_vs_any_ns=length_ns(subtract(comm_spans, merge(compute_spans, memory_spans))),
    )


def gpu_work(found: Collected, describer: Describer, steps: Sequence[ProfiledStep]) -> tuple[Work, int]:
    """The GPU's work by classes and steps; how many records have no launch in the trace."""
    records = found.records
    # An order of their own, so that nothing depends on that of the file.
    order = np.lexsort((records.threads, records.ends, records.starts))
    starts, ends, correlations = records.starts[order], records.ends[order], records.threads[order]
    labels = records.labels[order]
    launches = _launches(found, correlations)
    is_linked = launches >= 0
    threads = np.where(is_linked, found.launches.threads[launches], -1) if len(found.launches) else launches
    times = np.where(is_linked, found.launches.starts[launches], 0) if len(found.launches) else np.zeros_like(starts)
    classes = _classes(found, labels, threads, times)
    owners = np.where(is_linked, step_at(steps, times), -1)
    described = [
        describer.describe(
            found.names.names[labels[at]],
            found.described.get(int(order[at])),
            int(threads[at]) if is_linked[at] else None,
            int(times[at]),
        )
        for at in np.flatnonzero(classes == COMM).tolist()
    ]
    is_head = ~is_linked & (correlations < correlations[is_linked].min(initial=np.iinfo(np.int64).max))
    work = Work(
        starts=starts,
        ends=ends,
        classes=classes,
        owners=owners,
        described=described,
        steps=steps,
        edges=_edges(len(steps), starts, ends, np.where(classes == _COPY, -1, owners), is_head & (classes != _COPY)),
        whole=(int(starts.min()), int(ends.max())),
    )
    return work, int((~is_linked).sum())


def step_at(steps: Sequence[ProfiledStep], times: Column) -> Column:
    """The index of the step that a moment of the CPU lies in, -1 for none; pauses belong to the step before them."""
    if not steps:
        return np.full(len(times), -1, dtype=np.int64)
    at = np.searchsorted([step.start_ns for step in steps], times, side="right") - 1
    return np.where(times > steps[-1].end_ns, -1, at)


def _launches(found: Collected, correlations: Column) -> Column:
    """The index of each record's launch, -1 for none."""
    if not len(found.launches):
        return np.full(len(correlations), -1, dtype=np.int64)
    labels = found.launches.labels
    order = np.argsort(labels, kind="stable")
    at = np.minimum(np.searchsorted(labels[order], correlations), len(order) - 1)
    return np.where(labels[order[at]] == correlations, order[at], -1)


def _classes(found: Collected, labels: Column, threads: Column, times: Column) -> Column:
    """The class of each record: by name, but what an optimiser or a copy of FSDP launched is theirs."""
    classes = np.array([CLASSES.index(class_of(name)) for name in found.names.names])[labels]
    is_own = is_inside(found.class_scopes, _OPTIMIZER, threads, times) & np.isin(classes, COMPUTE)
    classes[is_own] = _OPTIMIZER
    classes[is_inside(found.class_scopes, _SHARD_COPY, threads, times) & (classes != COMM)] = _SHARD_COPY
    return classes


def _edges(n_steps: int, starts: Column, ends: Column, owners: Column, is_head: npt.NDArray[np.bool_]) -> Column:
    """The ends of the steps' windows on the GPU; copies bound none, for a later batch may come early.

    The first window begins where the last kernel of the steps before it ends.
    """
    firsts = np.full(n_steps, np.iinfo(np.int64).max)
    lasts = np.full(n_steps, np.iinfo(np.int64).min)
    owned = owners >= 0
    np.minimum.at(firsts, owners[owned], starts[owned])
    np.maximum.at(lasts, owners[owned], ends[owned])
    worked = np.flatnonzero(firsts <= lasts)
    if not len(worked):
        return np.full(n_steps + 1, starts.min(), dtype=np.int64)
    first, last = int(firsts[worked[0]]), int(lasts[worked[0]])
    begin = min(max(first, int(ends[is_head].max(initial=first))), last)
    edges: Column = np.append(begin, np.maximum(lasts, begin))
    return np.maximum.accumulate(edges)
