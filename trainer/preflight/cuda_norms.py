"""Replaces ``rms_norm`` on the preflight's fake CPU by its form on a GPU.

The tensors that an operation saves for its backward pass depend on the device. By torch 2.13's ``derivatives.yaml`` and
``native_functions.yaml``, for each operation of a training step:

- ``rms_norm``: on a CPU several operations that save two float32 tensors of the input's size; on CUDA one kernel that
  saves its input and one float32 number for each row. Replaced here.
- attention in bf16 and fp16: both save q, k, v, the result and its log-sum-exp; CUDA adds two numbers.
- matrix products, silu, products, sums, embedding, softmax, nll_loss, the fused AdamW: the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch

from trainer.torch_private.preflight import fused_rms_norm, fused_rms_norm_backward, fused_rms_norm_on_cpu

if TYPE_CHECKING:
    import contextlib


def norms_as_on_cuda() -> contextlib.AbstractContextManager[None]:
    """Within, ``rms_norm`` on CPU tensors saves the tensors that it saves on CUDA."""
    return fused_rms_norm_on_cpu(_fused)


def _fused(
    x: torch.Tensor, normalized_shape: list[int], weight: torch.Tensor, eps: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    made = _FusedRMSNorm.apply(x, normalized_shape, weight, eps)  # type: ignore[no-untyped-call]  # torch does not annotate it
    return cast("tuple[torch.Tensor, torch.Tensor]", made)


class _FusedRMSNorm(torch.autograd.Function):
    """The same as FusedRmsNormBackward0, which torch's autograd has on CUDA only."""

    @staticmethod
    def forward(
        context: Any, x: torch.Tensor, normalized_shape: list[int], weight: torch.Tensor, eps: float | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        out, rstd = fused_rms_norm(x, normalized_shape, weight, eps)
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
        for_x, for_weight = fused_rms_norm_backward(gradient, x, context.normalized_shape, rstd, weight, wanted)
        return for_x, None, for_weight, None
