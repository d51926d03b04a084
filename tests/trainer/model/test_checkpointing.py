"""Results that activation checkpointing keeps, and results that it recomputes."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from sweep.core.cells.cell import Checkpointing, Precision
from tests.trainer.cells import UNEVEN, cell
from trainer.model.blocks import checkpoint_blocks
from trainer.model.decoder import Llama, build_on_meta
from trainer.model.init import fill_parameters
from trainer.model.loss import token_loss_sum
from trainer.model.precision import convert


class Operations(TorchDispatchMode):
    """Counts attention and matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[str(op)] += 1
        return op(*args, **(kwargs or {}))


def trained(mode: Checkpointing) -> tuple[Llama, Counter[str]]:
    model = build_on_meta(UNEVEN, 16)
    return model, operations_of(model, mode)


def operations_of(model: Llama, mode: Checkpointing) -> Counter[str]:
    checkpoint_blocks(model, mode)
    model.to_empty(device="cpu")
    model.rebuild_buffers(torch.device("cpu"))
    fill_parameters(model, seed=1, n_layers=LAYERS)
    tokens = torch.arange(17).repeat(2, 1)
    with Operations() as operations:
        token_loss_sum(model(tokens[:, :-1]), tokens[:, 1:]).backward()
    return operations.counts


ATTENTION = "aten._scaled_dot_product_flash_attention_for_cpu.default"
LAYERS = UNEVEN.n_layers
# Of a block's seven products; each has two more in the backward pass, and the head its three.
PLAIN_PRODUCTS = 3 * 7 * LAYERS + 3


@pytest.mark.parametrize(
    ("mode", "attentions", "products"),
    [
        (Checkpointing.NONE, LAYERS, PLAIN_PRODUCTS),
        # Every second product is kept; the block's last result is not needed for its gradients, so seven make six.
        (Checkpointing.SELECTIVE, LAYERS, PLAIN_PRODUCTS + 3 * LAYERS),
        (Checkpointing.FULL, 2 * LAYERS, PLAIN_PRODUCTS + 6 * LAYERS),
    ],
)
def test_selective_keeps_attention_and_every_second_product(
    mode: Checkpointing, attentions: int, products: int
) -> None:
    _, counts = trained(mode)
    assert counts[ATTENTION] == attentions
    assert counts["aten.mm.default"] == products


def test_selective_keeps_the_scales_of_float8() -> None:
    pytest.importorskip("torchao.float8")
    wide = dataclasses.replace(UNEVEN, hidden=64, ffn_hidden=64)
    counted = []
    for mode in (Checkpointing.NONE, Checkpointing.SELECTIVE):
        model = build_on_meta(wide, 16)
        convert(model, cell(precision=Precision.FLOAT8), is_sharded=False, is_emulated=True)
        counted.append(operations_of(model, mode)["aten.max.default"])
    # Both factors of the three products, forward and backward, of each of seven projections.
    assert counted == [2 * 3 * 7 * LAYERS] * 2


@pytest.mark.parametrize("mode", [Checkpointing.SELECTIVE, Checkpointing.FULL])
def test_gradients_are_the_same_bit_for_bit(mode: Checkpointing) -> None:
    (plain, _), (checkpointed, _) = trained(Checkpointing.NONE), trained(mode)
    pairs = list(zip(plain.parameters(), checkpointed.parameters(), strict=True))
    assert len(pairs) == 3 + 9 * LAYERS
    for one, other in pairs:
        assert one.grad is not None
        assert other.grad is not None
        assert torch.equal(one.grad, other.grad)
