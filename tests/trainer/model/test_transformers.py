"""The model against an independent implementation: the same random weights, the same logits and gradients.

In float32 both round in other orders. The difference is taken relative to the largest value of the tensor that is
compared: the logits, and the gradient of each parameter by itself (seen: 2e-6; allowed 1e-5).
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from benchmarks.loops.ours import renamed
from benchmarks.loops.plain import LAYERS, NAMES
from sweep.core.cells.model_shape import ModelShape
from tests.trainer.models import built, shape
from trainer.model.decoder import Llama
from trainer.model.loss import token_loss_sum

pytestmark = pytest.mark.slow

TOLERANCE = 1e-5
# Several layers, widths that are no powers of two, a base of the rotary positions and an epsilon that are no defaults.
MULTI_HEAD = shape("multi_head", 3, 60, 6, 6, 100, 131)
GROUPED = ModelShape(
    name="grouped",
    n_layers=4,
    hidden=64,
    n_heads=8,
    n_kv_heads=2,
    ffn_hidden=176,
    vocab_size=128,
    rope_theta=500000.0,
    norm_eps=1e-6,
)


def name_there(name: str) -> str:
    """Name in transformers of one of our parameters."""
    return renamed(name.removesuffix(".weight"), NAMES, LAYERS)


def reference(model_shape: ModelShape, ours: Llama) -> Any:
    """LlamaForCausalLM of that shape with the weights of ours, its attention written out."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=model_shape.vocab_size,
        hidden_size=model_shape.hidden,
        intermediate_size=model_shape.ffn_hidden,
        num_hidden_layers=model_shape.n_layers,
        num_attention_heads=model_shape.n_heads,
        num_key_value_heads=model_shape.n_kv_heads,
        rms_norm_eps=model_shape.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": model_shape.rope_theta},
        rope_theta=model_shape.rope_theta,
        tie_word_embeddings=False,
        attn_implementation="eager",
    )
    theirs = transformers.LlamaForCausalLM(config).float()
    theirs.load_state_dict({name_there(name): value for name, value in ours.state_dict().items()})
    return theirs


def randomized(model_shape: ModelShape) -> Llama:
    """A model whose norms scale too, and whose weights are large enough for attention to choose."""
    model = built(model_shape, seq_len=48)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.copy_(1.0 + 0.2 * torch.randn(parameter.shape, generator=generator))
            else:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / parameter.shape[1] ** 0.5)
    return model


def difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    return ((found - expected).abs().max() / expected.abs().max()).item()


@pytest.mark.parametrize("model_shape", [MULTI_HEAD, GROUPED], ids=lambda made: made.name)
def test_logits_and_every_gradient_are_those_of_transformers(model_shape: ModelShape) -> None:
    ours = randomized(model_shape)
    theirs = reference(model_shape, ours)
    tokens = torch.randint(0, model_shape.vocab_size, (3, 49), generator=torch.Generator().manual_seed(3))
    inputs, targets = tokens[:, :-1], tokens[:, 1:]

    logits, expected = ours(inputs), theirs(inputs).logits
    assert difference(logits, expected) < TOLERANCE
    (token_loss_sum(logits, targets) / targets.numel()).backward()  # type: ignore[no-untyped-call]  # torch does not annotate it
    torch.nn.functional.cross_entropy(expected.flatten(0, 1), targets.flatten()).backward()  # type: ignore[no-untyped-call]  # the same

    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    found = {name_there(name): parameter.grad for name, parameter in ours.named_parameters()}
    assert found.keys() == gradients.keys()
    apart = {name: difference(found[name], gradients[name]) for name in gradients}
    assert max(apart.values()) < TOLERANCE, apart
    assert min(gradient.abs().max().item() for gradient in gradients.values()) > 0
