"""Batches and degrees that follow from other axes, and those that do not come out whole."""

from __future__ import annotations

import pytest

from sweep.core.cells.batch import BatchKind
from sweep.core.cells.cell import Cell
from sweep.core.cells.parallelism import Parallelism
from sweep.core.grids.grid import expand
from tests.sweep.core.grid_factory import grid, only, rejected


@pytest.mark.parametrize(
    ("layout", "micro_batch"),
    [({}, 2), ({"tp": 4}, 8), ({"tp": 4, "pp": 2, "schedule": "1f1b"}, 1), ({"cp": 2}, 4)],
    ids=["fsdp", "tp", "tp and pp", "cp"],
)
def test_the_global_batch_follows_from_the_gpus_whatever_the_layout(
    layout: dict[str, object], micro_batch: int
) -> None:
    # The paper's effective local batch: 2 sequences a GPU on 256 GPUs are 512.
    _, cell = only(expand(grid(nodes=32, sequences_per_gpu=2, **layout)))
    assert isinstance(cell, Cell)
    assert (cell.global_batch, cell.micro_batch) == (512, micro_batch)
    assert cell.sequences_per_gpu == 2


def test_a_fraction_of_a_sequence_per_gpu_is_exact() -> None:
    found = expand(grid(nodes=(1, 3), sequences_per_gpu=("1/2", 0.25, "0.125"), tp=8))
    assert {point.axes["sequences_per_gpu"] for point in found.points} == {"1/2", "1/4", "1/8"}
    batches = [found.cells[point.cell_id].global_batch for point in found.points]
    assert batches == [4, 2, 1, 12, 6, 3]


def test_tokens_per_gpu_hold_still_over_context_lengths() -> None:
    found = expand(grid(BatchKind.TOKENS_PER_GPU, seq_len=(1024, 2048, 8192)))
    cells = [found.cells[point.cell_id] for point in found.points]
    assert [cell.global_batch for cell in cells] == [64, 32, 8]
    assert {cell.tokens_per_step for cell in cells} == {8192 * 8}


def test_a_global_batch_holds_still_over_gpus() -> None:
    found = expand(grid(BatchKind.GLOBAL_BATCH, nodes=(1, 2, 4, 8)))
    cells = [found.cells[point.cell_id] for point in found.points]
    assert {cell.global_batch for cell in cells} == {64}
    assert [cell.micro_batch for cell in cells] == [8, 4, 2, 1]


def test_a_batch_that_is_not_whole_is_rejected_and_never_rounded() -> None:
    assert rejected(grid(sequences_per_gpu="1/3")) == (
        "whole_batch: sequences_per_gpu=1/3 on 8 GPUs at seq_len=4096 is a global batch of 8/3 sequences. "
        "It must be a whole number: change the batch, the sequence length or the nodes."
    )
    assert "whole_batch: tokens_per_gpu=1000" in rejected(grid(BatchKind.TOKENS_PER_GPU, tokens_per_gpu=1000))


def test_a_batch_that_does_not_divide_over_the_ranks_is_rejected() -> None:
    assert "batch_by_data_ranks: global_batch=12 does not divide over 8" in rejected(
        grid(BatchKind.GLOBAL_BATCH, global_batch=12)
    )


def test_a_micro_batch_that_does_not_divide_is_rejected() -> None:
    assert "batch_by_micro_batch: 2 sequences a data-parallel rank" in rejected(grid(micro_batch=4))


def test_fsdp_takes_what_the_other_degrees_leave() -> None:
    found = expand(grid(nodes=(1, 2), tp=(1, 2)))
    shards = [found.cells[point.cell_id].parallelism.dp_shard for point in found.points]
    assert shards == [8, 4, 16, 8]
    assert {point.axes["dp_shard"] for point in found.points} == {"auto"}


def test_another_degree_may_be_the_one_that_is_auto() -> None:
    axes, cell = only(expand(grid(nodes=2, dp_replicate="auto")))
    assert isinstance(cell, Cell)
    assert cell.parallelism == Parallelism(dp_replicate=16)
    assert (axes["dp_replicate"], axes["dp_shard"]) == ("auto", 1)


def test_two_degrees_cannot_be_auto() -> None:
    assert "auto_degree: dp_shard and tp are both auto" in rejected(grid(dp_shard="auto", tp="auto"))


def test_an_auto_degree_that_does_not_come_out_whole_is_rejected() -> None:
    assert rejected(grid(tp=3)) == (
        "auto_degree: dp_shard=auto: 8 GPUs cannot be divided by tp=3. Lower a degree or change the number of nodes."
    )


def test_degrees_that_do_not_make_the_world_are_rejected() -> None:
    assert "world_size: dp_shard=4 needs 4 GPUs; the cell has 8 (1 node x 8)" in rejected(grid(dp_shard=4))
