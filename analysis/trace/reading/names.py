"""Kernel names: which class of work a kernel belongs to, and which collective a communication kernel runs.

The tables are read from the top, and the first entry that matches counts. Names are those of NCCL up to 2.18
(``ncclKernel_AllReduce_RING_LL_Sum_float``), NCCL since (``ncclDevKernel_...``, ``ncclSymkDevKernel_...``), RCCL
(``ncclDevKernel_Generic``), torch's symmetric memory (``two_shot_all_reduce_kernel``, ``multimem_...``), NVSHMEM,
MSCCL++, custom all-reduce kernels of inference engines, and gloo's annotations (``gloo:all_gather``).
"""

from __future__ import annotations

import functools
import re
from enum import StrEnum


class Kind(StrEnum):
    """Kinds by the rule that the reference values of Holistic Trace Analysis use: by name alone."""

    COMM = "comm"
    COMPUTE = "compute"
    MEMORY = "memory"


class WorkClass(StrEnum):
    """Classes of work, finer than kinds and with the communication that is not NCCL's."""

    COMM = "comm"
    GEMM = "gemm"
    ATTENTION = "attention"
    POINTWISE = "pointwise"
    """Normalisation, activation, reductions and all other work that moves each element once."""
    OPTIMIZER = "optimizer"
    SHARD_COPY = "shard_copy"
    """FSDP's copies between parameters and the buffers of its collectives."""
    COPY = "copy"
    """Copies and fills by the driver."""


COMPUTE_CLASSES = (WorkClass.GEMM, WorkClass.ATTENTION, WorkClass.POINTWISE, WorkClass.OPTIMIZER)
COPY_CLASSES = (WorkClass.SHARD_COPY, WorkClass.COPY)


class Collective(StrEnum):
    """Kinds of collectives."""

    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_REDUCE = "all_reduce"
    ALL_TO_ALL = "all_to_all"
    BROADCAST = "broadcast"
    P2P = "p2p"
    OTHER = "other"
    """Reduce, gather, scatter and barrier."""
    UNKNOWN = "unknown"


_KIND_COMM = re.compile(r"nccl.*Kernel")
_KIND_MEMORY = re.compile(r"Memcpy|Memset|dma")

# Looked for in the kernel's own name, not in its template's arguments: a normalisation's may say BlockAllReduce.
_COMM = re.compile(
    r"^(?:nccl|rccl|msccl|nvshmem|gloo:)|multimem|nvshmem|symm_mem|symmetric_memory|deep_ep::|(?:one|two)_?shot"
    r"|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|cross_device_reduce|(?:put|wait)_signal|barrier_kernel"
    r"|^Memcpy (?:PtoP|Peer)",
    re.IGNORECASE,
)
# Kernels of FSDP that look like collectives by name: they copy into and out of the collective's buffer.
_SHARD_COPY = re.compile(r"all_gather_copy|split_with_sizes_copy|chunk_cat", re.IGNORECASE)
_CLASSES = (
    (WorkClass.COPY, r"^(?:Memcpy|Memset|dma)"),
    (WorkClass.OPTIMIZER, r"adam|adagrad|lamb_|muon|sgd|optimizer"),
    (WorkClass.ATTENTION, r"flash|fmha|attention|attn|sdpa|mha_|_mha"),
    (
        WorkClass.GEMM,
        r"\bCijk_|gemm|gemv|nvjet|cutlass|xmma|matmul|convolve|\bconv\dd|conv_|_conv(?!ert)|scudnn|split_?k|dot_kernel"
        r"|dgrad|wgrad|fprop|winograd|_mm\b|_mm_|mm_kernel|wmma|mfma",
    ),
)
_CLASS_PATTERNS = tuple((found, re.compile(pattern, re.IGNORECASE)) for found, pattern in _CLASSES)

# What c10d, gloo and NCCL call them, written without signs and in small letters.
_COLLECTIVES = (
    ("wait", Collective.OTHER),
    ("allgather", Collective.ALL_GATHER),
    ("reducescatter", Collective.REDUCE_SCATTER),
    ("allreduce", Collective.ALL_REDUCE),
    ("crossdevicereduce", Collective.ALL_REDUCE),
    ("shotreduce", Collective.ALL_REDUCE),
    ("alltoall", Collective.ALL_TO_ALL),
    ("broadcast", Collective.BROADCAST),
    ("sendrecv", Collective.P2P),
    ("pointtopoint", Collective.P2P),
    ("batchisend", Collective.P2P),
    ("send", Collective.P2P),
    ("recv", Collective.P2P),
    ("memcpy", Collective.UNKNOWN),
    ("barrier", Collective.OTHER),
    ("scatter", Collective.OTHER),
    ("gather", Collective.OTHER),
    ("reduce", Collective.OTHER),
)

# Operations of ATen that are more than one element at a time; the CPU's kernels have no names of their own.
_ATEN_CLASSES = (
    (WorkClass.SHARD_COPY, re.compile(r"^fsdp::")),
    (WorkClass.OPTIMIZER, re.compile(r"^aten::_fused_(?:adam|adamw|sgd|adagrad)")),
    (WorkClass.ATTENTION, re.compile(r"^aten::_?(?:scaled_dot_product|flash_attention|efficient_attention)")),
    (
        WorkClass.GEMM,
        re.compile(
            r"^aten::_?(?:addmm|mm|bmm|baddbmm|matmul|linear|addmv|mv|dot|einsum|scaled_mm|grouped_mm|int_mm"
            r"|convolution|conv\dd|mkldnn_linear)(?:_|$|\b)"
        ),
    ),
)


@functools.cache
def kind_of(name: str) -> Kind:
    """The kind of a GPU record by its name alone."""
    if _KIND_COMM.match(name):
        return Kind.COMM
    return Kind.MEMORY if _KIND_MEMORY.match(name) else Kind.COMPUTE


@functools.cache
def class_of(name: str) -> WorkClass:
    """The class of a GPU record by its name; what no table knows is pointwise work."""
    if _SHARD_COPY.search(name):
        return WorkClass.SHARD_COPY
    if _COMM.search(_own_name(name)):
        return WorkClass.COMM
    return next((found for found, pattern in _CLASS_PATTERNS if pattern.search(name)), WorkClass.POINTWISE)


@functools.cache
def class_of_op(name: str) -> WorkClass:
    """The class of an operation of ATen on the CPU."""
    return next((found for found, pattern in _ATEN_CLASSES if pattern.search(name)), WorkClass.POINTWISE)


@functools.cache
def collective_of(name: str) -> Collective:
    """The collective that a kernel, an annotation or an argument names; unknown where it names none.

    Example: ``ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(...)``, ``nccl:_all_gather_base`` and ``allreduce``. RCCL's
    ``ncclDevKernel_Generic`` is unknown.
    """
    bare = re.sub(r"[^a-z0-9]", "", _own_name(name).lower())
    return next((found for part, found in _COLLECTIVES if part in bare), Collective.UNKNOWN)


def _own_name(name: str) -> str:
    """A kernel's name and namespaces, without its result, template arguments and parameters."""
    bare = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    return re.split(r"[<(]", bare, maxsplit=1)[0]
