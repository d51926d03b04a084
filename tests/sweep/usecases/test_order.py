"""The order of submission: in rounds, shuffled with a seed, the smallest cell first; or the grid's."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from sweep.core.cells.cell import Cell
from sweep.core.settings.policy import Policy
from tests.fakes import tiny_cell
from tests.sweep.usecases.world import CALM, World

SHAPES = [tiny_cell(nodes=nodes, seq_len=32 * i) for nodes in (1, 2, 4) for i in range(1, 9)]
Place = tuple[str, int]


@pytest.fixture
def one_by_one(world: World) -> World:
    """A run whose jobs go one after the other."""
    world.repeats, world.seed, world.policy = 2, 7, replace(CALM, max_concurrent_jobs=1)
    world.set_cells(*SHAPES)
    return world


def submitted(world: World) -> list[Place]:
    """Cell and repeat in the order in which the scheduler got them."""
    return [(key.cell_id, key.repeat) for submission in world.submitted() for key in submission.tasks]


def rounds(places: list[Place]) -> list[list[str]]:
    return [[cell for cell, repeat in places if repeat == number] for number in (1, 2)]


def runs_of_one_size(cells: list[str], sizes: dict[str, Cell]) -> int:
    """Stretches of the order with cells of one number of nodes."""
    nodes = [sizes[cell].nodes for cell in cells]
    return 1 + sum(before != after for before, after in itertools.pairwise(nodes))


def test_all_cells_go_once_and_then_again_each_round_shuffled(one_by_one: World) -> None:
    one_by_one.run_to_the_end()
    places = submitted(one_by_one)
    assert [repeat for _, repeat in places] == [1] * 24 + [2] * 24
    first, second = rounds(places)
    assert set(first) == set(second) == set(one_by_one.cells)
    assert len({tuple(first), tuple(second), tuple(one_by_one.cells)}) == 3
    for order in (first, second):
        assert runs_of_one_size(order, one_by_one.cells) > 9, "sizes alternate, so that no hour belongs to one of them"


def test_where_there_is_room_for_all_the_scheduler_gets_the_same_order(one_by_one: World) -> None:
    one_by_one.run_to_the_end()
    other = World(cells=one_by_one.cells, repeats=2, seed=7)
    other.begun()
    assert submitted(other) == submitted(one_by_one)


def test_a_run_that_is_taken_up_again_with_more_cells_goes_on_in_its_order(one_by_one: World) -> None:
    one_by_one.run_to_the_end()
    whole = submitted(one_by_one)
    part = World(repeats=2, seed=7, policy=one_by_one.policy)
    part.set_cells(*SHAPES[::2])
    part.orchestrator().step()
    part.run_to_the_end()
    assert submitted(part) == [place for place in whole if place[0] in part.cells]


def test_another_seed_is_another_order_and_none_is_the_grids(one_by_one: World) -> None:
    orders = []
    for seed in (7, 8, None):
        world = World(cells=one_by_one.cells, repeats=2, seed=seed, policy=one_by_one.policy)
        world.run_to_the_end()
        orders.append(submitted(world))
    assert orders[0] != orders[1]
    assert orders[2] == [(cell, repeat) for cell in one_by_one.cells for repeat in (1, 2)]


@pytest.mark.parametrize("canary_helps", [True, False])
def test_the_smallest_cell_of_each_model_is_first_on_one_machine_too(one_by_one: World, canary_helps: bool) -> None:
    for seed in range(5):
        world = World(
            cells=dict(reversed(one_by_one.cells.items())),
            seed=seed,
            policy=Policy(max_concurrent_jobs=1),
            canary_helps=canary_helps,
        )
        world.run_to_the_end()
        first = world.cells[submitted(world)[0][0]]
        assert (first.nodes, first.seq_len) == (1, 32)


def test_a_budget_for_one_round_measures_every_cell_once(one_by_one: World) -> None:
    one_by_one.policy = replace(CALM, budget_gpu_hours=sum(cell.gpus for cell in one_by_one.cells.values()) / 2)
    one_by_one.begun()
    assert sorted(submitted(one_by_one)) == sorted((cell, 1) for cell in one_by_one.cells)


def test_a_long_order_becomes_some_fifty_arrays_that_still_mix_the_sizes(world: World) -> None:
    world.seed, world.repeats = 7, 2
    world.set_cells(*(tiny_cell(nodes=nodes, seq_len=32 * i) for nodes in (1, 2, 4, 8) for i in range(1, 101)))
    world.begun()
    arrays = world.submitted()
    assert 40 <= len(arrays) <= 60
    assert sum(len(array.tasks) for array in arrays) == 800
    half = arrays[: len(arrays) // 2]
    assert {key.repeat for array in half for key in array.tasks} == {1}
    for quarter in (half[:12], half[12:]):
        assert {array.nodes for array in quarter} == {1, 2, 4, 8}


def test_in_the_grids_order_cells_of_one_size_are_one_array(world: World) -> None:
    world.set_cells(*(tiny_cell(nodes=nodes, seq_len=32 * i) for i in range(1, 6) for nodes in (1, 2)))
    world.begun()
    assert [(array.nodes, len(array.tasks)) for array in world.submitted()] == [(1, 5), (2, 5)]
