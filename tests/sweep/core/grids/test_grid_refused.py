"""Grids that cannot be read, and grids of which no cell is left."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sweep.core.cells.axes import GridError
from sweep.core.cells.batch import BatchKind
from sweep.core.grids.grid import EmptyGridError, Grid, check, expand
from tests.sweep.core.grid_factory import column, grid


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
    check(replace(grid(nodes=tuple(range(1, 1000)), trainer__seed=tuple(range(10**5))), max_combinations=10**9))
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
    with pytest.raises(EmptyGridError, match="the only combination was rejected"):
        expand(grid(nodes=(1,), exclude=["nodes == 1"]))
    assert [line.split(":")[0].strip() for line in rest] == ["batch_by_data_ranks", "whole_batch", "exclude"]


def test_a_grid_with_an_empty_axis_has_no_combination_at_all() -> None:
    for empty in (grid(nodes=()), grid(zips=[{"nodes": ()}], drop=["nodes"])):
        with pytest.raises(EmptyGridError, match="an axis has an empty list of values"):
            expand(empty)
