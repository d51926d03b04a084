"""Numbers by position and the weights made of them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer.data.counter_rng import key_of, normal, random_bits, shift_right
from trainer.model.init import _fill, plain_name

MASK = (1 << 64) - 1


def splitmix64(state: int) -> int:
    word = state & MASK
    word = ((word ^ word >> 30) * 0xBF58476D1CE4E5B9) & MASK
    word = ((word ^ word >> 27) * 0x94D049BB133111EB) & MASK
    return word ^ word >> 31


@given(key=st.integers(-(1 << 63), (1 << 63) - 1), index=st.integers(0, (1 << 40)))
def test_bits_are_those_of_splitmix64_in_whole_numbers(key: int, index: int) -> None:
    expected = splitmix64(key + index * 0x9E3779B97F4A7C15)
    assert int(random_bits(key, torch.tensor([index]))[0]) & MASK == expected


@given(word=st.integers(-(1 << 63), (1 << 63) - 1), by=st.integers(1, 63))
def test_the_shift_brings_in_zeros(word: int, by: int) -> None:
    assert int(shift_right(torch.tensor(word), by)) == (word & MASK) >> by


def test_numbers_are_nearly_normal() -> None:
    drawn = normal(key_of(1, "w"), torch.arange(1 << 18), 0.02).double()
    assert float(drawn.mean()) == pytest.approx(0.0, abs=1e-4)
    assert float(drawn.std()) == pytest.approx(0.02, rel=0.01)
    assert float((drawn.abs() < 0.02).double().mean()) == pytest.approx(0.68, abs=0.02)
    assert float(drawn.abs().max()) < 3.47 * 0.02
    neighbours = torch.corrcoef(torch.stack((drawn[:-1], drawn[1:])))[0, 1]
    assert abs(float(neighbours)) < 0.01


def test_seed_and_name_make_the_key() -> None:
    keys = {key_of(1, "a"), key_of(2, "a"), key_of(1, "b"), key_of(1, "a", "b"), key_of(1, "ab")}
    assert len(keys) == 5


@given(
    first_row=st.integers(0, 20),
    n_rows=st.integers(0, 12),
    first_column=st.integers(0, 5),
    n_columns=st.integers(1, 4),
)
def test_any_rectangle_of_a_parameter_is_that_rectangle_of_the_whole(
    first_row: int, n_rows: int, first_column: int, n_columns: int
) -> None:
    size = torch.Size((32, 9))
    whole = torch.empty(size)
    _fill(whole, size, (0, 0), 7, 0.02)
    part = torch.empty(n_rows, n_columns)
    _fill(part, size, (first_row, first_column), 7, 0.02)
    rows, columns = (slice(first_row, first_row + n_rows), slice(first_column, first_column + n_columns))
    assert torch.equal(part, whole[rows, columns])


def test_rows_drawn_a_few_at_a_time_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    size = torch.Size((33, 7))
    whole, pieces = torch.empty(size), torch.empty(size)
    _fill(whole, size, (0, 0), 7, 0.02)
    monkeypatch.setattr("trainer.model.init._CHUNK", {"cpu": 16})
    _fill(pieces, size, (0, 0), 7, 0.02)
    assert torch.equal(whole, pieces)


@pytest.mark.parametrize(
    "wrapped",
    [
        "blocks.0.ffn.w_up.weight",
        "module.blocks.0.ffn.w_up.weight",
        "blocks.0._checkpoint_wrapped_module.ffn.w_up.weight",
        "module.blocks.0._checkpoint_wrapped_module.ffn.w_up.weight",
    ],
)
def test_wrappers_do_not_change_a_parameters_name(wrapped: str) -> None:
    assert plain_name(wrapped) == "blocks.0.ffn.w_up.weight"
