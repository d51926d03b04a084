"""AdamW and gradient clipping on this rank's plain tensors, without DTensor's dispatch in every step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sweep.core.cell import TrainerSettings


class ShardedAdamW:
    """AdamW over the local parts of the parameters.

    A sharded parameter's local part shares its storage, so that updating it in place updates the parameter; the
    optimiser and the norm then see ordinary tensors, and one fused kernel takes them all.

    Args:
        parameters: The model's parameters, after they have their storage.
        settings: Learning rate, decay and the largest norm.
        shard_group: Ranks over which one copy of the gradients is spread; None where each rank holds all.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        settings: TrainerSettings,
        shard_group: dist.ProcessGroup | None,
    ) -> None:
        self._parameters = [p for p in parameters if _local(p).numel()]
        # A plain parameter is its own local part, which keeps DDP's gradient views in place.
        self._locals = [nn.Parameter(_local(p)) if isinstance(p, DTensor) else p for p in self._parameters]
        self._is_sharded = any(isinstance(p, DTensor) for p in self._parameters)
        self._group = shard_group
        self._max_norm = settings.grad_clip
        self._adamw = torch.optim.AdamW(
            self._locals,
            lr=settings.lr,
            betas=(settings.beta1, settings.beta2),
            eps=settings.eps,
            weight_decay=settings.weight_decay,
            fused=True,
        )

    @torch.no_grad()
    def step(self) -> torch.Tensor:
        """Clip, update, drop the gradients; returns the global norm before clipping, still on the device."""
        gradients = self._collect_gradients()
        norm = self._global_norm(gradients)
        if self._max_norm > 0:
            clip_grads_with_norm_(self._locals, self._max_norm, norm)
        self._adamw.step()
        self._drop_gradients()
        return norm

    def _collect_gradients(self) -> list[torch.Tensor]:
        if self._is_sharded:
            for parameter, local in zip(self._parameters, self._locals, strict=True):
                local.grad = _local(parameter.grad) if parameter.grad is not None else None
        return [local.grad for local in self._locals if local.grad is not None]

    def _global_norm(self, gradients: list[torch.Tensor]) -> torch.Tensor:
        norm = get_total_norm(gradients, foreach=True)
        if self._group is None:
            return norm
        squared = norm.square()
        dist.all_reduce(squared, group=self._group)
        return squared.sqrt()

    def _drop_gradients(self) -> None:
        self._adamw.zero_grad(set_to_none=True)
        if self._is_sharded:
            for parameter in self._parameters:
                parameter.grad = None


@torch.no_grad()
def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local().detach() if isinstance(tensor, DTensor) else tensor
