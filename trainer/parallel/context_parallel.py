"""Context parallelism: each rank holds a part of every sequence; only attention needs the whole sequence.

The sequence is cut into 2 x cp pieces. Each rank takes one from the front and its mirror image from the back, so that
all ranks have equal work in causal attention. Attention has two forms: torch's ring attention where its kernels run,
else attention to all-gathered keys and values. Suffixes as in :mod:`trainer.model.decoder`; S this rank's positions, T
all positions.
"""

from __future__ import annotations

from enum import StrEnum
from typing import cast

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.attention import SDPBackend, sdpa_kernel

from trainer.model.decoder import CausalAttention, Llama
from trainer.torch_private.training import all_gather_with_gradient, ring_attention_style

# Limits of the ring's kernels on every GPU that has them, backward pass included: flash attention needs sm80 and has no
# fp32; cuDNN's takes heads of up to 128 channels, in eights (aten/native/transformers/cuda/sdp_utils.cpp). The other
# two kernels of torch 2.13 have no grouped heads, and the ring fails with them.
_RING_KERNELS = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION]
_RING_DTYPES = (torch.float16, torch.bfloat16)
_RING_CAPABILITY = (8, 0)
_RING_HEAD_DIM, _RING_HEAD_STEP = 128, 8


class AttentionForm(StrEnum):
    """How attention gets the keys and values of other cp ranks."""

    RING = "ring"
    GATHERED = "gathered"


def choose_attention(dtype: torch.dtype, head_dim: int, capability: tuple[int, int] | None) -> AttentionForm:
    """Choose the ring where flash attention or cuDNN's kernel can run, else gathered keys and values.

    Args:
        dtype: Format of queries, keys and values.
        head_dim: Channels of a head.
        capability: The device's CUDA compute capability; None on a CPU.
    """
    fits = head_dim <= _RING_HEAD_DIM and head_dim % _RING_HEAD_STEP == 0
    return AttentionForm.RING if fits and _has_ring_kernels(dtype, capability) else AttentionForm.GATHERED


def _has_ring_kernels(dtype: torch.dtype, capability: tuple[int, int] | None) -> bool:
    return capability is not None and capability >= _RING_CAPABILITY and dtype in _RING_DTYPES


def repeats_heads(dtype: torch.dtype, capability: tuple[int, int] | None) -> bool:
    """True if keys and values must be repeated for grouped heads, without context parallelism.

    Where a GPU has neither flash attention nor cuDNN's for a format, the remaining kernel has no grouped heads, and
    torch would write out, and keep, the scores of all heads (from the source of 2.13; not run on a GPU).
    """
    return capability is not None and not _has_ring_kernels(dtype, capability)


def capability_of(device: torch.device) -> tuple[int, int] | None:
    """CUDA compute capability; None on a CPU."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else None


def positions_of(seq_len: int, cp_degree: int, cp_rank: int) -> torch.Tensor:
    """Positions of a rank, in order (arXiv 2407.21783, section 3.3.2)."""
    pieces = torch.arange(seq_len).view(2 * cp_degree, -1)
    return pieces[[cp_rank, 2 * cp_degree - 1 - cp_rank]].flatten()


class GatheredAttention(nn.Module):
    """Attention to all-gathered keys and values: exact, on any device, with the memory of all positions.

    Args:
        is_grouped: True if several query heads share a key/value head.
        mesh: The cp ranks.
        mask_ST: True where a position of this rank attends to a gathered position (in order of ranks).
        repeats_heads: True if keys and values are repeated for each query head. CUDA's kernel that takes a mask has no
            grouped heads; torch would write out, and keep, the scores of all heads.
    """

    def __init__(self, *, is_grouped: bool, mesh: DeviceMesh, mask_ST: torch.Tensor, repeats_heads: bool) -> None:
        super().__init__()
        self.is_grouped = is_grouped
        self.repeats_heads = is_grouped and repeats_heads
        self.group = mesh.get_group()
        self.mask_ST = mask_ST

    def forward(self, q_BHSE: torch.Tensor, k_BKSE: torch.Tensor, v_BKSE: torch.Tensor) -> torch.Tensor:
        """Weighted values of this rank's positions, shape (B, H, S, E)."""
        # One all-gather for both; its backward pass is one reduce-scatter.
        kv_2BKTE = all_gather_with_gradient(torch.stack((k_BKSE, v_BKSE)), gather_dim=3, group=self.group)
        if self.repeats_heads:
            kv_2BKTE = kv_2BKTE.repeat_interleave(q_BHSE.shape[1] // k_BKSE.shape[1], dim=2)
        k_BKTE, v_BKTE = kv_2BKTE.unbind()
        return F.scaled_dot_product_attention(
            q_BHSE, k_BKTE, v_BKTE, attn_mask=self.mask_ST, enable_gqa=self.is_grouped and not self.repeats_heads
        )


class RingAttention(CausalAttention):
    """Attention by one of the kernels that torch's ring supports, whichever torch prefers without a ring."""

    def forward(self, q_BHSE: torch.Tensor, k_BKSE: torch.Tensor, v_BKSE: torch.Tensor) -> torch.Tensor:
        """Weighted values of this rank's positions, shape (B, H, S, E)."""
        with sdpa_kernel(_RING_KERNELS):
            return super().forward(q_BHSE, k_BKSE, v_BKSE)


def apply_context_parallel(
    model: Llama, mesh: DeviceMesh, device: torch.device, dtype: torch.dtype, *, rotate: str
) -> dict[str, str]:
    """Replace attention by a form that reaches over all cp ranks.

    Args:
        model: The model, or a pipeline stage.
        mesh: The cp ranks.
        device: Device of the model.
        dtype: Format of activations.
        rotate: Collective that passes keys and values round the ring: ``alltoall`` or ``allgather``.

    Returns:
        The chosen form, and the ring's collective, for the result.
    """
    form = choose_attention(dtype, model.shape.head_dim, capability_of(device))
    if form is AttentionForm.RING:
        _apply_ring(model, mesh, rotate)
        return {"attention": form, "rotate": rotate}
    _apply_gathered(model, mesh, device, repeats_heads=device.type == "cuda")
    return {"attention": form}


def _apply_gathered(model: Llama, mesh: DeviceMesh, device: torch.device, *, repeats_heads: bool) -> None:
    degree = mesh.size()
    held = positions_of(model.seq_len, degree, mesh.get_local_rank())
    gathered = torch.cat([positions_of(model.seq_len, degree, rank) for rank in range(degree)])
    mask_ST = (held[:, None] >= gathered[None, :]).to(device)
    for block in model.blocks.values():
        whole = cast("CausalAttention", block.get_submodule("attention.inner"))
        gathering = GatheredAttention(
            is_grouped=whole.is_grouped, mesh=mesh, mask_ST=mask_ST, repeats_heads=repeats_heads
        )
        block.set_submodule("attention.inner", gathering)


def _apply_ring(model: Llama, mesh: DeviceMesh, rotate: str) -> None:
    """Use torch's ring attention (experimental in 2.13), balanced in the same way. Not yet run on a GPU."""
    style = ring_attention_style(mesh, model.seq_len, rotate)
    for block in model.blocks.values():
        whole = cast("CausalAttention", block.get_submodule("attention.inner"))
        block.set_submodule("attention.inner", RingAttention(is_grouped=whole.is_grouped))
        parallelize_module(block.get_submodule("attention.inner"), mesh, style)
