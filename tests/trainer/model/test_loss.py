"""The loss in pieces against the plain form: value, gradient, and what it keeps."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from trainer.model.loss import piece_on, token_loss_sum

B, S, V = 3, 7, 50
GENERATOR = torch.Generator().manual_seed(0)
LOGITS = torch.randn(B, S, V, generator=GENERATOR) * 30
TARGETS = torch.randint(V, (B, S), generator=GENERATOR)


def gradient_of(loss: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    (gradient,) = torch.autograd.grad(loss / 5, logits)
    return gradient


# One token at a time; four, which do not divide 21; all.
@pytest.mark.parametrize("piece", [1, 4 * V + 1, 1 << 25])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_loss_and_gradient_are_those_of_the_plain_form(dtype: torch.dtype, piece: int) -> None:
    logits = LOGITS.to(dtype).requires_grad_()
    plain = F.cross_entropy(logits.flatten(0, 1).float(), TARGETS.flatten(), reduction="sum")
    loss = token_loss_sum(logits, TARGETS, piece=piece)
    assert loss.dtype is torch.float32
    torch.testing.assert_close(loss, plain, rtol=1e-6, atol=0)
    expected, found = gradient_of(plain, logits), gradient_of(loss, logits)
    assert found.dtype is dtype
    # In bf16 both round the same float32 value, but for its last bits.
    torch.testing.assert_close(found, expected, rtol=1e-6 if dtype is torch.float32 else 1e-2, atol=1e-8)


def test_nothing_of_the_size_of_float32_logits_is_kept() -> None:
    logits = LOGITS.bfloat16().requires_grad_()
    kept: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        token_loss_sum(logits, TARGETS)
    assert {x.data_ptr() for x in kept if x.numel() >= LOGITS.numel()} == {logits.data_ptr()}


def test_pieces_are_smaller_on_a_cpu() -> None:
    assert piece_on("cpu") < piece_on("h100-80gb-sxm")
