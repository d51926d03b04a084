"""Operations in the form that they have on a GPU, for a preflight, whose fake device is a CPU.

What an operation keeps for its backward pass depends on the device. Compared by torch 2.13's ``derivatives.yaml`` and
``native_functions.yaml``, operation by operation of a training step:

- ``rms_norm``: on a CPU made of parts that keep two float32 tensors of its input's size; on CUDA one kernel that keeps
  its input and a float32 number a row. Replaced here.
- attention in bf16 and fp16: both keep q, k, v, their result and its log-sum-exp; CUDA adds two numbers.
- matrix products, silu, products, sums, embedding, softmax, nll_loss, the fused AdamW: the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch

from trainer.torch_private.preflight import fused_rms_norm, fused_rms_norm_backward, fused_rms_norm_on_cpu

if TYPE_CHECKING:
    import contextlib


def norms_as_on_cuda() -> contextlib.AbstractContextManager[None]:
    """Within, CPU tensors (fake ones, whose values do not matter) take CUDA's way through ``rms_norm``."""
    return fused_rms_norm_on_cpu(_fused)


def _fused(
    x: torch.Tensor, normalized_shape: list[int], weight: torch.Tensor, eps: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    made = _FusedRMSNorm.apply(x, normalized_shape, weight, eps)  # type: ignore[no-untyped-call]  # torch does not annotate it
    return cast("tuple[torch.Tensor, torch.Tensor]", made)


class _FusedRMSNorm(torch.autograd.Function):
    """As FusedRmsNormBackward0, which torch's autograd makes on CUDA alone."""

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
