"""Context parallelism: each rank holds a part of every sequence, of which attention alone needs the whole.

Every rank takes one piece from the front and its mirror image from the back of the sequence (of 2 x cp pieces), so
that all have as much to attend to. Suffixes as in :mod:`trainer.model`; T is all positions, S those held here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed import _functional_collectives as collectives
from torch.distributed.tensor.parallel import parallelize_module

from trainer.model import CausalAttention

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from trainer.model import Llama


# Under its name of torch 2.13, and that of earlier versions.
_gather = getattr(collectives, "all_gather_single_autograd", None) or collectives.all_gather_tensor_autograd


def positions_of(seq_len: int, cp_degree: int, cp_rank: int) -> torch.Tensor:
    """Positions that a rank holds, in order (arXiv 2407.21783, section 3.3.2)."""
    pieces = torch.arange(seq_len).view(2 * cp_degree, -1)
    return pieces[[cp_rank, 2 * cp_degree - 1 - cp_rank]].flatten()


class GatheredAttention(nn.Module):
    """Attention to the gathered keys and values of all ranks: exact, on any device, for the memory of all positions.

    Args:
        is_grouped: Whether several query heads share a key/value head.
        mesh: The cp ranks.
        mask_ST: Which gathered position (in order of ranks) each position held here attends to.
    """

    def __init__(self, *, is_grouped: bool, mesh: DeviceMesh, mask_ST: torch.Tensor) -> None:
        super().__init__()
        self.is_grouped = is_grouped
        self.group = mesh.get_group()
        self.mask_ST = mask_ST

    def forward(self, q_BHSE: torch.Tensor, k_BKSE: torch.Tensor, v_BKSE: torch.Tensor) -> torch.Tensor:
        """Weighted values of the positions held here."""
        # One collective for both, whose gradient is reduced and scattered back in one as well.
        kv_2BKTE = _gather(torch.stack((k_BKSE, v_BKSE)), gather_dim=3, group=self.group)
        k_BKTE, v_BKTE = kv_2BKTE.unbind()
        return F.scaled_dot_product_attention(
            q_BHSE, k_BKTE, v_BKTE, attn_mask=self.mask_ST, enable_gqa=self.is_grouped
        )


def split_attention(model: Llama, mesh: DeviceMesh, device: torch.device) -> None:
    """Let attention reach over all cp ranks: around a ring on GPUs, else over gathered keys and values."""
    inner = [
        (block, cast("CausalAttention", block.get_submodule("attention.inner"))) for block in model.blocks.values()
    ]
    if device.type == "cuda":
        _run_around_ring([attention for _, attention in inner], mesh, model.seq_len)
        return
    degree = mesh.size()
    held = positions_of(model.seq_len, degree, mesh.get_local_rank())
    gathered = torch.cat([positions_of(model.seq_len, degree, rank) for rank in range(degree)])
    mask_ST = (held[:, None] >= gathered[None, :]).to(device)
    for block, attention in inner:
        block.set_submodule(
            "attention.inner", GatheredAttention(is_grouped=attention.is_grouped, mesh=mesh, mask_ST=mask_ST)
        )


def _run_around_ring(inner: list[CausalAttention], mesh: DeviceMesh, seq_len: int) -> None:
    """Torch's ring attention (experimental in 2.13), balanced in the same way. Not yet run on a GPU."""
    from torch.distributed.tensor.experimental._context_parallel import _attention as ring
    from torch.distributed.tensor.experimental._context_parallel._load_balancer import _HeadTailLoadBalancer

    # Sharding anything tells torch that modules are wrapped and sequences balanced; there is no other switch.
    balancer = _HeadTailLoadBalancer(seq_len, mesh.size(), mesh.device_type)
    ring._context_parallel_shard(mesh, [torch.arange(seq_len, device=mesh.device_type)], [0], balancer)
    ring._enable_context_parallel_dispatcher()
    style = ring._ContextParallel(seq_dim=2, attention_type=ring._ContextParallel.AttentionType.SDPA)
    for attention in inner:
        parallelize_module(attention, mesh, style)
