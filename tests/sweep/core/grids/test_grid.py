"""Products, zips and explicit cells: which points a grid has, and which axes they name."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from sweep.core.cells.axes import AXES, GridError, axis_default, axis_names, normalise_axis
from sweep.core.cells.axis import AxisValue
from sweep.core.cells.batch import BatchKind
from sweep.core.cells.cell import Cell, Checkpointing, Precision, cell_id
from sweep.core.cells.parallelism import Parallelism, Schedule
from sweep.core.cells.trainer_settings import TrainerSettings
from sweep.core.grids import grid as grid_module
from sweep.core.grids.grid import expand
from tests.sweep.core.grid_factory import AXES_OF_ONE, LARGE, SMALL, column, grid, only


def test_a_grid_is_the_product_of_its_axes_in_the_order_of_tables() -> None:
    found = expand(grid(seq_len=(1024, 2048), nodes=(1, 2)))
    assert column(found, "nodes", "seq_len") == [(1, 1024), (1, 2048), (2, 1024), (2, 2048)]
    assert len(found.cells) == 4
    assert found.rejections == ()


def test_a_value_given_twice_in_two_spellings_is_one_value() -> None:
    found = expand(grid(sequences_per_gpu=("2", 2, 2.0, "4/2"), trainer__lr=(1, 1.0)))
    assert column(found, "sequences_per_gpu", "trainer.lr") == [(2, 1.0)]


def test_zipped_axes_advance_together() -> None:
    found = expand(grid(zips=[{"nodes": (1, 2, 4), "seq_len": (4096, 2048, 1024)}], drop=["nodes", "seq_len"]))
    assert column(found, "nodes", "seq_len") == [(1, 4096), (2, 2048), (4, 1024)]


def test_a_row_that_a_zip_gives_twice_is_one_combination() -> None:
    found = expand(grid(zips=[{"nodes": (1, 1, 2), "seq_len": (4096, 4096, 4096)}], drop=["nodes", "seq_len"]))
    assert column(found, "nodes", "seq_len") == [(1, 4096), (2, 4096)]


def test_two_zips_make_a_product() -> None:
    zips = [
        {"nodes": (1, 2), "seq_len": (4096, 2048)},
        {"model": ("small", "large"), "precision": ("bf16", "fp32")},
    ]
    found = expand(grid(zips=zips, drop=["nodes", "seq_len", "model"]))
    assert len(found.points) == 4
    assert (2, 2048, "large", "fp32") in column(found, "nodes", "seq_len", "model", "precision")


def test_explicit_cells_take_their_own_values_and_the_axes_for_the_others() -> None:
    cells = [{"nodes": (1,), "seq_len": (1024,)}, {"nodes": (4,), "seq_len": (2048, 4096)}]
    found = expand(grid(cells=cells, precision=("bf16", "fp32"), nodes=(1, 2, 3)))
    assert column(found, "nodes", "seq_len", "precision") == [
        (1, 1024, "bf16"),
        (1, 1024, "fp32"),
        (4, 2048, "bf16"),
        (4, 2048, "fp32"),
        (4, 4096, "bf16"),
        (4, 4096, "fp32"),
    ]


def test_a_combination_that_two_explicit_cells_give_is_one_point() -> None:
    found = expand(grid(cells=[{"nodes": (1, 2)}, {"nodes": (2, 4)}]))
    assert column(found, "nodes") == [(1,), (2,), (4,)]


def test_an_explicit_cell_that_names_a_whole_zip_replaces_it() -> None:
    zips = [{"nodes": (1, 2), "seq_len": (4096, 2048)}]
    cells = [{"nodes": (8,), "seq_len": (512,)}, {"precision": ("fp32",)}]
    found = expand(grid(zips=zips, cells=cells, drop=["nodes", "seq_len"]))
    assert column(found, "nodes", "seq_len", "precision") == [
        (8, 512, "bf16"),
        (1, 4096, "fp32"),
        (2, 2048, "fp32"),
    ]


def test_points_have_the_same_axes_even_where_only_one_explicit_cell_names_a_setting() -> None:
    found = expand(grid(cells=[{"nodes": (1,)}, {"nodes": (2,), "trainer.lr": (1e-3,)}]))
    assert column(found, "nodes", "trainer.lr") == [(1, 3e-4), (2, 1e-3)]
    assert len({tuple(point.axes) for point in found.points}) == 1


def test_points_name_every_axis_but_settings_that_the_grid_leaves_alone() -> None:
    axes, _ = only(expand(grid()))
    others = set(BatchKind) - {BatchKind.SEQUENCES_PER_GPU}
    assert set(axes) == set(AXES) - others


def test_two_combinations_may_be_one_cell() -> None:
    found = expand(grid(micro_batch=(None, 2)))
    assert len(found.points) == 2
    assert len(found.cells) == 1


def test_a_cell_is_found_under_its_own_id() -> None:
    found = expand(grid(nodes=(1, 2, 4), trainer__seed=(1, 2)))
    assert all(cell_id(cell) == name for name, cell in found.cells.items())
    assert [found.cells[point.cell_id].nodes for point in found.points] == [1, 1, 2, 2, 4, 4]
    assert [found.cells[point.cell_id].trainer.seed for point in found.points] == [1, 2] * 3


def test_every_axis_reaches_its_cell() -> None:
    values: dict[str, AxisValue] = {
        "nodes": 4,
        "gpus_per_node": 4,
        "device": "a100",
        "model": "large",
        "seq_len": 2048,
        "sequences_per_gpu": 4,
        "dp_replicate": 2,
        "dp_shard": 2,
        "tp": 2,
        "pp": 2,
        "cp": 1,
        "schedule": "interleaved_1f1b",
        "virtual_stages": 2,
        "async_tp": True,
        "sequence_parallel": True,
        "micro_batch": 2,
        "precision": "fp32",
        "compile": True,
        "activation_checkpointing": "full",
        "reshard_after_forward": True,
        "trainer.steps": 30,
        "trainer.lr": 1e-3,
    }
    axes, cell = only(expand(replace(grid(), axes={name: (value,) for name, value in values.items()})))
    assert axes == values
    assert cell == Cell(
        model=LARGE,
        device="a100",
        nodes=4,
        gpus_per_node=4,
        parallelism=Parallelism(
            dp_replicate=2,
            dp_shard=2,
            tp=2,
            pp=2,
            schedule=Schedule.INTERLEAVED_1F1B,
            virtual_stages=2,
            async_tp=True,
        ),
        global_batch=64,
        micro_batch=2,
        seq_len=2048,
        precision=Precision.FP32,
        compile=True,
        activation_checkpointing=Checkpointing.FULL,
        reshard_after_forward=True,
        trainer=TrainerSettings(steps=30, lr=1e-3),
    )
    assert set(values) - {"trainer.steps", "trainer.lr"} == set(AXES) - {"tokens_per_gpu", "global_batch"}


@pytest.mark.parametrize("kind", BatchKind)
def test_a_grid_knows_one_batch_rule_and_every_setting(kind: BatchKind) -> None:
    names = axis_names(kind)
    assert set(BatchKind) & set(names) == {kind}
    assert {"trainer.lr", "trainer.seed", "trainer.steps"} <= set(names)


def test_the_default_of_an_axis_is_what_a_combination_gets_that_does_not_name_it() -> None:
    axes, cell = only(expand(grid()))
    assert isinstance(cell, Cell)
    for name in set(axes) - set(AXES_OF_ONE) - {"sequences_per_gpu"}:
        assert axes[name] == axis_default(name)
    assert axis_default("trainer.lr") == cell.trainer.lr
    assert axis_default("nodes") is None


def test_values_are_brought_to_the_type_of_their_axis() -> None:
    models = {"small": SMALL}
    assert normalise_axis("trainer.lr", 1, models) == 1.0
    assert type(normalise_axis("trainer.lr", 1, models)) is float
    assert type(normalise_axis("nodes", 2.0, models)) is int
    assert normalise_axis("precision", "bf16", models) is Precision.BF16
    assert normalise_axis("schedule", None, models) is None
    assert normalise_axis("tp", "auto", models) == "auto"
    assert normalise_axis("sequences_per_gpu", 0.5, models) == str(Fraction(1, 2))
    assert normalise_axis("trainer.threads_per_rank", 0, models) == 0


def test_nothing_is_dropped_between_points_and_rejections() -> None:
    wide = grid(
        nodes=(1, 2, 3, 5),
        seq_len=(1000, 1024),
        sequences_per_gpu=("1/3", 1, 2),
        tp=(1, 3, 16),
        micro_batch=(None, 2),
        exclude=["nodes == 5"],
    )
    found = expand(wide)
    assert len(found.points) + len(found.rejections) == 4 * 2 * 3 * 3 * 2
    assert sum(found.rejected_by_rule().values()) == len(found.rejections)
    counts = list(found.rejected_by_rule().values())
    assert counts == sorted(counts, reverse=True)


def test_two_different_cells_under_one_id_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid_module, "cell_id", lambda cell: "0" * 16)
    with pytest.raises(GridError, match="two different cells share the id 0000000000000000"):
        expand(grid(nodes=(1, 2)))
