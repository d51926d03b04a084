"""The record of one node's traces: ``profile-<node>.json``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path

from analysis.trace.groups import Dimension, Group
from analysis.trace.reading.names import Collective
from sweep.core.encoding.record import Record, RecordError
from sweep.files import write_atomically


class Scope(StrEnum):
    """Which part of a trace the numbers are of, by the names of the reference values."""

    GPU = "all_exact"
    """Every kernel, copy and fill of the GPU."""
    CPU = "cpu_gloo"
    """Of a trace without a GPU: operations of ATen, and gloo's collectives."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Totals:
    """The whole trace by the rule of names that Holistic Trace Analysis has; see docs/traces.md.

    Communication is what is named ``nccl...Kernel``, memory ``Memcpy``, ``Memset`` or ``dma``, compute all else. On the
    CPU communication is ``gloo:...`` and compute is ``aten::...``.

    Attributes:
        n_events: Events of every kind in the file.
        n_gpu_records: Kernels, copies and fills.
        n_comm: Communication kernels, or gloo's collectives.
        n_compute: Compute kernels, or operations of ATen on threads that do not communicate.
        n_memory: Copies and fills.
        span_ns: From the first start to the last end; on the CPU of the profiler's steps.
        busy_ns: Union of all kinds; None on the CPU.
        compute_merged_ns: Union of compute.
        compute_sum_ns: Sum of compute's durations; None on the CPU.
        comm_merged_ns: Union of communication.
        comm_sum_ns: Sum of communication's durations: the load of arXiv 2411.13055.
        memory_merged_ns: Union of copies and fills; None on the CPU.
        overlap_ns: Communication while compute runs.
        exposed_vs_any_ns: Communication while neither compute nor copies run; None on the CPU.
    """

    n_events: int
    n_gpu_records: int
    n_comm: int
    n_compute: int
    n_memory: int
    span_ns: int
    busy_ns: int | None
    compute_merged_ns: int
    compute_sum_ns: int | None
    comm_merged_ns: int
    comm_sum_ns: int
    memory_merged_ns: int | None
    overlap_ns: int
    exposed_vs_any_ns: int | None

    @property
    def exposed_comm_ns(self) -> int:
        """Communication while no compute runs."""
        return self.comm_merged_ns - self.overlap_ns


@dataclass(frozen=True, kw_only=True, slots=True)
class Times:
    """Where the time of a step, or of the whole trace, went.

    ``span = compute + exposed + copy_alone + idle``, all of them merged: lengths of unions over all streams.

    Attributes:
        step: Number of the ``ProfilerStep``; None for the whole trace.
        profiled_ns: Duration of the ``ProfilerStep`` on the CPU; None for the whole trace.
        span_ns: From the end of the previous step's last kernel to the end of this one's; on the CPU to the start of
            the next step.
        compute_ns: Time in which compute runs.
        compute_sum_ns: Durations of the step's compute kernels.
        comm_sum_ns: Durations of the step's communication kernels: the load of arXiv 2411.13055.
        comm_ns: Time in which communication runs.
        exposed_ns: Of it, while no compute runs.
        copy_ns: Time in which copies run: the driver's, and FSDP's into and out of buffers.
        copy_alone_ns: Of it, while neither compute nor communication runs.
        idle_ns: Time in which nothing runs.
        bubble_ns: Time in which nothing runs, or nothing but a pipeline's sends and receives; None without a pipeline.
        class_ns: Durations by class of work.
        collective_ns: Durations of communication by collective.
        dimension_ns: Durations of communication by mesh dimension.
        exposed_by_collective_ns: Time in which this collective runs and no compute does.
        exposed_by_dimension_ns: Time in which this dimension's communication runs and no compute does.
    """

    step: int | None
    profiled_ns: int | None
    span_ns: int
    compute_ns: int
    compute_sum_ns: int
    comm_sum_ns: int
    comm_ns: int
    exposed_ns: int
    copy_ns: int
    copy_alone_ns: int
    idle_ns: int
    bubble_ns: int | None
    class_ns: Mapping[str, int]
    collective_ns: Mapping[str, int]
    dimension_ns: Mapping[str, int]
    exposed_by_collective_ns: Mapping[str, int]
    exposed_by_dimension_ns: Mapping[str, int]

    @property
    def overlapped_ns(self) -> int:
        """Communication while compute runs."""
        return self.comm_ns - self.exposed_ns

    @property
    def busy_ns(self) -> int:
        """Time in which anything runs."""
        return self.span_ns - self.idle_ns


@dataclass(frozen=True, kw_only=True, slots=True)
class CommKernels:
    """Every communication kernel of a rank, in columns, ordered by start; None where the trace does not say.

    Attributes:
        step: Number of the step that launched it.
        start_ns: After the rank's ``base_ns``.
        duration_ns: How long it ran, waiting for peers included.
        collective: Which collective.
        dimension: Which mesh dimension.
        group: Index of its group in the rank's ``groups``.
        sequence: Number in its group, as torch or the trainer counted.
        n_bytes: Of its larger side.
        source: The group's rank that sends, of point to point.
        target: The group's rank that receives.
    """

    step: tuple[int | None, ...] = ()
    start_ns: tuple[int, ...] = ()
    duration_ns: tuple[int, ...] = ()
    collective: tuple[Collective, ...] = ()
    dimension: tuple[Dimension, ...] = ()
    group: tuple[int | None, ...] = ()
    sequence: tuple[int | None, ...] = ()
    n_bytes: tuple[int | None, ...] = ()
    source: tuple[int | None, ...] = ()
    target: tuple[int | None, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class RankProfile:
    """One rank's trace, reduced.

    Attributes:
        file: Name of the trace's file.
        rank: The global rank; None where neither the trace nor the file's name says.
        world_size: How many ranks there were.
        n_groups: How many process groups there were; None where the trace does not say.
        scope: What of the trace was taken.
        base_ns: The time that the kernels' starts count from.
        totals: The whole trace by the rule of names.
        whole: The whole trace by classes of work.
        steps: Each profiled step, in order.
        groups: Process groups of its communication.
        kernels: Its communication kernels.
        unknown: Names of communication kernels whose collective is unknown, and how many there were.
        n_unlinked: GPU records whose launch the trace does not hold: they belong to no step.
        notes: What a reader of the numbers should know.
    """

    file: str
    rank: int | None
    world_size: int | None
    n_groups: int | None
    scope: Scope
    base_ns: int
    totals: Totals
    whole: Times
    steps: tuple[Times, ...]
    groups: tuple[Group, ...]
    kernels: CommKernels
    unknown: Mapping[str, int]
    n_unlinked: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceFailure:
    """A trace that gave no number, and why."""

    file: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeProfile(Record):
    """The traces of one node's ranks."""

    KIND = "profile"
    FILE = "a profile"

    node: str
    ranks: tuple[RankProfile, ...]
    failures: tuple[TraceFailure, ...] = ()

    def check(self) -> None:
        """Refuse columns of different lengths, and groups that are not there.

        Raises:
            RecordError: If there are such.
        """
        for rank in self.ranks:
            columns = [getattr(rank.kernels, item.name) for item in fields(CommKernels)]
            if len(set(map(len, columns))) != 1:
                raise RecordError(f"a profile is damaged: the columns of {rank.file} have different lengths")
            if any(index is not None and not 0 <= index < len(rank.groups) for index in rank.kernels.group):
                raise RecordError(f"a profile is damaged: {rank.file} names a group that it does not hold")


_UNSAFE = re.compile(r"[^\w.-]")


def profile_path(folder: Path, node: str) -> Path:
    """Where the profile of a node's ranks belongs; signs that a file's name should not have become ``_``."""
    return folder / f"profile-{_UNSAFE.sub('_', node)}.json"


def write_profile(path: Path, profile: NodeProfile) -> None:
    """Put a node's profile in its place, whole.

    Raises:
        OSError: If it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, profile.render())
