"""The record of a preflight: whether the cell can be built, its peak memory by kind, and its communication."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from sweep.core.cells.device import Device
from sweep.core.encoding.frozen import dataclass
from sweep.core.encoding.names import CellIdIfKnown
from sweep.core.encoding.record import Record

_GIB = 1 << 30
MEMORY_KINDS = (
    "parameters",
    "gathered_parameters",
    "gradients",
    "optimizer",
    "activations",
    "temporary",
    "communication",
    "buffers",
)
"""Kinds of memory, which together make the peak.

``parameters``, ``gradients``, ``optimizer``: what this rank holds of them. ``gathered_parameters``: what FSDP has
gathered of others' shards. ``activations``: made in the forward pass. ``temporary``: made in the backward pass (what it
recomputes included) or by the optimiser, and dropped. ``communication``: what a collective reads or writes beside
these. ``buffers``: tokens, masks, the rotary table.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Traffic:
    """All collectives of one kind over one group in one step of one rank.

    Attributes:
        op: ``all_gather``, ``reduce_scatter``, ``all_reduce``, ``send`` ...
        group: Mesh dimensions that the group spans, outermost first: ``dp_shard``, ``dp_shard x cp``, ``world``.
        ranks: Ranks of the group.
        nodes: Nodes that it touches.
        count: Number of them.
        bytes: Bytes of all of them together; each counts with its larger side (a gather's output, a scatter's input).
    """

    op: str
    group: str
    ranks: int
    nodes: int
    count: int
    bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Preflight(Record):
    """One rank of a cell, run on fake tensors (``python -m trainer --preflight``).

    Attributes:
        cell_id: The cell; empty where its file could not be read.
        rank: The rank that was examined.
        world_size: Ranks in all.
        problem: Why the cell cannot run; empty where it can. Only then is everything below known.
        peak_memory_bytes: Largest sum of all tensors that are alive at once in a step; None after a problem.
        peak_by_kind: The parts of the peak, by :data:`MEMORY_KINDS`.
        state_by_kind: All of the rank's parameters, gradients and optimiser state.
        collectives: Those of one step, the largest first.
        stages: This rank's pipeline stages, for people; empty without a pipeline.
        notes: Parts that were left out or replaced by a stand-in.
        is_overstated: True if a stand-in holds more memory than what it replaces, so that the peak may be too high.
        time_s: Seconds that the preflight took.
    """

    KIND = "preflight"
    FILE = "a preflight record"

    cell_id: CellIdIfKnown
    rank: int
    world_size: int
    problem: str = ""
    peak_memory_bytes: int | None = None
    peak_by_kind: Mapping[str, int] = field(default_factory=dict)
    state_by_kind: Mapping[str, int] = field(default_factory=dict)
    collectives: tuple[Traffic, ...] = ()
    stages: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    is_overstated: bool = False
    time_s: float | None = None

    @property
    def least_memory_bytes(self) -> int | None:
        """A lower bound on the bytes of the rank's tensors; None where nothing is known."""
        if self.is_overstated and self.peak_memory_bytes is not None:
            # All of it is alive while the optimiser works.
            return sum(self.state_by_kind.values())
        return self.peak_memory_bytes

    def shortage(self, device: Device) -> str:
        """Why the rank cannot fit on the device: its certain need and the device's memory; empty where it may fit.

        The lower bound is compared: the CUDA context, communicators and fragmentation need more, and a peak that a
        stand-in raised proves nothing.
        """
        if self.least_memory_bytes is None or device.memory_gib is None:
            return ""
        least_gib = self.least_memory_bytes / _GIB
        if least_gib <= device.memory_gib:
            return ""
        taken = f"the tensors of rank {self.rank} alone peak at {least_gib:,.1f} GiB"
        if self.is_overstated:
            taken = f"parameters, gradients and optimiser state of rank {self.rank} alone take {least_gib:,.1f} GiB"
        return f"{taken}; {device.name} has {device.memory_gib:g} GiB"
