"""The split of layers over stages, the stages of each rank, and the modules of a stage."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweep.core.cells.model_shape import ModelShape
from sweep.core.cells.parallelism import Parallelism, Schedule
from tests.trainer.cells import UNEVEN
from trainer.model.decoder import build_on_meta
from trainer.parallel.pipeline import keep_stage, split_layers, stages_of_rank

# Embedding and head of 64 parameters each, layers of 4 * 16 + 3 * 4 * 16 + 8 = 264 (the head with its norm: 68).
SMALL = ModelShape(name="small", n_layers=8, hidden=4, n_heads=2, n_kv_heads=2, ffn_hidden=16, vocab_size=16)


def one_each(n_stages: int) -> Parallelism:
    """A stage on each rank."""
    return Parallelism(pp=n_stages, schedule=Schedule.GPIPE)


def lengths(shape: ModelShape, n_stages: int) -> list[int]:
    return [len(part.layers) for part in split_layers(shape, one_each(n_stages))]


@pytest.mark.parametrize(
    ("n_layers", "vocab_size", "n_stages", "expected"),
    [
        (8, 16, 4, [2, 2, 2, 2]),
        # What is left over goes where no embedding and no head is.
        (9, 16, 4, [2, 2, 3, 2]),
        (10, 16, 4, [2, 3, 3, 2]),
        # An embedding of two layers' parameters, and a head of as many.
        (8, 132, 4, [1, 3, 3, 1]),
        (5, 16, 2, [3, 2]),
        # As many layers as stages: each gets one, however large the embedding.
        (4, 1000, 4, [1, 1, 1, 1]),
        (126, 3000, 16, None),
    ],
)
def test_layers_are_shared_out_with_embedding_and_head_counted(
    n_layers: int, vocab_size: int, n_stages: int, expected: list[int] | None
) -> None:
    shape = dataclasses.replace(SMALL, n_layers=n_layers, vocab_size=vocab_size)
    found = lengths(shape, n_stages)
    assert sum(found) == n_layers
    assert expected is None or sorted(found[1:-1]) == sorted(expected[1:-1])
    assert expected is None or (found[0], found[-1]) == (expected[0], expected[-1])


@given(
    n_layers=st.integers(1, 9),
    n_stages=st.integers(1, 9),
    vocab_size=st.integers(1, 400),
)
def test_no_other_split_has_a_smaller_largest_stage(n_layers: int, n_stages: int, vocab_size: int) -> None:
    if n_stages > n_layers:
        return
    shape = dataclasses.replace(SMALL, n_layers=n_layers, vocab_size=vocab_size)
    parts = split_layers(shape, one_each(n_stages))
    assert [layer for part in parts for layer in part.layers] == list(range(n_layers))
    assert sum(part.n_params for part in parts) == shape.n_params
    largest = max(part.n_params for part in parts)
    assert all(part.layers for part in parts)
    # With a limit just below it, filling each stage as far as it goes does not place all layers.
    assert not fits(shape, n_stages, largest - 1)


def fits(shape: ModelShape, n_stages: int, limit: int) -> bool:
    placed = 0
    for stage in range(n_stages):
        room = limit - (shape.n_embedding_params if stage == 0 else 0)
        room -= shape.n_embedding_params + shape.hidden if stage == n_stages - 1 else 0
        wanted = min(room // shape.n_layer_params, shape.n_layers - placed - (n_stages - stage - 1))
        if wanted < 1:
            return False
        placed += wanted
    return placed == shape.n_layers


@pytest.mark.parametrize(
    ("pp", "schedule", "virtual_stages"),
    [(2, Schedule.ZBV, 2), (3, Schedule.ZBV, 2), (3, Schedule.INTERLEAVED_1F1B, 2), (2, Schedule.INTERLEAVED_1F1B, 3)],
)
@pytest.mark.parametrize("vocab_size", [16, 100, 200])
@pytest.mark.parametrize("n_layers", range(6, 11))
def test_no_other_split_has_a_smaller_largest_rank(
    n_layers: int, vocab_size: int, pp: int, schedule: Schedule, virtual_stages: int
) -> None:
    # A step takes as long as the rank that has most to do, whatever its single stages are.
    shape = dataclasses.replace(SMALL, n_layers=n_layers, vocab_size=vocab_size)
    layout = Parallelism(pp=pp, schedule=schedule, virtual_stages=virtual_stages)
    ranks = [stages_of_rank(layout, rank) for rank in range(pp)]
    sizes = [part.n_params for part in split_layers(shape, layout)]
    # Without layers: embedding, norm and head alone.
    ends = [shape.n_embedding_params, *[0] * (len(sizes) - 2), shape.n_embedding_params + shape.hidden]
    others = (
        [end + n * shape.n_layer_params for end, n in zip(ends, lengths, strict=True)]
        for lengths in itertools.product(range(1, n_layers), repeat=len(sizes))
        if sum(lengths) == n_layers
    )
    assert sum(sizes) == shape.n_params
    assert largest_rank(sizes, ranks) == min(largest_rank(other, ranks) for other in others)
    # Within a rank, no stage has a layer that another could take and stay below it.
    for stages in ranks:
        smallest = min(sizes[stage] for stage in stages)
        movable = [sizes[stage] for stage in stages if sizes[stage] - ends[stage] > shape.n_layer_params]
        assert all(size <= smallest + shape.n_layer_params for size in movable)


def largest_rank(sizes: Sequence[int], ranks: list[list[int]]) -> int:
    return max(sum(sizes[stage] for stage in stages) for stages in ranks)


def test_a_stage_describes_itself() -> None:
    first, last = split_layers(dataclasses.replace(SMALL, n_layers=3), one_each(2))
    assert str(first) == "stage 0: embedding, layers 0-1 (0.000592 M parameters)"
    assert str(last) == "stage 1: layers 2-2, norm and head (0.000332 M parameters)"


@pytest.mark.parametrize(
    ("schedule", "virtual_stages", "expected"),
    [
        (Schedule.ONE_F_ONE_B, 1, [[0], [1], [2]]),
        (Schedule.INTERLEAVED_1F1B, 2, [[0, 3], [1, 4], [2, 5]]),
        (Schedule.INTERLEAVED_ZERO_BUBBLE, 3, [[0, 3, 6], [1, 4, 7], [2, 5, 8]]),
        (Schedule.ZBV, 2, [[0, 5], [1, 4], [2, 3]]),
    ],
)
def test_stages_go_round_the_ranks_or_there_and_back(
    schedule: Schedule, virtual_stages: int, expected: list[list[int]]
) -> None:
    layout = Parallelism(pp=3, schedule=schedule, virtual_stages=virtual_stages)
    assert [stages_of_rank(layout, rank) for rank in range(3)] == expected


def test_stages_hold_every_parameter_once_under_its_own_name() -> None:
    names: list[str] = []
    for part in split_layers(UNEVEN, one_each(3)):
        stage = build_on_meta(UNEVEN, 8)
        keep_stage(stage, part)
        mine = [name for name, _ in stage.named_parameters()]
        assert sum(parameter.numel() for parameter in stage.parameters()) == part.n_params
        names += mine
    assert sorted(names) == sorted(name for name, _ in build_on_meta(UNEVEN, 8).named_parameters())
