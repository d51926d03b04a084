"""FSDP's reduce-scatter over gloo: each rank sends every other its part and averages what it was sent.

gloo's own (torch 2.13) sums all parts on all ranks and keeps one of them: twice the bytes, and copies of all of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import nn


def exchange_gradients(groups: Iterable[nn.Module]) -> None:
    """Let each of FSDP's groups scatter its gradients in this way."""
    for group in groups:
        # Duck-typed: the class to inherit from is in a private module of torch.
        cast("Any", group).set_custom_reduce_scatter(ExchangeReduceScatter())


class ExchangeReduceScatter:
    """What :meth:`torch.distributed.fsdp.FSDPModule.set_custom_reduce_scatter` takes."""

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """A buffer of its own for each call."""
        return torch.empty(size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: dist.ReduceOp.RedOpType,
        async_op: bool = False,
    ) -> None:
        """Fill the output with this rank's part of the sum, or of the mean, over the ranks; done when it returns."""
        received = torch.empty_like(input_tensor)
        dist.all_to_all_single(received, input_tensor, group=group)
        join = {dist.ReduceOp.AVG: torch.mean, dist.ReduceOp.SUM: torch.sum}[op]
        join(received.view(group.size(), -1), dim=0, out=output_tensor)
