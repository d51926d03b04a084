"""Keeps of a trace what the numbers need: GPU records, launches, steps, and the CPU's calls that say what they are.

Events may come in any order. Memory grows with the GPU records and with their launches, not with the other events.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from analysis.trace.reading.columns import Calls, Codes, OutermostCalls
from analysis.trace.reading.events import Arguments, arguments, nanoseconds
from analysis.trace.reading.names import WorkClass, class_of_op

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from analysis.trace.reading.events import Event
    from analysis.trace.reading.stream import TraceFile

_GPU_RECORDS = ("kernel", "gpu_memcpy", "gpu_memset")
_STEP = re.compile(r"ProfilerStep#(\d+)")
OWN_PREFIX = "sweep::"
"""The trainer's annotations of its collectives begin so; see docs/traces.md."""
CLASSES = tuple(WorkClass)
_NO_LAUNCH = -1


@dataclass(slots=True)
class Collected:
    """What was kept of a trace; times in ns.

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
        n_ops: Operations of ATen on each thread, by the code of the thread.
    """

    beside: dict[str, Any] = field(default_factory=dict)
    n_events: int = 0
    names: Codes = field(default_factory=Codes)
    op_names: Codes = field(default_factory=Codes)
    records: Calls = field(default_factory=Calls)
    described: dict[int, Arguments] = field(default_factory=dict)
    streams: set[tuple[object, object]] = field(default_factory=set)
    launches: Calls = field(default_factory=Calls)
    steps: Calls = field(default_factory=Calls)
    class_scopes: Calls = field(default_factory=Calls)
    fsdp_scopes: Calls = field(default_factory=Calls)
    comm_scopes: Calls = field(default_factory=Calls)
    comm_texts: list[str] = field(default_factory=list)
    comm_arguments: list[Arguments] = field(default_factory=list)
    c10d: Calls = field(default_factory=Calls)
    gloo: Calls = field(default_factory=Calls)
    ops: OutermostCalls = field(default_factory=OutermostCalls)
    n_ops: dict[int, int] = field(default_factory=dict)


def collect(file: TraceFile) -> Collected:
    """Read a trace once and keep what the numbers need.

    Raises:
        TraceError: If the file is no trace, or is damaged.
    """
    collector = _Collector()
    take = collector.handlers.get
    for events in file:
        collector.found.n_events += len(events)
        for event in events:
            handle = take(event.cat)
            if handle is not None and event.ph == "X":
                try:
                    handle(event)
                except (ValueError, OverflowError, msgspec.MsgspecError) as error:
                    raise file.error(f"holds a damaged event {event.name!r}: {error}") from error
    collector.found.beside = file.beside
    collector.found.ops.settle()
    return collector.found


class _Collector:
    """Takes events of each category to where they belong."""

    def __init__(self) -> None:
        self.found = Collected()
        self._threads: dict[int | str, int] = {}
        self._has_gpu = False
        self.handlers: dict[str, Callable[[Event], None]] = {
            **dict.fromkeys(_GPU_RECORDS, self._record),
            "cpu_op": self._op,
            "user_annotation": self._annotation,
            **dict.fromkeys(("cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver"), self._launch),
        }

    def _place(self, event: Event) -> tuple[int, int, int]:
        """Thread, start and end."""
        start, duration = nanoseconds(event.ts), nanoseconds(event.dur)
        if duration < 0:
            raise ValueError(f"its duration is {duration} ns")
        return self._thread(event), start, start + duration

    def _thread(self, event: Event) -> int:
        return self._threads.setdefault(event.tid, len(self._threads))

    def _record(self, event: Event) -> None:
        found, said = self.found, arguments(event)
        _, start, end = self._place(event)
        correlation = _NO_LAUNCH if said.correlation is None else said.correlation
        if said.collective is not None or said.group is not None:
            found.described[len(found.records)] = said
        found.records.append(correlation, start, end, found.names[event.name])
        found.streams.add((said.device, said.stream))
        self._has_gpu = True

    def _launch(self, event: Event) -> None:
        correlation = arguments(event).correlation
        if correlation is not None:
            start = nanoseconds(event.ts)
            self.found.launches.append(self._thread(event), start, start, correlation)

    def _op(self, event: Event) -> None:
        name, found = event.name, self.found
        if name.startswith("aten::"):
            if not self._has_gpu:  # with a GPU its kernels are the work, whatever the CPU does
                place = self._place(event)
                found.n_ops[place[0]] = found.n_ops.get(place[0], 0) + 1
                found.ops.append(*place, CLASSES.index(class_of_op(name)))
        elif name.startswith("c10d::"):
            found.c10d.append(*self._place(event), found.op_names[name])
        elif name == "record_param_comms":
            self._comm_scope(event, arguments(event))
        elif name.startswith("fsdp::"):
            found.class_scopes.append(*self._place(event), CLASSES.index(WorkClass.SHARD_COPY))

    def _annotation(self, event: Event) -> None:
        name, found = event.name, self.found
        if step := _STEP.fullmatch(name):
            found.steps.append(*self._place(event), int(step[1]))
        elif name.startswith("gloo:"):
            found.gloo.append(*self._place(event), found.op_names[name])
        elif name.startswith(("nccl:", OWN_PREFIX)):
            self._comm_scope(event, Arguments())
        elif name.startswith("Optimizer.step#"):
            found.class_scopes.append(*self._place(event), CLASSES.index(WorkClass.OPTIMIZER))
        elif name.startswith("FSDP::"):
            place = self._place(event)
            found.fsdp_scopes.append(*place, 0)
            if "_copy_" in name:
                found.class_scopes.append(*place, CLASSES.index(WorkClass.SHARD_COPY))

    def _comm_scope(self, event: Event, said: Arguments) -> None:
        found = self.found
        found.comm_scopes.append(*self._place(event), len(found.comm_texts))
        found.comm_texts.append(event.name)
        found.comm_arguments.append(said)
