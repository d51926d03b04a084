"""AdamW and gradient clipping on this rank's plain tensors, without DTensor's dispatch in every step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import get_total_norm

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch.distributed.device_mesh import DeviceMesh

    from sweep.core.cells.trainer_settings import TrainerSettings
    from trainer.model.precision import LossScale

# What torch.nn.utils.clip_grads_with_norm_ adds to the norm.
_NORM_EPS = 1e-6


class ShardedAdamW:
    """AdamW over the local parts of the parameters.

    A sharded parameter's local part shares its storage, so that updating it in place updates the parameter; the
    optimiser and the norm then see ordinary tensors, and one fused kernel takes them all.

    Args:
        parameters: The model's parameters, after they have their storage.
        settings: Learning rate, its warm-up, decay and the largest norm.
        model_group: Ranks over which one copy of the gradients is spread; None where each rank holds all.
        tp: Ranks among which some parameters are split and others alike.
        loss_scale: What gradients come multiplied by.
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
        # A plain parameter is its own local part, which keeps DDP's gradient views in place.
        self._locals = [nn.Parameter(_local(p)) if isinstance(p, DTensor) else p for p in self._parameters]
        self._is_sharded = any(isinstance(p, DTensor) for p in self._parameters)
        self._model_group = model_group
        self._tp = tp
        is_alike = [tp is not None and not _is_split_over(p, tp) for p in self._parameters]
        self._split = [index for index, alike in enumerate(is_alike) if not alike]
        self._alike = [index for index, alike in enumerate(is_alike) if alike]
        # FSDP lays gradients out as their parameters; of what tp alone splits they may come otherwise.
        self._of_tp_alone = [
            (index, p) for index, p in enumerate(self._parameters) if isinstance(p, DTensor) and _is_of(p, tp)
        ]
        # With more shards than rows a rank may hold nothing; it takes part in the norm all the same.
        self._nothing = nn.Parameter(torch.empty(0, device=every[0].device))
        self._zero = torch.zeros((), device=every[0].device)
        self._max_norm = settings.grad_clip
        self._peak_lr = settings.lr
        self._lr_warmup_steps = settings.lr_warmup_steps
        self._n_steps = 0
        self._adamw = torch.optim.AdamW(
            self._locals or [self._nothing],
            lr=settings.lr,
            betas=(settings.beta1, settings.beta2),
            eps=settings.eps,
            weight_decay=settings.weight_decay,
            fused=True,
        )

    @torch.no_grad()
    def step(self) -> torch.Tensor:
        """Clip, update, drop the gradients; returns the global norm before clipping, still on the device."""
        gradients = self._handed_over() if self._is_sharded else [parameter.grad for parameter in self._parameters]
        if self._loss_scale is not None:
            self._loss_scale.unscale([gradient for gradient in gradients if gradient is not None])
        norm = self._global_norm(gradients)
        self._warm_up()
        # The fused kernel divides by it as it reads each gradient, which saves a pass over all of them.
        self._adamw.grad_scale = self._excess(norm)  # type: ignore[attr-defined]  # not declared by torch
        if self._loss_scale is None:
            self._adamw.step()
        else:
            self._loss_scale.step(self._adamw, norm)
        self._adamw.grad_scale = None  # type: ignore[attr-defined]  # not declared by torch
        self._n_steps += 1
        self._drop_gradients()
        return norm

    def _excess(self, norm: torch.Tensor) -> torch.Tensor | None:
        """By what gradients are divided so that their norm is at most the largest; None where there is no limit."""
        return ((norm + _NORM_EPS) / self._max_norm).clamp(min=1.0) if self._max_norm > 0 else None

    def _warm_up(self) -> None:
        if self._n_steps < self._lr_warmup_steps:
            lr = self._peak_lr * (self._n_steps + 1) / self._lr_warmup_steps
        else:
            lr = self._peak_lr
        for group in self._adamw.param_groups:
            group["lr"] = lr

    def _handed_over(self) -> list[torch.Tensor | None]:
        """Give each local part its gradient, and return these."""
        found = [parameter.grad for parameter in self._parameters]
        partial = self._laid_out_alike(found) if self._of_tp_alone else []
        gradients = [None if gradient is None else _local(gradient) for gradient in found]
        for local, gradient in zip(self._locals, gradients, strict=True):
            local.grad = gradient
        if partial:
            self._sum_over_tp([summand for index in partial if (summand := gradients[index]) is not None])
        return gradients

    def _laid_out_alike(self, gradients: list[torch.Tensor | None]) -> list[int]:
        """Lay gradients out as their parameters; DTensor leaves the embedding's whole.

        Returns:
            Which are summands of what all tp ranks hold alike; they stay so.
        """
        partial = []
        for index, parameter in self._of_tp_alone:
            gradient = gradients[index]
            if not isinstance(gradient, DTensor):
                continue
            if _is_partial_sum(parameter, gradient):
                partial.append(index)
            elif gradient.placements != parameter.placements:
                gradients[index] = gradient.redistribute(placements=parameter.placements)
        return partial

    def _sum_over_tp(self, gradients: list[torch.Tensor]) -> None:
        """Sum in place what FSDP, were it there, would have: norms' gradients over each rank's part of the sequence."""
        assert self._tp is not None
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat, group=self._tp.get_group())
        sizes = [gradient.numel() for gradient in gradients]
        for gradient, summed in zip(gradients, torch.split(flat, sizes), strict=True):
            gradient.copy_(summed.view_as(gradient))

    def _global_norm(self, gradients: list[torch.Tensor | None]) -> torch.Tensor:
        split = self._norm(gradients, self._split)
        if self._model_group is None:
            return split
        squared = split.square()
        if self._tp is not None:
            # Each tp rank adds its share of what all of them hold alike.
            squared = squared + self._norm(gradients, self._alike).square() / self._tp.size()
        dist.all_reduce(squared, group=self._model_group)
        return squared.sqrt()

    def _norm(self, gradients: list[torch.Tensor | None], chosen: list[int]) -> torch.Tensor:
        found = [gradient for index in chosen if (gradient := gradients[index]) is not None]
        # Torch's norm of nothing is on the CPU: to bring it here would wait for the device.
        return get_total_norm(found, foreach=True) if found else self._zero

    def _drop_gradients(self) -> None:
        for parameter, local in zip(self._parameters, self._locals, strict=True):
            parameter.grad = local.grad = None


@torch.no_grad()
def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local().detach() if isinstance(tensor, DTensor) else tensor


def _is_partial_sum(parameter: DTensor, gradient: DTensor) -> bool:
    """Whether each rank has only a summand of the gradient of something that all hold alike."""
    pairs = zip(parameter.placements, gradient.placements, strict=True)
    return any(is_for.is_replicate() and is_now.is_partial() for is_for, is_now in pairs)


def _is_split_over(parameter: torch.Tensor, tp: DeviceMesh) -> bool:
    """Whether the tp ranks hold different parts of it: in the mesh dimension of tp's name it is not replicated."""
    if not isinstance(parameter, DTensor):
        return False
    assert tp.mesh_dim_names is not None
    names = parameter.device_mesh.mesh_dim_names or ()
    placements = dict(zip(names, parameter.placements, strict=True))
    return tp.mesh_dim_names[0] in placements and not placements[tp.mesh_dim_names[0]].is_replicate()


def _is_of(parameter: DTensor, tp: DeviceMesh | None) -> bool:
    """Whether it is laid out over the tp ranks and no others."""
    return tp is not None and parameter.device_mesh.mesh_dim_names == tp.mesh_dim_names
