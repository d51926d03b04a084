"""What measured cells say of how long another one takes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweep.core.attempts.attempt import Outcome
from sweep.core.attempts.history import fold
from sweep.core.attempts.ledger import Ended
from sweep.core.cells.cell import Cell, cell_id
from sweep.core.decisions.maintenance import Measured
from tests.events import key, reserved
from tests.fakes import tiny_cell

LENGTHS = {length: tiny_cell(seq_len=length) for length in (32, 64, 128, 256)}


def measured(minutes: dict[int, float]) -> Measured:
    """Cells by their sequence length, and what they took; sixteen GPUs."""
    cells: dict[str, Cell] = {cell_id(cell): cell for cell in LENGTHS.values()}
    events = []
    for length, taken in minutes.items():
        attempt = key(cell=cell_id(LENGTHS[length]))
        used = taken * 60 * 16
        events += [
            reserved(f"s{length}", attempt),
            Ended(time=9.0, key=attempt, outcome=Outcome.SUCCEEDED, reason="", gpu_seconds=used),
        ]
    return Measured(cells, fold(events))


def minutes_of(found: Measured, length: int) -> int | None:
    estimate = found.estimate(cell_id(LENGTHS[length]), LENGTHS[length])
    return None if estimate is None else estimate.minutes


@pytest.mark.parametrize(
    ("taken", "length", "expected"),
    [
        ({}, 32, None),
        ({32: 10.0}, 32, 15 + 2),
        ({32: 0.0}, 32, 2),
        ({32: 10.0}, 64, 60 + 2),
        ({64: 10.0}, 32, 30 + 2),
        ({32: 1.0, 256: 10.0}, 64, 6 + 2),
        ({32: 1.0, 256: 10.0}, 128, 30 + 2),
    ],
    ids=["nothing", "itself", "at once", "twice the work", "never scaled down", "the nearer below", "the nearer above"],
)
def test_a_cell_is_estimated_by_itself_or_by_the_nearest(
    taken: dict[int, float], length: int, expected: int | None
) -> None:
    assert minutes_of(measured(taken), length) == expected


@given(
    st.dictionaries(st.sampled_from(sorted(LENGTHS)), st.floats(0, 1000), min_size=1), st.sampled_from(sorted(LENGTHS))
)
def test_an_estimate_is_never_below_what_the_nearest_took(taken: dict[int, float], length: int) -> None:
    nearest = min(taken, key=lambda other: max(other, length) / min(other, length))
    ties = [
        other
        for other in taken
        if max(other, length) * min(nearest, length) == max(nearest, length) * min(other, length)
    ]
    found = minutes_of(measured(taken), length)
    assert found is not None
    assert found >= min(taken[other] for other in ties)


def test_another_model_or_device_says_nothing() -> None:
    found = measured({32: 1.0})
    for other in (
        replace(LENGTHS[32], device="h100"),
        replace(LENGTHS[32], model=replace(LENGTHS[32].model, hidden=64)),
    ):
        assert found.estimate(cell_id(other), other) is None
