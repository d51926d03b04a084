"""The update against torch's own clipping and AdamW."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sweep.core.cells.trainer_settings import TrainerSettings
from trainer.training.optimizer import ShardedAdamW

SETTINGS = TrainerSettings(steps=3, warmup_steps=1, lr=0.1, weight_decay=0.1, grad_clip=0.5)


def made() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(size, generator=generator)) for size in ((3, 4), (5,))]


# Norms above the largest, below it, and zero.
@pytest.mark.parametrize("factor", [10.0, 0.01, 0.0])
def test_a_step_is_that_of_clipping_and_adamw(factor: float) -> None:
    ours, plain = made(), made()
    settings = SETTINGS
    optimizer = ShardedAdamW(ours, settings)
    adamw = torch.optim.AdamW(
        plain,
        lr=settings.lr,
        betas=(settings.beta1, settings.beta2),
        eps=settings.eps,
        weight_decay=settings.weight_decay,
    )
    generator = torch.Generator().manual_seed(1)
    for step in range(3):
        for mine, other in zip(ours, plain, strict=True):
            mine.grad = torch.randn(mine.shape, generator=generator) * factor * (1 + step)
            other.grad = mine.grad.clone()
        expected = nn.utils.clip_grad_norm_(plain, settings.grad_clip)
        norm = optimizer.step()
        adamw.step()
        torch.testing.assert_close(norm, expected)
        for mine, other in zip(ours, plain, strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-6, atol=1e-7)
            assert mine.grad is None


def test_a_rank_without_parameters_does_not_compute_a_norm_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    # Torch answers it with a tensor of the CPU, which a GPU's rank would wait for.
    monkeypatch.delattr("trainer.training.optimizer.get_total_norm")
    optimizer = ShardedAdamW([nn.Parameter(torch.empty(0))], SETTINGS)
    assert optimizer.step().item() == 0.0
