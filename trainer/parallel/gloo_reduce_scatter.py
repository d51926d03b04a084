"""FSDP's reduce-scatter over gloo as an all-to-all: each rank receives its shard from every rank and averages.

gloo's own (torch 2.13) all-reduces everything and keeps one shard: twice the bytes, and copies of all of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import nn


def exchange_gradients(units: Iterable[nn.Module]) -> None:
    """Make each FSDP unit reduce-scatter its gradients in this way."""
    for unit in units:
        # Duck-typed: the class to inherit from is in a private module of torch.
        cast("Any", unit).set_custom_reduce_scatter(ExchangeReduceScatter())


class ExchangeReduceScatter:
    """Reduce-scatter in the form that :meth:`torch.distributed.fsdp.FSDPModule.set_custom_reduce_scatter` takes."""

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Allocate a new buffer for each call."""
        return torch.empty(size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: dist.ReduceOp.RedOpType,
        async_op: bool = False,
    ) -> None:
        """Fill the output with this rank's shard of the sum, or mean, over the ranks; synchronous."""
        received = torch.empty_like(input_tensor)
        dist.all_to_all_single(received, input_tensor, group=group)
        join = {dist.ReduceOp.AVG: torch.mean, dist.ReduceOp.SUM: torch.sum}[op]
        join(received.view(group.size(), -1), dim=0, out=output_tensor)
