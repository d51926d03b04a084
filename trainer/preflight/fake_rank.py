"""Runs one rank of a cell on a fake process group and fake tensors: finds errors, memory and communication.

It computes nothing and holds no memory, so any rank of thousands runs on a laptop. The fake device is a CPU, since FSDP
asks CUDA for streams. For a GPU, norms save the tensors that they save on CUDA, and
sizes are rounded as by CUDA's allocator.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import time
from typing import TYPE_CHECKING

import torch
from torch.nn.parallel import DistributedDataParallel

from sweep.core.cells.cell import Cell, Precision, cell_id
from sweep.core.records.preflight_record import MEMORY_KINDS, Preflight
from trainer.failure.error_report import full_message
from trainer.parallel.mesh import build_mesh
from trainer.parallel.parallelize import Parallelized, parallelize
from trainer.preflight.memory import MemoryTracker
from trainer.preflight.traffic import GroupNames, TrafficCounter
from trainer.torch_private import preflight as private
from trainer.training.optimizer import ShardedAdamW

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainer.model.decoder import Llama

    Scope = contextlib.AbstractContextManager[object]

# What CUDA's caching allocator rounds to (c10/cuda/CUDACachingAllocator, kMinBlockSize).
_CUDA_GRANULARITY = 512
_CPU = torch.device("cpu")


def examine(cell: Cell, *, rank: int = 0, is_cuda: bool = False) -> Preflight:
    """Build one rank of the cell and run its steps.

    Args:
        cell: A cell that breaks no rule.
        rank: The rank.
        is_cuda: True if its device is a GPU.

    Returns:
        The findings; an exception of torch is their ``problem``.
    """
    began = time.perf_counter()
    world_size = cell.parallelism.world_size
    found = Preflight(cell_id=cell_id(cell), rank=rank, world_size=world_size)
    runnable, left_out = _without_compile(cell)
    try:
        with private.fake_process_group(rank, world_size) if world_size > 1 else contextlib.nullcontext():
            found = _run(found, runnable, is_cuda=is_cuda)
    except Exception as error:
        problem = " ".join(f"{type(error).__name__}: {full_message(error)}".split())
        return dataclasses.replace(found, problem=problem, time_s=time.perf_counter() - began)
    notes = (*left_out, *_stand_ins(cell, is_cuda=is_cuda))
    return dataclasses.replace(
        found, notes=notes, is_overstated=_is_overstated(cell, is_cuda=is_cuda), time_s=time.perf_counter() - began
    )


def _without_compile(cell: Cell) -> tuple[Cell, tuple[str, ...]]:
    """Switch the compiler off, and note it: uncompiled blocks keep more."""
    if not cell.compile:
        return cell, ()
    layout = dataclasses.replace(cell.parallelism, async_tp=False)
    return dataclasses.replace(cell, compile=False, parallelism=layout), ("compile: left out; fused blocks keep less",)


def _is_overstated(cell: Cell, *, is_cuda: bool) -> bool:
    """True if a stand-in (for compiled blocks, narrow products or the ring) holds more than the real thing."""
    is_ring = is_cuda and cell.parallelism.cp > 1 and cell.precision is not Precision.FP32
    return cell.compile or cell.precision in (Precision.FLOAT8, Precision.MXFP8) or is_ring


def _stand_ins(cell: Cell, *, is_cuda: bool) -> Iterator[str]:
    layout = cell.parallelism
    if is_cuda:
        yield from _attention_stand_ins(cell)
    if cell.precision in (Precision.FLOAT8, Precision.MXFP8):
        yield f"{cell.precision}: products are emulated, which takes more for a moment"
    if layout.dp_replicate > 1 and layout.dp_replicate == layout.world_size:
        yield "ddp: one collective stands for its buckets"


def _attention_stand_ins(cell: Cell) -> Iterator[str]:
    """Differences of attention on a GPU (:mod:`trainer.parallel.context_parallel`)."""
    yield "attention: what CUDA's kernels take for a moment in the backward pass is not counted"
    if cell.precision is not Precision.FP32 and cell.parallelism.cp > 1:
        yield (
            "cp: gathered keys and values stand in for ring attention (GPUs from sm80 on), which keeps a rank's own "
            f"alone for the backward pass and moves them by trainer.cp_rotate={cell.trainer.cp_rotate} in either pass"
        )
    may_repeat = cell.precision in (Precision.FP32, Precision.FP16)
    if may_repeat and cell.model.n_kv_heads != cell.model.n_heads:
        before = " before sm80" if cell.precision is Precision.FP16 else ""
        yield (
            f"attention: for grouped heads in {cell.precision} CUDA{before} is given keys and values repeated; that "
            "comes on top"
        )


class _FakeMemory:
    """Gives pipeline stages fake memory; after the last stage, all tensors are fake.

    FSDP chunks each parameter into a shard for each rank; on fake tensors, thousands of shards take minutes. So the
    model is parallelised before, on the meta device.
    """

    def __init__(self, mode: Scope, stack: contextlib.ExitStack, n_stages: int) -> None:
        self._mode = mode
        self._stack = stack
        self._n_left = n_stages

    def __call__(self, model: Llama, device: torch.device, positions: torch.Tensor | None, *, seed: int) -> None:
        """Allocate fake memory, without values."""
        with self._mode:
            model.to_empty(device=device)
            model.rebuild_buffers(device, positions)
        self._n_left -= 1
        if self._n_left == 0:
            self._stack.enter_context(self._mode)


def _run(found: Preflight, cell: Cell, *, is_cuda: bool) -> Preflight:
    layout = cell.parallelism
    mesh = build_mesh(layout, found.world_size, "cpu")
    tracker = MemoryTracker(granularity=_CUDA_GRANULARITY if is_cuda else 1)
    counter = TrafficCounter(lambda buffers: tracker.mark(buffers, "communication", only=("activations", "temporary")))
    with contextlib.ExitStack() as stack:
        mode = private.fake_tensors()
        memory = _FakeMemory(mode, stack, layout.virtual_stages if layout.pp > 1 else 1)
        model = parallelize(cell, mesh, _CPU, materialize=memory)
        for stage in model.stages:
            if isinstance(stage, DistributedDataParallel):
                private.fake_ddp_reduction(stage)
        if is_cuda:
            stack.enter_context(private.norms_as_on_cuda())
        if layout.pp > 1:
            stack.enter_context(private.pipeline_without_peers())
        stack.enter_context(private.untracked_shape_inference())
        stack.enter_context(tracker)
        stack.enter_context(counter)
        state = run_steps(cell, model, tracker, counter)
    names = None
    if mesh is not None:
        names = GroupNames.of(mesh, dp_shard=layout.dp_shard, cp=layout.cp, gpus_per_node=cell.gpus_per_node)
    peak = tracker.peak()
    return dataclasses.replace(
        found,
        peak_memory_bytes=sum(peak.values()),
        peak_by_kind={kind: peak.get(kind, 0) for kind in MEMORY_KINDS},
        state_by_kind=state,
        collectives=() if names is None else counter.traffic(names),
        stages=tuple(map(str, model.split)),
    )


def run_steps(
    cell: Cell, model: Parallelized, tracker: MemoryTracker, counter: TrafficCounter | None = None
) -> dict[str, int]:
    """Run a short first step, then a whole step under the trackers, when the optimiser has its state.

    Returns:
        Bytes of this rank's parameters, gradients and optimiser state.
    """
    parameters = list(model.parameters())
    tracker.mark(parameters, "parameters")
    tracker.mark(itertools.chain.from_iterable(stage.buffers() for stage in model.stages), "buffers")
    optimizer = ShardedAdamW(parameters, cell.trainer, model.model_group, model.tp, model.loss_scale)
    with tracker.making("buffers"):
        tokens = torch.zeros(cell.global_batch // cell.parallelism.data_ranks, cell.seq_len + 1, dtype=torch.long)
    _first_backward(cell, model, tokens, tracker)
    _update(optimizer, tracker)
    if counter is not None:
        counter.clear()
    model.run(tokens)
    del tokens
    tracker.mark((parameter.grad for parameter in parameters), "gradients")
    n_gradient_bytes = tracker.living().get("gradients", 0)
    _update(optimizer, tracker)
    tracker.rename("by the optimizer", "temporary")
    living = tracker.living()
    return {
        "parameters": living.get("parameters", 0),
        "gradients": n_gradient_bytes,
        "optimizer": living.get("optimizer", 0),
    }


def _update(optimizer: ShardedAdamW, tracker: MemoryTracker) -> None:
    with tracker.making("by the optimizer"):
        optimizer.step()
    tracker.mark_living("by the optimizer", "optimizer")


def _first_backward(cell: Cell, model: Parallelized, tokens: torch.Tensor, tracker: MemoryTracker) -> None:
    """Make the gradients of the first step, from which the optimiser makes its state.

    One micro-batch is enough. A pipeline's schedule runs all or none, so there the gradients are zeros.
    """
    if cell.parallelism.pp == 1:
        model.run(tokens[: cell.micro_batch])
        return
    with tracker.making("gradients"):
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
