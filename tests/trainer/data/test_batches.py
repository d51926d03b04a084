"""The synthetic tokens: one global batch whatever the layout, and something in it to learn."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sweep.core.cells.parallelism import Parallelism
from trainer.data import batches as data
from trainer.data.batches import Share, SyntheticTokens, stream
from trainer.parallel.mesh import data_rank

TOKENS = SyntheticTokens(seed=3, vocab_size=101, seq_len=24)

degrees = st.integers(1, 4)


def whole_batch(step: int, global_batch: int) -> torch.Tensor:
    return TOKENS.sequences(range(step, step + 1), Share(first=0, count=global_batch))[0]


@settings(max_examples=50, deadline=None)
@given(
    dp_replicate=degrees,
    dp_shard=degrees,
    tp=degrees,
    pp=degrees,
    cp=degrees,
    per_rank=st.integers(1, 3),
    step=st.integers(0, 1 << 30),
)
def test_the_shares_of_any_layout_make_up_the_same_global_batch(
    dp_replicate: int, dp_shard: int, tp: int, pp: int, cp: int, per_rank: int, step: int
) -> None:
    layout = Parallelism(dp_replicate=dp_replicate, dp_shard=dp_shard, tp=tp, pp=pp, cp=cp)
    global_batch = per_rank * layout.data_ranks
    shares: dict[int, torch.Tensor] = {}
    copies: dict[int, int] = {}
    for rank in range(layout.world_size):
        index = data_rank(layout, rank)
        share = Share.of(data_rank=index, data_ranks=layout.data_ranks, global_batch=global_batch)
        shares[index] = TOKENS.sequences(range(step, step + 1), share)[0]
        copies[index] = copies.get(index, 0) + 1
    assert torch.equal(torch.cat([shares[index] for index in sorted(shares)]), whole_batch(step, global_batch))
    assert set(copies.values()) == {tp * pp * cp}


@given(first=st.integers(0, 50), count=st.integers(1, 5))
def test_a_sequence_does_not_depend_on_what_is_drawn_with_it(first: int, count: int) -> None:
    several = TOKENS.sequences(range(first, first + count), Share(first=2, count=3))
    one = TOKENS.sequences(range(first + count - 1, first + count), Share(first=4, count=1))
    assert torch.equal(several[-1, -1], one[0, 0])


def test_sequences_differ_between_steps_indices_and_seeds() -> None:
    batch = whole_batch(0, 4)
    other_seed = SyntheticTokens(seed=4, vocab_size=101, seq_len=24).sequences(range(1), Share(first=0, count=4))[0]
    assert len({tuple(row.tolist()) for row in torch.cat((batch, whole_batch(1, 4), other_seed))}) == 12


@given(vocab_size=st.integers(1, 2000))
def test_tokens_are_in_the_vocabulary(vocab_size: int) -> None:
    source = SyntheticTokens(seed=1, vocab_size=vocab_size, seq_len=40)
    tokens = source.sequences(range(2), Share(first=0, count=3))
    assert tokens.shape == (2, 3, 41)
    assert tokens.dtype is torch.int32
    assert int(tokens.min()) >= 0
    assert int(tokens.max()) < vocab_size


def test_seven_of_eight_tokens_follow_from_the_one_before() -> None:
    source = SyntheticTokens(seed=1, vocab_size=32000, seq_len=2000)
    tokens = source.sequences(range(1), Share(first=0, count=8))[0]
    follows = (tokens[:, 1:] - tokens[:, :-1]) % 512 == 7
    assert float(follows.double().mean()) == pytest.approx(7 / 8, abs=0.02)


def test_small_tokens_begin_a_run_more_often_than_large_ones() -> None:
    source = SyntheticTokens(seed=1, vocab_size=32000, seq_len=1)
    starts = source.sequences(range(1), Share(first=0, count=4096))[0, :, 0]
    assert (starts < 16).sum() > 3 * (starts >= 256).sum() > 0


def test_blocks_of_a_long_run_join_without_a_seam(monkeypatch: pytest.MonkeyPatch) -> None:
    share = Share(first=1, count=2)
    at_once = list(stream(TOKENS, share, 7, pin=False))
    monkeypatch.setattr(data, "_BLOCK_TOKENS", 3 * 2 * 25)
    monkeypatch.setattr(data, "_PIECE_TOKENS", 30)
    in_blocks = list(stream(TOKENS, share, 7, pin=False))
    assert len(at_once) == len(in_blocks) == 7
    assert all(torch.equal(a, b) for a, b in zip(at_once, in_blocks, strict=True))
    assert torch.equal(at_once[5], TOKENS.sequences(range(5, 6), share)[0])
