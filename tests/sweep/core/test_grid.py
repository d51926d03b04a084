from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

import pytest

from sweep.core import grid as grid_module
from sweep.core.cell import (
    AxisValue,
    BatchKind,
    Cell,
    Checkpointing,
    Parallelism,
    Precision,
    Schedule,
    TrainerSettings,
    cell_id,
)
from sweep.core.grid import (
    AXES,
    EmptyGridError,
    Expansion,
    Grid,
    GridError,
    axis_default,
    axis_names,
    check,
    expand,
    normalise_axis,
)
from sweep.core.model import ModelShape
from sweep.core.rules import RULES

SMALL = ModelShape(name="small", n_layers=8, hidden=512, n_heads=8, n_kv_heads=8, ffn_hidden=1024, vocab_size=1024)
LARGE = replace(SMALL, name="large", n_layers=16)
AXES_OF_ONE: Mapping[str, tuple[AxisValue, ...]] = {
    "nodes": (1,),
    "gpus_per_node": (8,),
    "device": ("h100",),
    "model": ("small",),
    "seq_len": (4096,),
}
KINDS: Mapping[BatchKind, AxisValue] = {
    BatchKind.SEQUENCES_PER_GPU: 2,
    BatchKind.TOKENS_PER_GPU: 8192,
    BatchKind.GLOBAL_BATCH: 64,
}


@pytest.fixture
def able_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the trainer cannot do yet is another matter than what a grid means."""
    rules = {name: rule for name, rule in RULES.items() if name != "trainer_cannot_yet"}
    monkeypatch.setattr("sweep.core.rules.RULES", rules)


def grid(
    kind: BatchKind = BatchKind.SEQUENCES_PER_GPU,
    *,
    zips: Sequence[Mapping[str, tuple[AxisValue, ...]]] = (),
    cells: Sequence[Mapping[str, tuple[AxisValue, ...]]] = (),
    exclude: Sequence[str] = (),
    require: Sequence[str] = (),
    drop: Sequence[str] = (),
    **axes: object,
) -> Grid:
    """A grid of one cell with other axes; ``trainer__lr`` stands for ``trainer.lr``."""
    given = {name.replace("__", "."): value if isinstance(value, tuple) else (value,) for name, value in axes.items()}
    whole = {**AXES_OF_ONE, kind.value: (KINDS[kind],), **given}
    return Grid(
        name="g",
        batch_kind=kind,
        axes={name: values for name, values in whole.items() if name not in drop},
        models={"small": SMALL, "large": LARGE},
        zips=tuple(zips),
        cells=tuple(cells),
        exclude=tuple(exclude),
        require=tuple(require),
    )


def column(expansion: Expansion, *names: str) -> list[tuple[AxisValue, ...]]:
    return [tuple(point.axes[name] for name in names) for point in expansion.points]


def only(expansion: Expansion) -> tuple[Mapping[str, AxisValue], object]:
    (point,) = expansion.points
    return point.axes, expansion.cells[point.cell_id]


def rejected(grid: Grid) -> str:
    """The single rejection of a grid that has nothing else, with its rule."""
    with pytest.raises(EmptyGridError) as caught:
        expand(grid)
    return str(caught.value).splitlines()[-1].strip()


# --- products, zips, explicit cells


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


def test_every_axis_reaches_its_cell(able_trainer: None) -> None:
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


# --- the batch


@pytest.mark.parametrize(
    ("layout", "micro_batch"),
    [({}, 2), ({"tp": 4}, 8), ({"tp": 4, "pp": 2, "schedule": "1f1b"}, 1), ({"cp": 2}, 4)],
    ids=["fsdp", "tp", "tp and pp", "cp"],
)
def test_the_global_batch_follows_from_the_gpus_whatever_the_layout(
    able_trainer: None, layout: dict[str, object], micro_batch: int
) -> None:
    # The paper's effective local batch: 2 sequences a GPU on 256 GPUs are 512.
    _, cell = only(expand(grid(nodes=32, sequences_per_gpu=2, **layout)))
    assert isinstance(cell, Cell)
    assert (cell.global_batch, cell.micro_batch) == (512, micro_batch)
    assert cell.sequences_per_gpu == 2


def test_a_fraction_of_a_sequence_per_gpu_is_exact(able_trainer: None) -> None:
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


# --- degrees that are auto


def test_fsdp_takes_what_the_other_degrees_leave(able_trainer: None) -> None:
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
        "auto_degree: dp_shard=auto: 8 GPUs cannot be divided by tp=3 = 3. "
        "Lower a degree or change the number of nodes."
    )


def test_degrees_that_do_not_make_the_world_are_rejected() -> None:
    assert "world_size: dp_shard=4 needs 4 GPUs; the cell has 8 (1 node x 8)" in rejected(grid(dp_shard=4))


# --- conditions


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


def test_conditions_see_a_fraction_as_a_number(able_trainer: None) -> None:
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


# --- what a grid may not be


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (grid(nodez=1), "grid g: axes names the unknown axis 'nodez'. Did you mean nodes"),
        (grid(zebra=1), "unknown axis 'zebra'. Known are: nodes, gpus_per_node"),
        (grid(trainer__lrr=1.0), "unknown axis 'trainer.lrr'. Did you mean trainer.lr"),
        (grid(global_batch=64), "global_batch, but the grid's batch rule is sequences_per_gpu: one rule per grid"),
        (grid(cells=[{"nodez": (1,)}]), "cells names the unknown axis 'nodez'"),
        (grid(zips=[{"nodez": (1,)}]), "zip names the unknown axis 'nodez'"),
        (grid(zips=[{"nodes": (1, 2), "seq_len": (1024,)}]), "zip needs lists of one length"),
        (grid(zips=[{}]), "zip needs lists of one length"),
        (grid(zips=[{"nodes": (1, 2)}]), "nodes is given twice, in axes and zip"),
        (
            grid(zips=[{"precision": ("bf16",)}, {"precision": ("fp32",)}]),
            "precision is given twice, in axes and zip",
        ),
        (
            grid(
                zips=[{"nodes": (1,), "seq_len": (1024,)}],
                cells=[{"nodes": (1,)}],
                drop=["nodes", "seq_len"],
            ),
            r"an explicit cell names \['nodes'\] of the zip \['nodes', 'seq_len'\]. Name all of them or none",
        ),
        (grid(drop=["nodes", "model"]), "grid g gives no value for nodes, model. Add it to its axes"),
        (grid(nodes="two"), "nodes='two' is not a whole number"),
        (grid(nodes=0), "nodes=0 is not a positive integer"),
        (grid(nodes=None), "nodes=None is not a whole number"),
        (grid(tp="many"), "tp='many' is not a whole number"),
        (grid(micro_batch=0), "micro_batch=0 is not a positive integer"),
        (grid(micro_batch="one"), "micro_batch='one' is not a positive integer"),
        (grid(precision="bf17"), "precision='bf17' is not one of fp32, bf16"),
        (grid(model="smal"), "model='smal' is not known. Did you mean small. Known are: large, small"),
        (grid(model="zzz"), "model='zzz' is not known. Known are: large, small"),
        (grid(model=("small", ["large"])), r"model=\['large'\] is not known"),
        (grid(compile="yes"), "compile='yes' is not true or false"),
        (grid(trainer__lr="fast"), "trainer.lr='fast' is not a number"),
        (grid(sequences_per_gpu="two"), "sequences_per_gpu='two' is not a number or a fraction such as 1/2"),
        (grid(sequences_per_gpu="1/0"), "is not a number or a fraction"),
        (grid(sequences_per_gpu=True), "is not a number or a fraction"),
        (grid(sequences_per_gpu=-1), "sequences_per_gpu=-1 is not positive"),
        (grid(BatchKind.GLOBAL_BATCH, global_batch="1/2"), "global_batch='1/2' is not a whole number"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_a_grid_that_cannot_be_read_says_what_is_wrong(wrong: Grid, message: str) -> None:
    with pytest.raises(GridError, match=message.replace("?", r"\?")):
        expand(wrong)


def test_a_grid_can_be_checked_without_being_expanded() -> None:
    check(grid(nodes=tuple(range(1, 1000)), trainer__seed=tuple(range(10**5))))
    with pytest.raises(GridError, match="unknown axis"):
        check(grid(nodez=1))


def test_settings_that_contradict_each_other_reject_their_combination_only() -> None:
    found = expand(grid(trainer__steps=(5, 60), trainer__warmup_steps=(2, 10)))
    assert column(found, "trainer.steps", "trainer.warmup_steps") == [(5, 2), (60, 2), (60, 10)]
    (rejection,) = found.rejections
    assert rejection.rule == "values"
    assert "trainer.warmup_steps=10 leaves no measured step of trainer.steps=5" in rejection.reason


def test_an_empty_grid_counts_the_rejections_by_rule_and_shows_the_first_of_each() -> None:
    empty = grid(nodes=(1, 2, 4), sequences_per_gpu=("1/2", "1/3"), exclude=["nodes == 4"])
    with pytest.raises(EmptyGridError) as caught:
        expand(empty)
    first, second, *rest = str(caught.value).splitlines()
    assert first == (
        "grid g has no cell left: all 6 combinations were rejected (batch_by_data_ranks 2, whole_batch 2, exclude 2)."
    )
    assert second == "The first of each rule:"
    assert [line.split(":")[0].strip() for line in rest] == ["batch_by_data_ranks", "whole_batch", "exclude"]


def test_a_grid_with_an_empty_axis_has_no_combination_at_all() -> None:
    for empty in (grid(nodes=()), grid(zips=[{"nodes": ()}], drop=["nodes"])):
        with pytest.raises(EmptyGridError, match="an axis has an empty list of values"):
            expand(empty)


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


# --- names and defaults


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
