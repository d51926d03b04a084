"""What one cell's running out of device memory says of another."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweep.core.attempts.attempt import Outcome
from sweep.core.attempts.history import fold
from sweep.core.cells.cell import Cell, Precision, cell_id
from sweep.core.cells.parallelism import Parallelism, Schedule
from sweep.core.decisions.canary import KnownToRunOut, needs_more_memory
from tests.events import ended, key, reserved
from tests.fakes import tiny_cell

BASE = tiny_cell(nodes=2, micro_batch=2, global_batch=4)


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        (BASE, False),
        (replace(BASE, global_batch=8), False),
        (replace(BASE, micro_batch=4, global_batch=8), True),
        (replace(BASE, seq_len=64), True),
        (replace(BASE, seq_len=64, global_batch=8), True),
        (replace(BASE, micro_batch=1, global_batch=2), False),
        (replace(BASE, seq_len=64, micro_batch=1, global_batch=2), False),
        (replace(BASE, seq_len=64, precision=Precision.BF16), False),
        (replace(BASE, seq_len=64, reshard_after_forward=True), False),
        (replace(BASE, seq_len=64, parallelism=Parallelism(dp_replicate=2)), False),
        (replace(BASE, seq_len=64, device="h100-80gb-sxm"), False),
        (replace(BASE, seq_len=64, nodes=4, parallelism=Parallelism(dp_shard=4)), False),
    ],
)
def test_only_the_same_layout_with_a_larger_batch_or_sequence_needs_more_memory(cell: Cell, expected: bool) -> None:
    assert needs_more_memory(cell, BASE) is expected


def test_a_cell_that_accumulates_no_gradients_may_need_less_than_one_that_does() -> None:
    accumulating = replace(BASE, global_batch=16)
    assert not needs_more_memory(replace(BASE, seq_len=64), accumulating)
    assert not needs_more_memory(replace(BASE, micro_batch=4, global_batch=8), accumulating)
    assert needs_more_memory(replace(BASE, seq_len=64, global_batch=8), accumulating), "two micro-batches do, as four"


def test_with_a_pipeline_fewer_micro_batches_in_flight_may_need_less() -> None:
    layout = Parallelism(pp=2, schedule=Schedule.GPIPE)
    many = tiny_cell(nodes=2, parallelism=layout, micro_batch=1, global_batch=8)
    few = replace(many, global_batch=4, seq_len=64)
    assert not needs_more_memory(few, many)
    assert needs_more_memory(replace(many, seq_len=64), many)


SIZES = st.builds(
    lambda micro, seq, accum: replace(BASE, micro_batch=micro, seq_len=32 * seq, global_batch=2 * micro * accum),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 3),
)


@given(SIZES, SIZES, SIZES)
def test_needing_more_is_a_strict_partial_order(one: Cell, other: Cell, third: Cell) -> None:
    assert not needs_more_memory(one, one)
    assert not (needs_more_memory(one, other) and needs_more_memory(other, one))
    if needs_more_memory(one, other) and needs_more_memory(other, third):
        assert needs_more_memory(one, third)


def _known(*outcomes: Outcome) -> KnownToRunOut:
    name = cell_id(BASE)
    keys = [key(number, cell=name) for number in range(1, len(outcomes) + 1)]
    events = [event for k, outcome in zip(keys, outcomes, strict=True) for event in (
        reserved(f"s{k.attempt}", k), ended(k, outcome),
    )]  # fmt: skip
    return KnownToRunOut({name: BASE}, fold(events))


def test_a_cell_that_was_measured_all_the_same_proves_nothing() -> None:
    longer = replace(BASE, seq_len=64)
    assert _known(Outcome.OOM_DEVICE).needing_less_than(longer) == cell_id(BASE)
    assert _known(Outcome.OOM_DEVICE).needing_less_than(BASE) is None
    assert _known(Outcome.OOM_DEVICE, Outcome.SUCCEEDED).needing_less_than(longer) is None
    assert _known(Outcome.OOM_HOST).needing_less_than(longer) is None
    assert KnownToRunOut({}, fold([reserved("s1", key()), ended(key(), Outcome.OOM_DEVICE)])).needing_less_than(
        longer
    ) is None  # fmt: skip
