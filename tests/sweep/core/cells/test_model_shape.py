from __future__ import annotations

from dataclasses import replace

import pytest

from sweep.core.cells.model_shape import FlopConvention, ModelShape, flops_per_token

LLAMA2_7B = ModelShape(
    name="llama2_7b", n_layers=32, hidden=4096, n_heads=32, n_kv_heads=32, ffn_hidden=11008, vocab_size=32000
)
LLAMA2_70B = ModelShape(
    name="llama2_70b", n_layers=80, hidden=8192, n_heads=64, n_kv_heads=8, ffn_hidden=28672, vocab_size=32000
)
LLAMA3_8B = ModelShape(
    name="llama3_8b", n_layers=32, hidden=4096, n_heads=32, n_kv_heads=8, ffn_hidden=14336, vocab_size=128256
)
LLAMA3_405B = ModelShape(
    name="llama3_405b", n_layers=126, hidden=16384, n_heads=128, n_kv_heads=8, ffn_hidden=53248, vocab_size=128256
)


@pytest.mark.parametrize(
    ("shape", "published"),
    [
        (LLAMA2_7B, 6_738_415_616),
        (LLAMA2_70B, 68_976_648_192),
        (LLAMA3_8B, 8_030_261_248),
        (LLAMA3_405B, 405_853_388_800),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_a_shape_has_the_published_number_of_parameters(shape: ModelShape, published: int) -> None:
    assert shape.n_params == published


def test_grouped_heads_make_narrower_keys_and_values() -> None:
    assert (LLAMA2_7B.head_dim, LLAMA2_7B.kv_hidden) == (128, 4096)
    assert (LLAMA3_8B.head_dim, LLAMA3_8B.kv_hidden) == (128, 1024)


def test_each_convention_counts_what_it_says() -> None:
    n, embedding, attention = LLAMA2_7B.n_params, 32000 * 4096, 12 * 32 * 4096 * 4096
    assert flops_per_token(LLAMA2_7B, 4096, FlopConvention.PALM_FULL) == 6 * (n - embedding) + attention
    assert flops_per_token(LLAMA2_7B, 4096, FlopConvention.CAUSAL) == 6 * (n - embedding) + attention // 2
    assert flops_per_token(LLAMA2_7B, 4096, FlopConvention.WITH_EMBEDDING) == 6 * n + attention


@pytest.mark.parametrize("convention", FlopConvention)
def test_every_convention_has_a_count_that_grows_with_the_context(convention: FlopConvention) -> None:
    assert flops_per_token(LLAMA2_7B, 8192, convention) > flops_per_token(LLAMA2_7B, 4096, convention)


def test_conventions_differ_little_at_a_short_context_and_much_at_a_long_one() -> None:
    def ratio(seq_len: int) -> float:
        full, causal = FlopConvention.PALM_FULL, FlopConvention.CAUSAL
        return flops_per_token(LLAMA2_7B, seq_len, full) / flops_per_token(LLAMA2_7B, seq_len, causal)

    assert 1.05 < ratio(4096) < 1.15
    assert 1.75 < ratio(256 * 1024) < 1.85


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_layers": 0}, "n_layers=0 is not a positive integer"),
        ({"n_layers": 2.0}, "n_layers=2.0 is not a positive integer"),
        ({"vocab_size": True}, "vocab_size=True is not a positive integer"),
        ({"n_heads": 24, "n_kv_heads": 24}, "hidden=4096 does not divide by n_heads=24"),
        ({"hidden": 96}, "head_dim=3 is odd"),
        ({"n_kv_heads": 5}, "n_heads=32 does not divide by n_kv_heads=5"),
        ({"rope_theta": 0.0}, "rope_theta=0.0 is not a positive number"),
        ({"norm_eps": float("nan")}, "norm_eps=nan is not a positive number"),
    ],
)
def test_a_shape_that_no_trainer_could_build_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(LLAMA2_7B, **change)  # type: ignore[arg-type]  # the wrong types are the point
