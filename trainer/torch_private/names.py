"""The private names, by the use that needs them, and the check that the installed version has them.

``EVERY_RUN`` is checked when :mod:`trainer.torch_private.training` is imported, any other use when it first needs its
names: older versions of torch that are supported lack some of them.
"""

from __future__ import annotations

import functools
import importlib
from dataclasses import dataclass
from importlib import metadata


class PrivateNameError(ImportError):
    """The installed version lacks a private name that the trainer needs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Use:
    """Private names that one part of the trainer needs."""

    purpose: str
    names: tuple[str, ...]
    """Module and attribute, ``module:a.b``; of alternatives, ``module:a|b``, one suffices."""
    versions: str = "2.9 to 2.14"
    """Versions in whose sources the names were found."""
    tested: str = "2.13"
    """Version that the tests ran with."""

    def missing(self) -> list[str]:
        """Return the names that the installed version lacks."""
        return [name for name in self.names if not _exists(name)]

    def require(self) -> None:
        """Check all names.

        Raises:
            PrivateNameError: If any is missing; names them, the version found and the versions that have them.
        """
        if missing := self.missing():
            package = missing[0].partition(":")[0].partition(".")[0]
            raise PrivateNameError(
                f"{package} {metadata.version(package)} lacks private names that {self.purpose} needs: "
                f"{', '.join(missing)}. {package} {self.versions} has them (tested: {self.tested}). "
                "Install such a version, or adapt trainer/torch_private."
            )


def _exists(name: str) -> bool:
    module, _, attributes = name.partition(":")
    *path, alternatives = attributes.split(".")
    try:
        owner = functools.reduce(getattr, path, importlib.import_module(module))
    except (ImportError, AttributeError):
        return False
    return any(hasattr(owner, alternative) for alternative in alternatives.split("|"))


def _in(module: str, attributes: str) -> tuple[str, ...]:
    return tuple(f"{module}:{attribute}" for attribute in attributes.split())


_RING = "torch.distributed.tensor.experimental._context_parallel"
_SDPA = "ops.aten._scaled_dot_product"
EVERY_RUN = Use(
    purpose="every run",
    names=(
        *_in("torch", "_amp_update_scale_ _foreach_mul_"),
        *_in("torch", f"{_SDPA}_cudnn_attention {_SDPA}_efficient_attention"),
        *_in("torch", f"{_SDPA}_flash_attention {_SDPA}_flash_attention_for_cpu"),
        *_in("torch", "ops._c10d_functional.all_reduce ops._c10d_functional.reduce_scatter_tensor"),
        *_in("torch._inductor.config", "emulate_precision_casts"),
        *_in("torch.distributed", "ProcessGroup._get_backend"),
        *_in("torch.distributed._composable.replicate_with_fsdp", "replicate"),
        *_in("torch.distributed._functional_collectives", "all_gather_single_autograd|all_gather_tensor_autograd"),
        *_in(
            "torch.distributed.algorithms._checkpoint.checkpoint_wrapper",
            "CheckpointImpl.NO_REENTRANT checkpoint_wrapper",
        ),
        *_in("torch.distributed.device_mesh", "DeviceMesh._flatten"),
        *_in("torch.distributed.distributed_c10d", "_world"),
        *_in("torch.distributed.tensor.placement_types", "_StridedShard"),
    ),
)
CP_BESIDE_DP_SHARD = Use(
    purpose="cp beside dp_shard",
    names=_in("torch.distributed.device_mesh", "DeviceMesh._unflatten"),
    versions="2.10 to 2.14",
)
RING_ATTENTION = Use(
    purpose="ring attention",
    names=(
        *_in(f"{_RING}._attention", "_ContextParallel.AttentionType.SDPA _context_parallel_shard"),
        *_in(f"{_RING}._attention", "_enable_context_parallel_dispatcher set_rotate_method"),
        *_in(f"{_RING}._load_balancer", "_HeadTailLoadBalancer"),
    ),
    versions="2.10 to 2.14",
)
ASYNC_TP = Use(
    purpose="async_tp",
    names=(
        *_in("torch._inductor.config", "_micro_pipeline_tp"),
        *_in("torch.distributed._symmetric_memory", "enable_symm_mem_for_group"),
    ),
)
PREFLIGHT = Use(
    purpose="a preflight",
    names=(
        *_in("torch", "ScriptObject._type UntypedStorage._cdata"),
        *_in("torch._C", "_AutoDispatchBelowAutograd _current_graph_task_id"),
        *_in("torch._subclasses.fake_tensor", "FakeTensorMode"),
        *_in("torch.distributed.distributed_c10d", "_resolve_process_group"),
        *_in("torch.distributed.tensor", "DTensor._local_tensor"),
        *_in("torch.distributed.tensor._sharding_prop", "ShardingPropagator._propagate_tensor_meta_non_cached"),
        *_in("torch.library", "Library._destroy"),
        *_in("torch.testing._internal.distributed.fake_pg", "FakeStore"),
        *_in("torch.utils._python_dispatch", "TorchDispatchMode _disable_current_modes"),
        *_in("torch.utils._pytree", "tree_leaves"),
    ),
)
PIPELINE_PREFLIGHT = Use(
    purpose="a preflight of a pipeline",
    names=(
        *_in(
            "torch.distributed.pipelining", "PipelineStage._warmup_backward_result PipelineStage._warmup_forward_vote"
        ),
        *_in("torch.distributed.pipelining._utils", "InferenceMode.needs_dynamic"),
    ),
    versions="2.12 to 2.14",
)
MXFP8 = Use(
    purpose="precision=mxfp8",
    names=_in("torchao.prototype.moe_training.mxfp8_linear", "_to_mxfp8_then_scaled_mm"),
    versions="0.18",
    tested="0.18",
)
USES = (EVERY_RUN, CP_BESIDE_DP_SHARD, RING_ATTENTION, ASYNC_TP, PREFLIGHT, PIPELINE_PREFLIGHT, MXFP8)
