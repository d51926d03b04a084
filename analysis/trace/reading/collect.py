"""Keeps of a trace what the numbers need: GPU records, launches, steps, and the CPU's calls that say what they are.

Events may come in any order. Memory grows with the GPU records and with their launches, not with the other events.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from analysis.trace.reading.columns import Calls, Codes, OutermostCalls
from analysis.trace.reading.events import Event, EventArguments, arguments, intervals, start_times
from analysis.trace.reading.intervals import Times
from analysis.trace.reading.names import WorkClass, class_of_op
from analysis.trace.reading.stream import TraceFile

_GPU_RECORDS = ("kernel", "gpu_memcpy", "gpu_memset")
_STEP = re.compile(r"ProfilerStep#(\d+)")
_OTHER_OPS = ("c10d::", "record_param_comms", "fsdp::")
OWN_PREFIX = "sweep::"
"""The trainer's annotations of its collectives begin so; see docs/traces.md."""
CLASSES = tuple(WorkClass)
_CODES = {work_class: code for code, work_class in enumerate(CLASSES)}
_NO_LAUNCH = -1
# Calls of the driver that start no work. They are many: a process that polls an event makes more of them than launches.
_NO_WORK = re.compile(
    r"Event|Query|Capturing|Attribute|Occupancy|Synchronize|Wait|Get(?!Launch)|Malloc|HostAlloc|Free|LastError|Version"
)


@dataclass(slots=True)
class Collected:
    """The parts of a trace that the numbers need; times in ns.

    Attributes:
        beside: What the file holds beside its events.
        n_events: All events of the file, of every kind.
        names: Names of GPU records, of which ``records.labels`` hold the indices.
        records: GPU records; their "thread" is the index of their launch's correlation.
        described: What the trace says of a collective, by the index of the record.
        streams: Devices and streams that appear.
        launches: Starts of the driver's calls that have a correlation, which is the label.
        steps: ``ProfilerStep``: the label is its number.
        class_scopes: Calls whose work belongs to a class: the label is the index in :data:`CLASSES`.
        fsdp_scopes: Annotations of FSDP.
        comm_scopes: Calls around a collective; the label is the index in ``comm_texts`` and ``comm_arguments``.
        c10d: Calls that start collectives on the CPU; the label is the index in ``op_names``.
        gloo: Collectives of gloo; the label is the index in ``op_names``.
        ops: Operations of ATen that no other encloses: the label is the index in :data:`CLASSES`.
        has_ops: Whether operations of ATen are kept.
        n_ops: Operations of ATen on each thread, by the code of the thread.
    """

    beside: dict[str, Any] = field(default_factory=dict)
    n_events: int = 0
    names: Codes = field(default_factory=Codes)
    op_names: Codes = field(default_factory=Codes)
    records: Calls = field(default_factory=Calls)
    described: dict[int, EventArguments] = field(default_factory=dict)
    streams: set[tuple[object, object]] = field(default_factory=set)
    launches: Calls = field(default_factory=Calls)
    steps: Calls = field(default_factory=Calls)
    class_scopes: Calls = field(default_factory=Calls)
    fsdp_scopes: Calls = field(default_factory=Calls)
    comm_scopes: Calls = field(default_factory=Calls)
    comm_texts: list[str] = field(default_factory=list)
    comm_arguments: list[EventArguments] = field(default_factory=list)
    c10d: Calls = field(default_factory=Calls)
    gloo: Calls = field(default_factory=Calls)
    ops: OutermostCalls = field(default_factory=OutermostCalls)
    has_ops: bool = False
    n_ops: dict[int, int] = field(default_factory=dict)


def collect(file: TraceFile) -> Collected:
    """Read a trace and keep what the numbers need.

    Operations of ATen count only without a GPU. Where the file names devices they are left out, and where it then holds
    no work of theirs it is read again.

    Raises:
        TraceError: If the file is no trace, or is damaged.
    """
    found = _collect(file, with_ops=None)
    return found if len(found.records) or found.has_ops else _collect(file, with_ops=True)


def _collect(file: TraceFile, *, with_ops: bool | None) -> Collected:
    found = Collected()
    collector = _Collector(found)
    for events in file:
        found.n_events += len(events)
        has_device = bool(len(found.records) or file.beside.get("deviceProperties"))
        found.has_ops = not has_device if with_ops is None else with_ops
        collector.take(events, file)
        del events  # what was read may go before more is
    found.beside = file.beside
    found.ops.settle()
    return found


def _handle(handle: Callable[[list[Event]], None], events: list[Event], file: TraceFile) -> None:
    """Let a handler take events; of those that it cannot take, the first is named."""
    try:
        handle(events)
    except (ValueError, OverflowError, msgspec.MsgspecError) as error:
        for event in events:
            try:
                intervals([event])
                arguments([event])
            except (ValueError, msgspec.MsgspecError) as of_event:
                raise file.error(f"holds a damaged event {event.name!r}: {of_event}") from of_event
        raise file.error(f"holds a damaged event: {error}") from error


class _Collector:
    """Takes events of each category to where they belong."""

    def __init__(self, found: Collected) -> None:
        self._found = found
        self._threads = Codes()
        self.handlers: dict[str, Callable[[list[Event]], None]] = {
            **dict.fromkeys(_GPU_RECORDS, self._record),
            "cpu_op": self._op,
            "user_annotation": self._annotation,
            **dict.fromkeys(("cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver"), self._launch),
        }

    def take(self, events: list[Event], file: TraceFile) -> None:
        """Keep of events what counts.

        Raises:
            TraceError: If one of them is damaged.
        """
        chosen: dict[str, list[Event]] = {cat: [] for cat in self.handlers}
        of_cat = chosen.get
        for event in events:
            if (alike := of_cat(event.cat)) is not None and event.ph == "X":
                alike.append(event)
        for cat, alike in chosen.items():
            if alike:
                _handle(self.handlers[cat], alike, file)

    def _record(self, events: list[Event]) -> None:
        found, stated = self._found, arguments(events)
        for at, item in enumerate(stated, start=len(found.records)):
            if item.collective is not None or item.group is not None:
                found.described[at] = item
        found.streams.update({(item.device, item.stream) for item in stated})
        correlations = [_NO_LAUNCH if item.correlation is None else item.correlation for item in stated]
        labels = found.names.of([event.name for event in events])
        found.records.add(np.array(correlations, dtype=np.int64), *intervals(events), labels)

    def _launch(self, events: list[Event]) -> None:
        events = [event for event in events if not _starts_no_work(event.name)]
        if not events:
            return
        stated = arguments(events)
        correlations = [_NO_LAUNCH if item.correlation is None else item.correlation for item in stated]
        starts, labels = start_times(events), np.array(correlations, dtype=np.int64)
        known = labels != _NO_LAUNCH
        threads = self._threads.of([event.tid for event in events])
        self._found.launches.add(threads[known], starts[known], starts[known], labels[known])

    def _op(self, events: list[Event]) -> None:
        found = self._found
        if found.has_ops:
            ops = [event for event in events if event.name.startswith("aten::")]
            labels = [_CODES[class_of_op(event.name)] for event in ops]
            threads = self._add(found.ops, ops, labels)
            for thread, count in zip(*np.unique(threads, return_counts=True), strict=True):
                found.n_ops[int(thread)] = found.n_ops.get(int(thread), 0) + int(count)
        others = [event for event in events if event.name.startswith(_OTHER_OPS)]
        c10d = [event for event in others if event.name.startswith("c10d::")]
        self._add(found.c10d, c10d, found.op_names.of([event.name for event in c10d]))
        self._comm_scopes([event for event in others if event.name == "record_param_comms"])
        copies = [event for event in others if event.name.startswith("fsdp::")]
        self._add(found.class_scopes, copies, [_CODES[WorkClass.SHARD_COPY]] * len(copies))

    def _annotation(self, events: list[Event]) -> None:
        found = self._found
        steps = [(event, int(match[1])) for event in events if (match := _STEP.fullmatch(event.name))]
        self._add(found.steps, [event for event, _ in steps], [number for _, number in steps])
        gloo = [event for event in events if event.name.startswith("gloo:")]
        self._add(found.gloo, gloo, found.op_names.of([event.name for event in gloo]))
        self._comm_scopes([event for event in events if event.name.startswith(("nccl:", OWN_PREFIX))])
        fsdp = [event for event in events if event.name.startswith("FSDP::")]
        self._add(found.fsdp_scopes, fsdp, [0] * len(fsdp))
        copies = [event for event in fsdp if "_copy_" in event.name]
        self._add(found.class_scopes, copies, [_CODES[WorkClass.SHARD_COPY]] * len(copies))
        optimizer = [event for event in events if event.name.startswith("Optimizer.step#")]
        self._add(found.class_scopes, optimizer, [_CODES[WorkClass.OPTIMIZER]] * len(optimizer))

    def _comm_scopes(self, events: list[Event]) -> None:
        found = self._found
        first = len(found.comm_texts)
        self._add(found.comm_scopes, events, range(first, first + len(events)))
        found.comm_texts += [event.name for event in events]
        found.comm_arguments += arguments(events)

    def _add(self, calls: Calls, events: list[Event], labels: Sequence[int] | Times) -> Times:
        """Add calls with their labels; the codes of their threads."""
        threads = self._threads.of([event.tid for event in events])
        if events:
            calls.add(threads, *intervals(events), np.array(labels, dtype=np.int64))
        return threads


@functools.cache
def _starts_no_work(name: str) -> bool:
    return _NO_WORK.search(name) is not None
