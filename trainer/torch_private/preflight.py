"""Private names of torch that a preflight uses: fake process group, fake tensors, trackers of operations."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.pipelining import PipelineStage

from trainer.torch_private import names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch.distributed.tensor import DTensor
    from torch.nn.parallel import DistributedDataParallel

# Before the imports, each of which would name one missing name only.
names.PREFLIGHT.require()

from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves as tree_leaves

# Torch does not annotate them.
_aten: Any = torch.ops.aten
_c10d: Any = distributed_c10d
_library: Any = torch.library

# Namespaces of operations that communicate; those of the first work in place.
IN_PLACE_COLLECTIVES = "c10d"
COLLECTIVES = (IN_PLACE_COLLECTIVES, "_c10d_functional", "_dtensor")


def local_tensor(tensor: DTensor) -> torch.Tensor:
    """This rank's part of a DTensor, without an operation that autograd or a tracker would see."""
    return tensor._local_tensor


def storage_address(storage: torch.UntypedStorage) -> int:
    """Address of torch's own object, which lives as long as the storage does."""
    return int(storage._cdata)


def is_in_backward() -> bool:
    """True while autograd runs a backward pass."""
    return torch._C._current_graph_task_id() != -1


def operation_name(func: Any) -> str:
    """Name of a dispatched operation without its namespace."""
    return str(func._schema.name.partition("::")[2])


def group_of_collective(args: Sequence[Any]) -> dist.ProcessGroup:
    """Find the process group among a collective's arguments."""
    for arg in args:
        if isinstance(arg, dist.ProcessGroup):
            return arg
        if isinstance(arg, torch.ScriptObject) and "ProcessGroup" in str(arg._type()):
            return dist.ProcessGroup.unbox(arg)
    # Functional collectives name their group last; the name of a reduction stands before it.
    for arg in reversed(args):
        if isinstance(arg, str):
            return cast("dist.ProcessGroup", _c10d._resolve_process_group(arg))
    raise TypeError("a collective without a group")


def observe_resizes(observer: Callable[[torch.UntypedStorage], None]) -> Callable[[], None]:
    """Patch torch to call the observer after each resize of a storage; return the function that undoes it."""
    original = torch.UntypedStorage.resize_

    def resize(storage: torch.UntypedStorage, size: int) -> Any:
        result = original(storage, size)
        observer(storage)
        return result

    def restore() -> None:
        torch.UntypedStorage.resize_ = original  # type: ignore[method-assign]  # a patch

    torch.UntypedStorage.resize_ = cast("Any", resize)  # type: ignore[method-assign]  # a patch
    return restore


@contextlib.contextmanager
def fake_process_group(rank: int, world_size: int) -> Iterator[None]:
    """Form a process group whose collectives return at once, as one rank of many."""
    dist.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def fake_tensors() -> contextlib.AbstractContextManager[object]:
    """A mode in which tensors have shapes and no memory."""
    return FakeTensorMode(allow_non_fake_inputs=True)


class _FakeReducer:
    """DDP's reducer without its check of the order of gradients, which reads values that a fake tensor lacks."""

    def __init__(self, reducer: Any) -> None:
        self._reducer = reducer

    def __getattr__(self, name: str) -> Any:
        """Forward everything else to DDP's reducer."""
        return getattr(self._reducer, name)

    def _rebuild_buckets(self) -> bool:
        return False


def fake_ddp_reduction(module: DistributedDataParallel) -> None:
    """Let DDP reduce its buckets on a fake process group, whose work has no result to wait for."""

    def reduce(group: dist.ProcessGroup, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        dist.all_reduce(bucket.buffer(), group=group)
        reduced: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        reduced.set_result(bucket.buffer())
        return reduced

    # DDP compares annotations with the classes themselves, not with their names.
    reduce.__annotations__ = {"bucket": cast("Any", dist).GradBucket, "return": torch.futures.Future[torch.Tensor]}
    module.register_comm_hook(module.process_group, reduce)
    module.reducer = cast("Any", _FakeReducer(module.reducer))


@contextlib.contextmanager
def pipeline_without_peers() -> Iterator[None]:
    """Let each rank of a pipeline decide by itself whether shapes are static: a fake peer sends no vote.

    Ranks vote before the first step only, so that votes are no traffic of a step.
    """
    names.PIPELINE_PREFLIGHT.require()
    from torch.distributed.pipelining._utils import InferenceMode

    def vote(stage: Any, *_: Any, **_named: Any) -> torch.Tensor:
        is_dynamic = InferenceMode.needs_dynamic(stage._user_meta, True)
        # A literal, whose value even a fake tensor knows.
        return torch.tensor(0) if is_dynamic else torch.tensor(1)

    with (
        _patched(PipelineStage, "_warmup_forward_vote", vote),
        _patched(PipelineStage, "_warmup_backward_result", vote),
    ):
        yield


@contextlib.contextmanager
def untracked_shape_inference() -> Iterator[None]:
    """Hide from trackers how DTensor infers a shape: it runs the operation on fake tensors of the whole."""
    name = "_propagate_tensor_meta_non_cached"
    original = getattr(ShardingPropagator, name)

    def propagate(propagator: Any, schema: Any) -> Any:
        with _disable_current_modes():
            return original(propagator, schema)

    with _patched(ShardingPropagator, name, propagate):
        yield


@contextlib.contextmanager
def _patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


@contextlib.contextmanager
def norms_as_on_cuda() -> Iterator[None]:
    """Let ``rms_norm`` on CPU tensors save the tensors that it saves on CUDA; without a fused kernel, change nothing.

    The tensors that an operation saves for its backward pass depend on the device. By torch 2.13's ``derivatives.yaml``
    and ``native_functions.yaml``, for each operation of a training step:

    - ``rms_norm``: on a CPU several operations that save two float32 tensors of the input's size; on CUDA one kernel
      that saves its input and one float32 number for each row. Replaced here.
    - attention in bf16 and fp16: both save q, k, v, the result and its log-sum-exp; CUDA adds two numbers.
    - matrix products, silu, products, sums, embedding, softmax, nll_loss, the fused AdamW: the same.
    """
    if not hasattr(_aten, "_fused_rms_norm_backward"):
        yield
        return
    library = _library.Library("aten", "IMPL")
    library.impl("_fused_rms_norm", _FusedRMSNorm.apply, "AutogradCPU")
    try:
        yield
    finally:
        library._destroy()


class _FusedRMSNorm(torch.autograd.Function):
    """The same as FusedRmsNormBackward0, which torch's autograd has on CUDA only."""

    @staticmethod
    def forward(
        context: Any, x: torch.Tensor, normalized_shape: list[int], weight: torch.Tensor, eps: float | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        with torch._C._AutoDispatchBelowAutograd():
            out, rstd = _aten._fused_rms_norm.default(x, normalized_shape, weight, eps)
        context.save_for_backward(x, weight, rstd)
        context.normalized_shape = normalized_shape
        context.mark_non_differentiable(rstd)
        return out, rstd

    @staticmethod
    def backward(
        context: Any, gradient: torch.Tensor, _: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, None, torch.Tensor | None, None]:
        x, weight, rstd = context.saved_tensors
        wanted = [context.needs_input_grad[0], context.needs_input_grad[2]]
        for_x, for_weight = _aten._fused_rms_norm_backward.default(
            gradient, x, context.normalized_shape, rstd, weight, wanted
        )
        return for_x, None, for_weight, None
