"""AdamW and gradient clipping on local tensors, without DTensor's dispatch in every step."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.nn.utils import get_total_norm

from sweep.core.cells.trainer_settings import TrainerSettings
from trainer.model.precision import LossScale

# What torch.nn.utils.clip_grads_with_norm_ adds to the norm.
_NORM_EPS = 1e-6


class ShardedAdamW:
    """AdamW over the local shards of the parameters.

    A local shard shares the storage of its DTensor, so an in-place update of the shard updates the parameter. The
    optimiser and the norm see ordinary tensors only, and one fused kernel updates them all.

    Args:
        parameters: The model's parameters, after they have their storage.
        settings: Learning rate, its warm-up, weight decay and largest gradient norm.
        model_group: Ranks that together hold one copy of the gradients; None if each rank holds all of them.
        tp: Tensor-parallel ranks; some parameters are sharded over them, others replicated.
        loss_scale: Factor of the gradients; None without loss scaling.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        settings: TrainerSettings,
        model_group: dist.ProcessGroup | None = None,
        tp: DeviceMesh | None = None,
        loss_scale: LossScale | None = None,
    ) -> None:
        self._loss_scale = loss_scale
        every = list(parameters)
        self._parameters = [p for p in every if _local(p).numel()]
        # A plain parameter is its own local shard; so DDP's gradient views stay in place.
        self._locals = [nn.Parameter(_local(p)) if isinstance(p, DTensor) else p for p in self._parameters]
        self._is_sharded = any(isinstance(p, DTensor) for p in self._parameters)
        self._model_group = model_group
        self._tp = tp
        is_replicated = [tp is not None and not _is_sharded_over(p, tp) for p in self._parameters]
        self._sharded = [index for index, replicated in enumerate(is_replicated) if not replicated]
        self._replicated = [index for index, replicated in enumerate(is_replicated) if replicated]
        # FSDP gives gradients the placements of their parameters; with tp alone they may have others.
        self._tp_only = [
            (index, p) for index, p in enumerate(self._parameters) if isinstance(p, DTensor) and _is_on_tp_mesh(p, tp)
        ]
        # With more shards than rows a rank may hold no parameters; it still takes part in the norm.
        self._empty = nn.Parameter(torch.empty(0, device=every[0].device))
        self._zero = torch.zeros((), device=every[0].device)
        self._max_norm = settings.grad_clip
        self._peak_lr = settings.lr
        self._lr_warmup_steps = settings.lr_warmup_steps
        self._n_steps = 0
        self._adamw = torch.optim.AdamW(
            self._locals or [self._empty],
            lr=settings.lr,
            betas=(settings.beta1, settings.beta2),
            eps=settings.eps,
            weight_decay=settings.weight_decay,
            fused=True,
        )

    @torch.no_grad()
    def step(self) -> torch.Tensor:
        """Clip, update, drop the gradients; return the global norm before clipping, still on the device."""
        gradients = (
            self._hand_over_gradients() if self._is_sharded else [parameter.grad for parameter in self._parameters]
        )
        if self._loss_scale is not None:
            self._loss_scale.unscale([gradient for gradient in gradients if gradient is not None])
        norm = self._global_norm(gradients)
        self._warm_up()
        # The fused kernel divides each gradient by it on reading; that saves one pass over all gradients.
        self._adamw.grad_scale = self._clip_divisor(norm)  # type: ignore[attr-defined]  # not declared by torch
        if self._loss_scale is None:
            self._adamw.step()
        else:
            self._loss_scale.step(self._adamw, norm)
        self._adamw.grad_scale = None  # type: ignore[attr-defined]  # not declared by torch
        self._n_steps += 1
        self._drop_gradients()
        return norm

    def _clip_divisor(self, norm: torch.Tensor) -> torch.Tensor | None:
        """Divisor that brings the gradients' norm down to the largest allowed; None without a limit."""
        return ((norm + _NORM_EPS) / self._max_norm).clamp(min=1.0) if self._max_norm > 0 else None

    def _warm_up(self) -> None:
        if self._n_steps < self._lr_warmup_steps:
            lr = self._peak_lr * (self._n_steps + 1) / self._lr_warmup_steps
        else:
            lr = self._peak_lr
        for group in self._adamw.param_groups:
            group["lr"] = lr

    def _hand_over_gradients(self) -> list[torch.Tensor | None]:
        """Assign each local shard its gradient, and return the gradients."""
        found = [parameter.grad for parameter in self._parameters]
        partial = self._match_placements(found) if self._tp_only else []
        gradients = [None if gradient is None else _local(gradient) for gradient in found]
        for local, gradient in zip(self._locals, gradients, strict=True):
            local.grad = gradient
        if partial:
            self._sum_over_tp([summand for index in partial if (summand := gradients[index]) is not None])
        return gradients

    def _match_placements(self, gradients: list[torch.Tensor | None]) -> list[int]:
        """Give gradients the placements of their parameters; DTensor leaves the embedding's gradient whole.

        Returns:
            Indices of gradients that are partial sums of replicated parameters; these keep their placements.
        """
        partial = []
        for index, parameter in self._tp_only:
            gradient = gradients[index]
            if not isinstance(gradient, DTensor):
                continue
            if _is_partial_sum(parameter, gradient):
                partial.append(index)
            elif gradient.placements != parameter.placements:
                gradients[index] = gradient.redistribute(placements=parameter.placements)
        return partial

    def _sum_over_tp(self, gradients: list[torch.Tensor]) -> None:
        """Sum partial gradients (of norms, one summand for each sequence shard) over tp, in place, as FSDP would."""
        assert self._tp is not None
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat, group=self._tp.get_group())
        sizes = [gradient.numel() for gradient in gradients]
        for gradient, summed in zip(gradients, torch.split(flat, sizes), strict=True):
            gradient.copy_(summed.view_as(gradient))

    def _global_norm(self, gradients: list[torch.Tensor | None]) -> torch.Tensor:
        split = self._norm(gradients, self._sharded)
        if self._model_group is None:
            return split
        squared = split.square()
        if self._tp is not None:
            # All tp ranks hold the replicated parameters; each adds its share of their norm.
            squared = squared + self._norm(gradients, self._replicated).square() / self._tp.size()
        dist.all_reduce(squared, group=self._model_group)
        return squared.sqrt()

    def _norm(self, gradients: list[torch.Tensor | None], chosen: list[int]) -> torch.Tensor:
        found = [gradient for index in chosen if (gradient := gradients[index]) is not None]
        # Torch's norm of no tensors is on the CPU, and a copy to the device would wait for it.
        return get_total_norm(found, foreach=True) if found else self._zero

    def _drop_gradients(self) -> None:
        for parameter, local in zip(self._parameters, self._locals, strict=True):
            parameter.grad = local.grad = None


@torch.no_grad()
def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local().detach() if isinstance(tensor, DTensor) else tensor


def _is_partial_sum(parameter: DTensor, gradient: DTensor) -> bool:
    """True if the parameter is replicated and each rank holds a partial sum of its gradient."""
    pairs = zip(parameter.placements, gradient.placements, strict=True)
    return any(of_parameter.is_replicate() and of_gradient.is_partial() for of_parameter, of_gradient in pairs)


def _is_sharded_over(parameter: torch.Tensor, tp: DeviceMesh) -> bool:
    """True if the tp ranks hold different shards: the parameter is not replicated in tp's mesh dimension."""
    if not isinstance(parameter, DTensor):
        return False
    assert tp.mesh_dim_names is not None
    names = parameter.device_mesh.mesh_dim_names or ()
    placements = dict(zip(names, parameter.placements, strict=True))
    return tp.mesh_dim_names[0] in placements and not placements[tp.mesh_dim_names[0]].is_replicate()


def _is_on_tp_mesh(parameter: DTensor, tp: DeviceMesh | None) -> bool:
    """True if the parameter's mesh is the tp ranks and no others."""
    return tp is not None and parameter.device_mesh.mesh_dim_names == tp.mesh_dim_names
