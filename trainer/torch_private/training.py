"""Private names of torch and torchao that a run uses."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist

from trainer.torch_private import names

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.parallel import ParallelStyle

# Before the imports, each of which would name one missing name only.
names.EVERY_RUN.require()

from torch._inductor import config as _inductor
from torch.distributed import _functional_collectives as _collectives
from torch.distributed import distributed_c10d
from torch.distributed._composable.replicate_with_fsdp import replicate as replicate
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl as CheckpointImpl
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper as checkpoint_wrapper
from torch.distributed.tensor.placement_types import _StridedShard

# Torch does not annotate them.
_aten: Any = torch.ops.aten
_c10d: Any = distributed_c10d

# The name of torch 2.13, else that of earlier versions.
all_gather_with_gradient: Callable[..., torch.Tensor] = (
    getattr(_collectives, "all_gather_single_autograd", None) or _collectives.all_gather_tensor_autograd
)
StridedShard = _StridedShard
foreach_mul_ = torch._foreach_mul_
amp_update_scale_ = torch._amp_update_scale_
ATTENTION_OPS = frozenset(
    {
        _aten._scaled_dot_product_flash_attention.default,
        _aten._scaled_dot_product_flash_attention_for_cpu.default,
        _aten._scaled_dot_product_efficient_attention.default,
        _aten._scaled_dot_product_cudnn_attention.default,
    }
)
REDUCTION_OPS = frozenset(
    {torch.ops._c10d_functional.reduce_scatter_tensor.default, torch.ops._c10d_functional.all_reduce.default}
)
# Modules that wrappers (activation checkpointing, torch.compile, DDP) put into a parameter's name.
WRAPPERS = ("_checkpoint_wrapped_module", "_orig_mod", "module")


def keep_precision_casts() -> None:
    """Let inductor's fused kernels round wherever the code does, in the whole process."""
    _inductor.emulate_precision_casts = True


def precision_casts_are_kept() -> bool:
    """True if inductor's fused kernels round wherever the code does."""
    return bool(_inductor.emulate_precision_casts)


def enable_async_tp(mesh: DeviceMesh) -> None:
    """Async tensor parallelism: inductor splits a matrix product beside the collective that it waits for.

    It uses torch's symmetric memory, between GPUs of one node. Not yet run on a GPU.
    """
    names.ASYNC_TP.require()
    from torch.distributed._symmetric_memory import enable_symm_mem_for_group

    _inductor._micro_pipeline_tp = True
    enable_symm_mem_for_group(mesh.get_group().group_name)


def flattened_group(mesh: DeviceMesh, name: str) -> dist.ProcessGroup:
    """One process group of all ranks of a mesh with several dimensions."""
    return mesh._flatten(name).get_group()


def unflattened(mesh: DeviceMesh, degrees: tuple[int, ...], dims: tuple[str, ...]) -> DeviceMesh:
    """Split the one dimension of a mesh into several."""
    names.CP_BESIDE_DP_SHARD.require()
    return mesh._unflatten(0, degrees, dims)


def backends_of_groups(device: str) -> list[Any]:
    """Backends for a type of device, of all process groups of this rank."""
    # A copy: other threads form groups meanwhile.
    return [group._get_backend(torch.device(device)) for group in tuple(_c10d._world.pg_map)]


def recorded_collectives() -> bytes | None:
    """Dump torch's flight recorder; None where this build has none."""
    core: Any = torch._C._distributed_c10d
    name = "_dump_nccl_trace" if dist.get_backend() == "nccl" else "_dump_fr_trace"
    dump = getattr(core, name, None)
    return None if dump is None else bytes(dump())


def ring_attention_style(mesh: DeviceMesh, seq_len: int, rotate: str) -> ParallelStyle:
    """Switch torch's ring attention on, sequences balanced head to tail; return the style for attention modules.

    Args:
        mesh: The cp ranks.
        seq_len: Positions of a whole sequence.
        rotate: ``alltoall`` or ``allgather``; torch's own default gathers all keys and values at once.
    """
    names.RING_ATTENTION.require()
    from torch.distributed.tensor.experimental._context_parallel import _attention as ring
    from torch.distributed.tensor.experimental._context_parallel._load_balancer import _HeadTailLoadBalancer

    ring.set_rotate_method(rotate)
    # Only sharding some tensor tells torch that modules are wrapped and sequences balanced.
    balancer = _HeadTailLoadBalancer(seq_len, mesh.size(), mesh.device_type)
    ring._context_parallel_shard(mesh, [torch.arange(seq_len, device=mesh.device_type)], [0], balancer)
    ring._enable_context_parallel_dispatcher()
    return ring._ContextParallel(seq_dim=2, attention_type=ring._ContextParallel.AttentionType.SDPA)


def mxfp8_product() -> Callable[..., torch.Tensor]:
    """Torchao's product of fp32 or bf16 tensors that rounds them to MXFP8, forward and backward."""
    names.MXFP8.require()
    module: Any = importlib.import_module("torchao.prototype.moe_training.mxfp8_linear")
    return cast("Callable[..., torch.Tensor]", module._to_mxfp8_then_scaled_mm)


def has_mxfp8_kernels() -> bool:
    """True if torchao has its MXFP8 kernels for this torch, or a later torchao does not tell."""
    kernels = importlib.import_module("torchao.prototype.mx_formats.kernels")
    return bool(getattr(kernels, "_mxfp8_cuda_kernels_available", True))
