"""Narrow number formats: which devices know them, told from the profile before anything is submitted."""

from __future__ import annotations

import dataclasses

import pytest

from sweep.config import load
from sweep.core.cells.cell import Cell, Precision
from sweep.core.cells.device import Device
from sweep.core.cells.formats import NEEDED_CAPABILITY
from sweep.core.cells.parallelism import Parallelism
from sweep.core.cells.rules import DEVICE_RULES, first_violation, violations
from sweep.core.grids.grid import EmptyGridError, expand
from tests.sweep.core.cell_factory import CELL

B200 = Device(name="b200-180gb", type="cuda", compute_capability=(10, 0))
H100 = Device(name="h100", type="cuda", compute_capability=(9, 0))
A100 = Device(name="a100", type="cuda", compute_capability=(8, 0))
V100 = Device(name="v100", type="cuda", compute_capability=(7, 0))
OWN = Device(name="own", type="cuda")
EPYC = Device(name="epyc", type="cpu")


def of(precision: Precision, device: Device) -> Cell:
    return dataclasses.replace(CELL, precision=precision, device=device.name)


@pytest.mark.parametrize(
    ("precision", "device", "words"),
    [
        (Precision.MXFP8, H100, "precision=mxfp8 needs compute capability 10.0 or more; device h100 has 9.0. Choose"),
        (Precision.FLOAT8, A100, "precision=float8 needs compute capability 8.9 or more; device a100 has 8.0"),
        (Precision.BF16, V100, "precision=bf16 needs compute capability 8.0 or more; device v100 has 7.0"),
        (Precision.MXFP8, EPYC, "precision=mxfp8 does not run on a CPU"),
        (Precision.FP16, EPYC, "precision=fp16 does not run on a CPU. Choose fp32 or bf16"),
    ],
)
def test_a_device_that_does_not_know_the_format_is_named_with_what_is_needed(
    precision: Precision, device: Device, words: str
) -> None:
    (found,) = violations(of(precision, device), device)
    assert found.rule == "precision_by_capability"
    assert words in found.reason
    assert first_violation(of(precision, device), device) == found


@pytest.mark.parametrize(
    ("precision", "device"),
    [
        (Precision.MXFP8, B200),
        (Precision.FLOAT8, B200),
        (Precision.FLOAT8, H100),
        (Precision.BF16, A100),
        (Precision.FP16, V100),
        (Precision.FP32, V100),
        (Precision.BF16, EPYC),
        # What a profile does not tell, the run asks the device.
        (Precision.MXFP8, OWN),
    ],
)
def test_a_device_that_knows_it_is_let_through(precision: Precision, device: Device) -> None:
    assert violations(of(precision, device), device) == []


def test_rules_of_the_device_come_last_and_are_left_out_without_one() -> None:
    wrong = dataclasses.replace(of(Precision.MXFP8, A100), seq_len=31, micro_batch=1)
    assert [item.rule for item in violations(wrong, A100)] == ["matrix_sizes", *DEVICE_RULES]
    assert [item.rule for item in violations(wrong)] == ["matrix_sizes"]


def tensorwise(**changes: object) -> Cell:
    values = {"parallelism": Parallelism(dp_shard=6), "nodes": 1, "gpus_per_node": 6, "global_batch": 12, **changes}
    return dataclasses.replace(CELL, precision=Precision.FLOAT8, **values)  # type: ignore[arg-type]  # a cell's fields


def test_fsdp_gathers_float8_in_equal_parts() -> None:
    # 384, 192 and 960 rows: all divide by 6, and 192 does not by 128.
    assert violations(tensorwise()) == []
    many = tensorwise(parallelism=Parallelism(dp_shard=64, cp=2), nodes=16, gpus_per_node=8, global_batch=64)
    (found,) = violations(dataclasses.replace(many, micro_batch=1))
    assert found.rule == "float8_gather"
    assert "m has kv_hidden=192 a rank at tp=1, which does not divide by dp_shard x cp=128" in found.reason
    assert found.reason.endswith("Choose trainer.float8_recipe=rowwise, or other degrees.")


def test_a_grid_judges_the_recipe_that_it_names_and_the_default_where_it_names_none() -> None:
    words = ["+grid=weak_scaling", "cluster=slurm", "nodes=[3]", "model=llama2_7b", "device=h100-80gb-sxm"]
    words += ["precision=float8"]
    with pytest.raises(EmptyGridError, match="float8_gather"):
        expand(load(words).grid)
    for recipes, kept in (("[rowwise]", {"rowwise"}), ("[rowwise,tensorwise]", {"rowwise"})):
        found = expand(load([*words, f"trainer.float8_recipe={recipes}"]).grid)
        assert {cell.trainer.float8_recipe for cell in found.cells.values()} == kept
        assert {item.rule for item in found.rejections} == ({"float8_gather"} if "tensorwise" in recipes else set())


def test_every_format_narrower_than_fp32_needs_something() -> None:
    assert {*Precision} - {*NEEDED_CAPABILITY} == {Precision.FP32}


@pytest.mark.parametrize(
    ("device", "known"),
    [
        ("b200-180gb", {"fp32", "bf16", "fp16", "float8", "mxfp8"}),
        ("h100-80gb-sxm", {"fp32", "bf16", "fp16", "float8"}),
        ("mi300x", {"fp32", "bf16", "fp16", "float8"}),
        ("a100-80gb-sxm", {"fp32", "bf16", "fp16"}),
        ("v100-32gb-sxm", {"fp32", "fp16"}),
    ],
)
def test_a_grid_over_all_formats_keeps_those_that_the_device_has(device: str, known: set[str]) -> None:
    words = [
        "+grid=weak_scaling",
        "cluster=slurm",
        "nodes=1",
        f"device={device}",
        "precision=[fp32,bf16,fp16,float8,mxfp8]",
    ]
    found = expand(load(words).grid)
    assert {str(cell.precision) for cell in found.cells.values()} == known
    assert {item.rule for item in found.rejections} <= {"precision_by_capability"}


def test_a_grid_of_nothing_else_says_which_device_and_what_it_needs() -> None:
    words = ["+grid=weak_scaling", "cluster=slurm", "nodes=1", "device=h100-80gb-sxm", "precision=mxfp8"]
    with pytest.raises(EmptyGridError, match=r"device h100-80gb-sxm has 9\.0"):
        expand(load(words).grid)
