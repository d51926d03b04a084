"""Shapes of small models, and models built from them."""

from __future__ import annotations

import torch

from sweep.core.cells.model_shape import ModelShape
from trainer.model.decoder import Llama, build_on_meta
from trainer.model.init import fill_parameters


def shape(name: str, *sizes: int) -> ModelShape:
    n_layers, hidden, n_heads, n_kv_heads, ffn_hidden, vocab_size = sizes
    return ModelShape(
        name=name,
        n_layers=n_layers,
        hidden=hidden,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        ffn_hidden=ffn_hidden,
        vocab_size=vocab_size,
    )


# Large enough that tensors outweigh counters and norms.
EVEN = shape("even", 4, 64, 4, 2, 96, 128)
# Every width is whole blocks of 32 on either of two ranks.
WIDE = shape("wide", 2, 128, 4, 2, 192, 128)


def built(model_shape: ModelShape, seq_len: int = 16) -> Llama:
    model = build_on_meta(model_shape, seq_len)
    model.to_empty(device="cpu")
    model.rebuild_buffers(torch.device("cpu"))
    fill_parameters(model, seed=1, n_layers=model_shape.n_layers)
    return model
