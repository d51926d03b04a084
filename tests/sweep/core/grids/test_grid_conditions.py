"""A grid's conditions: what they see, what they leave out, and wrong ones."""

from __future__ import annotations

import pytest

from sweep.core.cells.axes import GridError
from sweep.core.grids.grid import expand
from tests.sweep.core.grid_factory import SMALL, column, grid, rejected


def test_exclude_leaves_out_what_it_is_true_of_and_require_what_it_is_false_of() -> None:
    found = expand(grid(nodes=(1, 2, 4, 8), exclude=["nodes == 2"], require=["gpus <= 32"]))
    assert column(found, "nodes") == [(1,), (4,)]
    assert [(item.rule, item.reason, item.axes["nodes"]) for item in found.rejections] == [
        ("exclude", "excluded by the grid's condition: nodes == 2", 2),
        ("require", "does not meet the grid's condition: gpus <= 32", 8),
    ]


def test_conditions_see_the_number_that_auto_comes_to() -> None:
    assert column(expand(grid(nodes=(1, 2), exclude=["dp_shard == 16"])), "nodes") == [(1,)]


def test_conditions_see_the_model_and_the_batch() -> None:
    found = expand(grid(model=("small", "large"), nodes=(1, 2), exclude=[f"n_params > {SMALL.n_params}"]))
    assert column(found, "model") == [("small",), ("small",)]
    found = expand(grid(nodes=(1, 2), require=["global_batch % 32 == 0"]))
    assert column(found, "nodes") == [(2,)]


def test_conditions_see_a_fraction_as_a_number() -> None:
    found = expand(grid(sequences_per_gpu=("1/2", 1), tp=8, exclude=["sequences_per_gpu < 1"]))
    assert column(found, "sequences_per_gpu") == [(1,)]


def test_conditions_see_the_trainers_settings_named_by_the_grid_or_not() -> None:
    found = expand(grid(trainer__seed=(1, 2, 3), exclude=["trainer.seed == 2 and trainer.steps == 60"]))
    assert column(found, "trainer.seed") == [(1,), (3,)]
    assert [item.rule for item in found.rejections] == ["exclude"]
    assert len(expand(grid(nodes=(1, 2), require=["trainer.steps >= 60"])).points) == 2


def test_what_a_condition_leaves_out_is_not_blamed_on_a_rule() -> None:
    assert "exclude:" in rejected(grid(tp=16, exclude=["tp > 8"], dp_shard=1))
    assert "exclude:" in rejected(grid(tp=16, dp_shard=1, exclude=["tp > 8 and trainer.seed > 0"]))


def test_a_condition_on_a_degree_that_auto_cannot_settle_is_not_asked() -> None:
    assert "auto_degree:" in rejected(grid(tp=3, exclude=["dp_shard > 2"]))
    assert "auto_degree:" in rejected(grid(tp=3, require=["dp_shard > 2"]))


@pytest.mark.parametrize(
    ("conditions", "message"),
    [
        ({"exclude": ["nods > 1"]}, "grid g: condition 'nods > 1' uses the unknown name 'nods'. Did you mean nodes"),
        ({"require": ["nodes >"]}, "grid g: condition 'nodes >' cannot be read"),
        ({"exclude": ["tokens_per_gpu > 1"]}, "unknown name 'tokens_per_gpu'"),
        ({"exclude": ["micro_batch > 1"]}, "grid g: condition 'micro_batch > 1' has no answer for"),
        ({"require": ["trainer.lr > 'x'"]}, "grid g: condition .* has no answer for"),
    ],
)
def test_a_wrong_condition_is_an_error_of_the_grid(conditions: dict[str, list[str]], message: str) -> None:
    with pytest.raises(GridError, match=message):
        expand(grid(**conditions))  # type: ignore[arg-type]
