"""A trace without a GPU: operations of ATen compute, and gloo's threads communicate.

Communication is the union of all ``gloo:*``. Compute is the union of all ``aten::*`` on threads that run no collective
of gloo, less the time inside ``c10d::*``, which only starts collectives and copies their inputs. A send or a receive is
recorded on its caller's thread, which computes. A wait of the caller leaves no
event at all. An operation of autograd's engine spans such waits, and an operation's innermost calls leave out most of
its time: neither is compute.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from analysis.trace.describe import Describer, Description
from analysis.trace.gpu import step_at
from analysis.trace.reading.collect import CLASSES, Collected
from analysis.trace.reading.columns import Calls, is_inside
from analysis.trace.reading.intervals import EMPTY, Spans, Times, intersect, length_ns, merge, subtract, union
from analysis.trace.reading.names import Collective, WorkClass, collective_of
from analysis.trace.record import Totals
from analysis.trace.work import COMM, ProfiledStep, Work

# gloo has no reduce-scatter: an all-reduce, or an exchange of all parts, is what one is seen as.
_SEEN_AS = {Collective.REDUCE_SCATTER: (Collective.ALL_REDUCE, Collective.ALL_TO_ALL, Collective.REDUCE_SCATTER)}


def cpu_totals(found: Collected, steps: Sequence[ProfiledStep]) -> Totals:
    """The whole trace by the rule of names; its span is that of the steps, else of all work."""
    gloo_threads = set(_gloo_threads(found).tolist())
    comm = union(found.gloo.starts, found.gloo.ends)
    compute = subtract(merge(EMPTY, *_ops(found).values()), _c10d(found))
    begin, end = _whole(steps, merge(comm, compute))
    return Totals(
        n_events=found.n_events,
        n_gpu_records=0,
        n_comm=len(found.gloo),
        n_compute=sum(count for thread, count in found.n_ops.items() if thread not in gloo_threads),
        n_memory=0,
        span_ns=end - begin,
        busy_ns=None,
        compute_merged_ns=length_ns(compute),
        compute_sum_ns=None,
        comm_merged_ns=length_ns(comm),
        comm_sum_ns=int((found.gloo.ends - found.gloo.starts).sum()),
        memory_merged_ns=None,
        overlap_ns=length_ns(intersect(comm, compute)),
        exposed_vs_any_ns=None,
    )


def cpu_work(found: Collected, describer: Describer, steps: Sequence[ProfiledStep]) -> Work:
    """The CPU's work by classes and steps; work belongs to the step that it begins in."""
    c10d = _c10d(found)
    pieces = {code: subtract(spans, c10d) for code, spans in _ops(found).items()}
    comm = np.stack((found.gloo.starts, found.gloo.ends), axis=1)
    spans = np.concatenate((comm, *pieces.values()))
    codes = [np.full(len(comm), COMM), *(np.full(len(part), code) for code, part in pieces.items())]
    edges = [step.start_ns for step in steps] + [step.end_ns for step in steps[-1:]]
    return Work(
        starts=spans[:, 0],
        ends=spans[:, 1],
        classes=np.concatenate(codes),
        owners=step_at(steps, spans[:, 0]),
        described=_described(found, describer),
        steps=steps,
        edges=np.array(edges, dtype=np.int64),
        whole=_whole(steps, union(spans[:, 0], spans[:, 1])),
    )


def _ops(found: Collected) -> dict[int, Spans]:
    """The time of operations on threads that do not communicate, by the code of their class."""
    ops = found.ops
    mine = ~np.isin(ops.threads, _gloo_threads(found))
    threads, starts, ends, classes = ops.threads[mine], ops.starts[mine], ops.ends[mine], ops.labels[mine]
    for work_class in (WorkClass.OPTIMIZER, WorkClass.SHARD_COPY):
        code = CLASSES.index(work_class)
        classes = np.where(is_inside(found.class_scopes, code, threads, starts), code, classes)
    return {int(code): union(starts[classes == code], ends[classes == code]) for code in np.unique(classes)}


def _gloo_threads(found: Collected) -> Times:
    """The threads that run collectives; only their events tell them, for their names do not."""
    is_p2p = np.array([collective_of(name) is Collective.P2P for name in found.op_names.names], dtype=bool)
    threads: Times = found.gloo.threads[~is_p2p[found.gloo.labels]]
    return threads


def _c10d(found: Collected) -> Spans:
    calls = found.c10d
    mine = ~np.isin(calls.threads, _gloo_threads(found))
    return union(calls.starts[mine], calls.ends[mine])


def _whole(steps: Sequence[ProfiledStep], work: Spans) -> tuple[int, int]:
    if steps:
        return steps[0].start_ns, steps[-1].end_ns
    return (int(work[0, 0]), int(work[-1, 1])) if len(work) else (0, 0)


def _described(found: Collected, describer: Describer) -> list[Description]:
    """Each collective of gloo as the call that started it describes it.

    gloo's events name neither their group nor what was asked for. A call is taken by the first event after it that may
    be its own, in order of time: gloo takes up the collectives of a group in the order in which they were started.
    """
    names, kinds = found.op_names.names, [collective_of(name) for name in found.op_names.names]
    c10d = found.c10d
    calls = deque(
        (int(c10d.threads[at]), int(c10d.starts[at]), int(c10d.labels[at]))
        for at in _in_order(c10d, names)
        if kinds[c10d.labels[at]] is not Collective.UNKNOWN
    )
    open_calls: list[tuple[int, int, int]] = []
    described: dict[int, Description] = {}
    for at in _in_order(found.gloo, names):
        start, label = int(found.gloo.starts[at]), int(found.gloo.labels[at])
        while calls and calls[0][1] <= start:
            open_calls.append(calls.popleft())
        fitting = (call for call in open_calls if _may_be(kinds[call[2]], kinds[label]))
        if (call := next(fitting, None)) is None:
            described[at] = describer.describe(names[label], None, None, start)
        else:
            open_calls.remove(call)
            found_call = describer.describe(names[call[2]], None, call[0], call[1])
            described[at] = replace(found_call, name=names[label])
    return [described[at] for at in range(len(found.gloo))]


def _in_order(calls: Calls, names: Sequence[str]) -> list[int]:
    """The indices of calls by their start; of calls that nothing else tells apart by their name."""
    by_name = np.argsort(np.array([names[label] for label in calls.labels.tolist()], dtype=str), kind="stable")
    order: list[int] = by_name[np.lexsort((calls.ends[by_name], calls.starts[by_name]))].tolist()
    return order


def _may_be(asked: Collective, seen: Collective) -> bool:
    return seen in _SEEN_AS.get(asked, (asked,))
