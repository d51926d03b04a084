"""Tensor, context and pipeline parallelism, alone and in products, against one process.

One launch for each number of ranks walks through many layouts.
"""

from __future__ import annotations

import dataclasses
import math
import random
from typing import Any

import pytest

from sweep.core.cells.cell import Cell, Checkpointing, Precision
from sweep.core.cells.parallelism import Parallelism, Schedule
from sweep.core.cells.rules import violations
from tests.trainer.cells import UNEVEN, cell
from tests.trainer.parity import (
    BF16_LOSS_TOLERANCE,
    BF16_NORM_TOLERANCE,
    FP32_TP_TOLERANCE,
    Shown,
    alone,
    run_layouts,
    start_alone,
)

pytestmark = [pytest.mark.torchrun, pytest.mark.slow]

# An odd number of layers, shared out over two or four stages.
DEEP = dataclasses.replace(UNEVEN, name="deep", n_layers=5)
ONE_F_ONE_B, INTERLEAVED = Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED_1F1B
ZERO_BUBBLE = Schedule.INTERLEAVED_ZERO_BUBBLE
SELECTIVE, FULL = Checkpointing.SELECTIVE, Checkpointing.FULL


def on(n_ranks: int, *, micro_batch: int | None = None, **changes: Any) -> Cell:
    """A cell of that many ranks; degrees are given flat, and what they leave shards the parameters.

    Tensor parallelism is slow here, so where nothing is said it takes a rank's whole share at once.
    """
    degrees = {name: changes.pop(name) for name in list(changes) if name in Parallelism.__dataclass_fields__}
    layout = Parallelism(**degrees)
    layout = dataclasses.replace(layout, dp_shard=n_ranks // layout.world_size)
    if micro_batch is None:
        micro_batch = 2 if layout.tp == 1 or layout.pp > 1 else 8 // layout.data_ranks
    return cell(gpus=n_ranks, parallelism=layout, micro_batch=micro_batch, **{"model": DEEP, **changes})


TWO = {
    "tp": on(2, tp=2),
    "tp without sequence parallelism": on(2, tp=2, sequence_parallel=False),
    "bf16 tp without sequence parallelism": on(2, tp=2, sequence_parallel=False, precision=Precision.BF16),
    "cp": on(2, cp=2),
    # A rank's name for a ring lets its kernel be emulated (tests/trainer/emulated_flash.py).
    "ring": on(2, cp=2),
    "ring gathered at once": on(2, cp=2, trainer={"cp_rotate": "allgather"}),
    "ring checkpointed": on(2, cp=2, activation_checkpointing=FULL),
    "ring checkpointed selectively": on(2, cp=2, activation_checkpointing=SELECTIVE),
    "ring compiled": on(2, cp=2, compile=True),
    "pp": on(2, pp=2, schedule=ONE_F_ONE_B),
    "ddp compiled": on(2, dp_replicate=2, compile=True),
    "fsdp compiled": on(2, compile=True),
    "fsdp compiled by inductor": on(2, compile=True),
    "fsdp compiled checkpointed": on(2, compile=True, activation_checkpointing=FULL),
    "fsdp compiled checkpointed selectively": on(2, compile=True, activation_checkpointing=SELECTIVE),
    "tp compiled": on(2, tp=2, compile=True),
    "tp compiled checkpointed": on(2, tp=2, compile=True, activation_checkpointing=FULL),
    "tp compiled by inductor": on(2, tp=2, compile=True),
    "tp compiled without sequence parallelism": on(2, tp=2, sequence_parallel=False, compile=True),
    "cp compiled": on(2, cp=2, compile=True),
    "pp compiled": on(2, pp=2, schedule=ONE_F_ONE_B, compile=True),
    "bf16 tp compiled": on(2, tp=2, compile=True, precision=Precision.BF16),
}
FOUR = {
    "ddp x tp": on(4, dp_replicate=2, tp=2),
    "fsdp x tp": on(4, tp=2),
    "fsdp x tp accumulated": on(4, tp=2, micro_batch=2, reshard_after_forward=True),
    "fsdp x tp without sequence parallelism": on(4, tp=2, sequence_parallel=False),
    "fsdp x tp checkpointed": on(4, tp=2, activation_checkpointing=FULL),
    "fsdp x tp checkpointed selectively": on(4, tp=2, activation_checkpointing=SELECTIVE),
    "cp of 4": on(4, cp=4),
    "hsdp over cp": on(4, dp_replicate=2, cp=2),
    "fsdp x cp": on(4, cp=2),
    "fsdp x cp accumulated": on(4, cp=2, micro_batch=1, reshard_after_forward=True),
    "tp x cp": on(4, tp=2, cp=2),
    "tp x cp checkpointed selectively": on(4, tp=2, cp=2, activation_checkpointing=SELECTIVE),
    "tp x ring": on(4, tp=2, cp=2),
    "fsdp x ring": on(4, cp=2),
    "ring x 1f1b": on(4, cp=2, pp=2, schedule=ONE_F_ONE_B),
    "pp of 4": on(4, pp=4, schedule=ONE_F_ONE_B),
    "gpipe of 4": on(4, pp=4, schedule=Schedule.GPIPE),
    "zbv of 4": on(4, pp=2, schedule=Schedule.ZBV, virtual_stages=2, dp_replicate=2),
    "fsdp x gpipe": on(4, pp=2, schedule=Schedule.GPIPE, micro_batch=1),
    "fsdp x 1f1b": on(4, pp=2, schedule=ONE_F_ONE_B, micro_batch=1),
    "fsdp x 1f1b resharded": on(4, pp=2, schedule=ONE_F_ONE_B, reshard_after_forward=True),
    "fsdp x 1f1b checkpointed": on(4, pp=2, schedule=ONE_F_ONE_B, activation_checkpointing=FULL),
    "fsdp x 1f1b checkpointed selectively": on(4, pp=2, schedule=ONE_F_ONE_B, activation_checkpointing=SELECTIVE),
    "fsdp x interleaved": on(4, pp=2, schedule=INTERLEAVED, virtual_stages=2, micro_batch=1),
    "fsdp x zbv": on(4, pp=2, schedule=Schedule.ZBV, virtual_stages=2, micro_batch=1),
    "fsdp x zbv checkpointed": on(
        4, pp=2, schedule=Schedule.ZBV, virtual_stages=2, activation_checkpointing=FULL, micro_batch=1
    ),
    "fsdp x interleaved zero bubble": on(4, pp=2, schedule=ZERO_BUBBLE, virtual_stages=2, micro_batch=1),
    "ddp x 1f1b": on(4, dp_replicate=2, pp=2, schedule=ONE_F_ONE_B),
    "tp x 1f1b": on(4, tp=2, pp=2, schedule=ONE_F_ONE_B, micro_batch=4),
    "tp x zbv": on(4, tp=2, pp=2, schedule=Schedule.ZBV, virtual_stages=2, micro_batch=4),
    "tp x interleaved": on(4, tp=2, pp=2, schedule=INTERLEAVED, virtual_stages=2, micro_batch=4),
    "tp x interleaved zero bubble": on(4, tp=2, pp=2, schedule=ZERO_BUBBLE, virtual_stages=2, micro_batch=4),
    "cp x 1f1b": on(4, cp=2, pp=2, schedule=ONE_F_ONE_B),
    "cp x gpipe": on(4, cp=2, pp=2, schedule=Schedule.GPIPE),
    "cp x zbv": on(4, cp=2, pp=2, schedule=Schedule.ZBV, virtual_stages=2),
    "cp x interleaved zero bubble": on(4, cp=2, pp=2, schedule=ZERO_BUBBLE, virtual_stages=2),
    "bf16 fsdp x tp": on(4, tp=2, precision=Precision.BF16),
    "bf16 fsdp x cp": on(4, cp=2, precision=Precision.BF16),
    "bf16 tp x 1f1b": on(4, tp=2, pp=2, schedule=ONE_F_ONE_B, micro_batch=4, precision=Precision.BF16),
    "bf16 tp x cp": on(4, tp=2, cp=2, precision=Precision.BF16),
    "bf16 fsdp x 1f1b": on(4, pp=2, schedule=ONE_F_ONE_B, precision=Precision.BF16),
    "bf16 cp x gpipe": on(4, cp=2, pp=2, schedule=Schedule.GPIPE, precision=Precision.BF16),
    "bf16 fsdp x interleaved": on(4, pp=2, schedule=INTERLEAVED, virtual_stages=2, precision=Precision.BF16),
    "bf16 cp x zbv": on(4, cp=2, pp=2, schedule=Schedule.ZBV, virtual_stages=2, precision=Precision.BF16),
    "bf16 fsdp x interleaved zero bubble": on(
        4, pp=2, schedule=ZERO_BUBBLE, virtual_stages=2, precision=Precision.BF16
    ),
}
EIGHT = {
    "fsdp x tp x pp": on(8, tp=2, pp=2, schedule=ONE_F_ONE_B),
    # cp ranks shard the parameters: FSDP, CP, TP and a pipeline, in as few ranks as they take.
    "cp x tp x pp": on(8, cp=2, tp=2, pp=2, schedule=ONE_F_ONE_B, micro_batch=4),
    "hsdp x tp": on(8, dp_replicate=2, tp=2),
    "hsdp x pp": on(8, dp_replicate=2, pp=2, schedule=ONE_F_ONE_B, micro_batch=1),
}


# All four dimensions in degrees of two, over as little as they take: a layer a stage, one micro-batch for each stage.
TINY = dataclasses.replace(UNEVEN, name="tiny", n_layers=2)
SIXTEEN = {
    "fsdp x cp x tp x pp": on(16, model=TINY, cp=2, tp=2, pp=2, schedule=ONE_F_ONE_B, global_batch=4, micro_batch=1),
}

# What is given of a drawn layout; what is not is drawn.
GIVEN: tuple[dict[str, Any], ...] = (
    {"pp": 2, "tp": 2, "schedule": Schedule.GPIPE},
    {"pp": 2, "tp": 2, "schedule": ONE_F_ONE_B, "activation_checkpointing": SELECTIVE},
    {"pp": 2, "cp": 2, "schedule": INTERLEAVED, "virtual_stages": 2, "activation_checkpointing": SELECTIVE},
    {"pp": 2, "schedule": Schedule.ZBV, "virtual_stages": 2, "activation_checkpointing": Checkpointing.NONE},
    {"pp": 2, "schedule": ZERO_BUBBLE, "virtual_stages": 2, "activation_checkpointing": FULL},
    {"tp": 2, "cp": 2, "activation_checkpointing": FULL, "micro_batch": 4},
    {},
)


def drawn(seed: int) -> Cell:
    """A random layout of four ranks that the rules let through."""
    random_number, given = random.Random(seed), GIVEN[seed]
    while True:
        degrees = {name: given.get(name, 1) for name in ("dp_replicate", "tp", "pp", "cp")}
        while math.prod(degrees.values()) < random_number.choice((2, 4, 4)):
            degrees[random_number.choice(list(degrees))] *= 2
        changes = {
            "schedule": random_number.choice(list(Schedule)) if degrees["pp"] > 1 else None,
            "virtual_stages": random_number.choice((1, 2)),
            "sequence_parallel": random_number.random() < 0.5,
            "micro_batch": random_number.choice((1, 2, 4)),
            "reshard_after_forward": random_number.random() < 0.5,
            "activation_checkpointing": random_number.choice(list(Checkpointing)),
            **degrees,
        }
        made = on(4, **{**changes, **given})
        if not violations(made):
            return made


DRAWN = {f"drawn {seed}": drawn(seed) for seed in range(len(GIVEN))}
FOUR.update(DRAWN)
LAYOUTS = {**TWO, **FOUR, **EIGHT, **SIXTEEN}


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Shown]:
    folder = tmp_path_factory.mktemp("layouts")
    groups = {2: TWO, 4: FOUR, 8: EIGHT, 16: SIXTEEN}
    return {
        name: result
        for n_ranks, cells in groups.items()
        for name, result in run_layouts(folder, n_ranks, cells).items()
    }


def alike(name: str) -> Cell:
    """The same training on one process."""
    made = LAYOUTS[name]
    return cell(model=made.model, global_batch=made.global_batch, micro_batch=made.global_batch)


def test_the_rules_let_all_of_them_through() -> None:
    assert {name: violations(made) for name, made in LAYOUTS.items() if violations(made)} == {}


def test_every_schedule_and_checkpointing_is_among_the_drawn() -> None:
    assert {made.parallelism.schedule for made in DRAWN.values()} == {None, *Schedule}
    assert {made.activation_checkpointing for made in DRAWN.values()} == set(Checkpointing)
    products = [{name for name in ("tp", "pp", "cp") if getattr(made.parallelism, name) > 1} for made in DRAWN.values()]
    assert all({one, other} in products for one, other in (("tp", "cp"), ("tp", "pp"), ("cp", "pp")))


@pytest.mark.parametrize("name", LAYOUTS)
def test_layout_starts_from_the_same_weights_bit_for_bit(name: str, shown: dict[str, Shown]) -> None:
    assert shown[name].start == start_alone(alike(name))


@pytest.mark.parametrize("name", [name for name in LAYOUTS if "bf16" not in name])
def test_fp32_layout_trains_as_one_process_does(name: str, shown: dict[str, Shown]) -> None:
    expected = alone(alike(name))
    assert shown[name].losses == pytest.approx(expected.losses, rel=FP32_TP_TOLERANCE)
    assert shown[name].grad_norms == pytest.approx(expected.grad_norms, rel=FP32_TP_TOLERANCE)


@pytest.mark.parametrize("name", [name for name in LAYOUTS if "bf16" in name])
def test_bf16_layout_trains_as_one_fp32_process_does_within_its_rounding(name: str, shown: dict[str, Shown]) -> None:
    expected = alone(alike(name))
    assert shown[name].losses == pytest.approx(expected.losses, rel=BF16_LOSS_TOLERANCE)
    assert shown[name].grad_norms == pytest.approx(expected.grad_norms, rel=BF16_NORM_TOLERANCE)


@pytest.mark.parametrize("name", LAYOUTS)
def test_layout_computes_in_the_format_that_was_asked_for(name: str, shown: dict[str, Shown]) -> None:
    assert shown[name].formats == ["torch.bfloat16" if "bf16" in name else "torch.float32"]


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_rank_knows_how_many_parameters_the_whole_model_has(name: str, shown: dict[str, Shown]) -> None:
    assert shown[name].n_params == LAYOUTS[name].model.n_params


@pytest.mark.parametrize("name", LAYOUTS)
def test_layout_says_how_attention_reaches_over_cp_ranks(name: str, shown: dict[str, Shown]) -> None:
    expected: dict[str, str] | None = {"attention": "gathered"} if LAYOUTS[name].parallelism.cp > 1 else None
    if "ring" in name:
        expected = {"attention": "ring", "rotate": LAYOUTS[name].trainer.cp_rotate}
    assert shown[name].context == expected


def test_a_pipeline_reduces_once_a_step_and_gathers_once_unless_freed(shown: dict[str, Shown]) -> None:
    # Of the stage of rank 0: the embedding and its layers, three of five.
    groups = 4
    assert shown["fsdp x 1f1b"].calls["gather"] == shown["fsdp x 1f1b"].calls["reduce"] == 5 * groups
    assert shown["fsdp x 1f1b resharded"].calls["reduce"] == 5 * groups
    assert shown["fsdp x 1f1b resharded"].calls["gather"] > 5 * groups
