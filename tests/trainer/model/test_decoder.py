"""The model by itself: parameter counts, causality, positions, number formats."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sweep.core.cells.model_shape import ModelShape
from tests.trainer.cells import UNEVEN
from tests.trainer.models import built, shape
from trainer.model.decoder import build_on_meta, rope_table, rotate
from trainer.model.loss import token_loss_sum

# Counts as published with the weights (model cards and config.json of the Hugging Face repositories).
PUBLISHED = {
    "llama2_7b": (shape("llama2_7b", 32, 4096, 32, 32, 11008, 32000), 6_738_415_616),
    "llama2_13b": (shape("llama2_13b", 40, 5120, 40, 40, 13824, 32000), 13_015_864_320),
    "llama2_70b": (shape("llama2_70b", 80, 8192, 64, 8, 28672, 32000), 68_976_648_192),
    "llama3_8b": (shape("llama3_8b", 32, 4096, 32, 8, 14336, 128256), 8_030_261_248),
    "llama3_70b": (shape("llama3_70b", 80, 8192, 64, 8, 28672, 128256), 70_553_706_496),
    "llama3_405b": (shape("llama3_405b", 126, 16384, 128, 8, 53248, 128256), 405_853_388_800),
}
DEBUG = shape("debug", 2, 64, 4, 2, 192, 512)


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", PUBLISHED)
def test_real_shapes_have_as_many_parameters_as_published(name: str) -> None:
    model_shape, published = PUBLISHED[name]
    assert count(build_on_meta(model_shape, 8)) == published == model_shape.n_params


@pytest.mark.parametrize("model_shape", [DEBUG, UNEVEN], ids=lambda made: made.name)
def test_small_shapes_have_as_many_parameters_as_the_shape_says(model_shape: ModelShape) -> None:
    assert count(built(model_shape)) == model_shape.n_params


def test_a_token_changes_no_logits_before_it() -> None:
    model = built(UNEVEN)
    tokens = torch.randint(0, 101, (2, 16), generator=torch.Generator().manual_seed(0))
    changed = tokens.clone()
    changed[:, 9] = (changed[:, 9] + 1) % 101
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :9], after[:, :9])
    assert not torch.equal(before[:, 9:], after[:, 9:])


def test_attention_depends_on_the_distance_of_positions_only() -> None:
    table = rope_table(DEBUG, 12, torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(1, 1, 1, DEBUG.head_dim, generator=generator) for _ in range(2))

    def score(query_at: int, key_at: int) -> torch.Tensor:
        turned = [rotate(x, table[:, at : at + 1]) for x, at in ((query, query_at), (key, key_at))]
        return (turned[0] * turned[1]).sum()

    torch.testing.assert_close(score(7, 3), score(9, 5))
    assert not torch.allclose(score(7, 3), score(7, 4))


def test_query_heads_share_key_value_heads_in_order() -> None:
    grouped = built(UNEVEN)
    plain = built(shape("plain", 3, 40, 4, 4, 54, 106))
    state = grouped.state_dict()
    for name in list(state):
        if name.endswith(("wk.weight", "wv.weight")):
            state[name] = state[name].unflatten(0, (2, 10)).repeat_interleave(2, dim=0).flatten(0, 1)
    plain.load_state_dict(state)
    tokens = torch.arange(16)[None]
    torch.testing.assert_close(grouped(tokens), plain(tokens))


def test_layers_compute_in_the_format_of_their_input() -> None:
    model = built(DEBUG)
    model.embedding.register_forward_hook(lambda module, args, output: output.bfloat16())
    logits = model(torch.arange(16)[None])
    assert logits.dtype is torch.bfloat16
    assert all(parameter.dtype is torch.float32 for parameter in model.parameters())
    loss = token_loss_sum(logits, torch.arange(16)[None])
    assert loss.dtype is torch.float32
    loss.backward()  # type: ignore[no-untyped-call]  # torch does not annotate it
    assert all(p.grad is not None and p.grad.dtype is torch.float32 for p in model.parameters())


def test_the_loss_of_an_untrained_model_is_that_of_guessing() -> None:
    model = built(DEBUG)
    tokens = torch.randint(0, 512, (4, 17), generator=torch.Generator().manual_seed(0))
    loss = token_loss_sum(model(tokens[:, :-1]), tokens[:, 1:]) / (4 * 16)
    assert loss.item() == pytest.approx(6.238, abs=0.1)


def test_the_rotary_table_is_not_saved() -> None:
    assert "rope" not in built(DEBUG).state_dict()
