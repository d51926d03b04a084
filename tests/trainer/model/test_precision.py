"""fp16 with loss scaling, float8 by emulation, and what is refused because a device or a package cannot do it.

Tolerances over five steps, relative to fp32: fp16 rounds to 11 bits (allowed: losses 5e-4, norms 1e-2); float8 to 4
(seen of losses: the first 1e-4, all five 4e-3).
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from torch import nn

from sweep.core.cells.cell import Cell, Checkpointing, Precision
from sweep.core.cells.parallelism import Parallelism, Schedule
from sweep.core.cells.trainer_settings import TrainerSettings
from tests.trainer.cells import cell
from tests.trainer.models import EVEN
from tests.trainer.parity import Shown, run_layouts
from tests.trainer.preflights import examine
from trainer.model.decoder import build_on_meta
from trainer.model.precision import LossScale, check, convert, keeps_casts
from trainer.parallel.parallelize import parallelize
from trainer.process.refusal import Refusal
from trainer.torch_private.training import precision_casts_are_kept
from trainer.training.optimizer import ShardedAdamW

CPU = torch.device("cpu")


def fp16(gpus: int = 1, **changes: object) -> Cell:
    return cell(gpus=gpus, precision=Precision.FP16, **changes)


ONE = {"fp32": cell(), "fp16": fp16(), "fp16 accumulated": fp16(micro_batch=2)}
TWO = {
    "ddp": fp16(2, parallelism=Parallelism(dp_replicate=2)),
    "fsdp": fp16(2),
    "tp": fp16(2, parallelism=Parallelism(tp=2)),
    "pp": fp16(2, parallelism=Parallelism(pp=2, schedule=Schedule.ONE_F_ONE_B), micro_batch=2),
}


@pytest.mark.torchrun
def test_fp16_trains_as_fp32_does_under_every_kind_of_layout(tmp_path: Path) -> None:
    shown: dict[str, Shown] = {}
    for n_ranks, cells in ((1, ONE), (2, TWO)):
        shown |= run_layouts(tmp_path, n_ranks, cells)
    for name in shown.keys() - {"fp32"}:
        assert "torch.float16" in str(shown[name].formats), name
        assert shown[name].losses == pytest.approx(shown["fp32"].losses, rel=5e-4), name
        assert shown[name].grad_norms == pytest.approx(shown["fp32"].grad_norms, rel=1e-2), name


def trained(scale: LossScale) -> tuple[nn.Parameter, ShardedAdamW]:
    parameter = nn.Parameter(torch.ones(3))
    return parameter, ShardedAdamW([parameter], TrainerSettings(grad_clip=0.0, lr=0.1), loss_scale=scale)


def loss_of(parameter: torch.Tensor, factor: float) -> torch.Tensor:
    return (parameter * factor).sum()


def test_the_loss_is_as_it_was_and_its_gradient_as_without_a_scale() -> None:
    scale = LossScale(CPU)
    parameter, optimizer = trained(scale)
    loss = scale.scaled(loss_of(parameter, 2.0))
    loss.backward()  # type: ignore[no-untyped-call]  # torch does not annotate it
    assert loss.item() == 6.0
    assert parameter.grad is not None
    assert parameter.grad.tolist() == [2.0 * LossScale.INITIAL] * 3
    assert optimizer.step().item() == pytest.approx(12.0**0.5)
    assert parameter.tolist() != [1.0, 1.0, 1.0]


def test_a_gradient_that_overflows_costs_one_step_and_halves_the_scale() -> None:
    scale = LossScale(CPU)
    parameter, optimizer = trained(scale)
    for factor, expected_scale in ((3e38, LossScale.INITIAL / 2), (2.0, LossScale.INITIAL / 2)):
        before = parameter.tolist()
        scale.scaled(loss_of(parameter, factor)).backward()  # type: ignore[no-untyped-call]  # torch does not annotate it
        norm = optimizer.step()
        assert (parameter.tolist() == before) == (factor == 3e38)
        assert bool(norm.isfinite()) == (factor == 2.0)
        assert scale.scale.item() == expected_scale
    assert scale.readings() == {"final_scale": LossScale.INITIAL / 2, "skipped_steps": 1.0}
    assert all(torch.isfinite(parameter))


def test_after_long_enough_the_scale_doubles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LossScale, "INTERVAL", 3)
    scale = LossScale(CPU)
    parameter, optimizer = trained(scale)
    seen = []
    for _ in range(4):
        scale.scaled(loss_of(parameter, 2.0)).backward()  # type: ignore[no-untyped-call]  # torch does not annotate it
        optimizer.step()
        seen.append(scale.scale.item() / LossScale.INITIAL)
    assert seen == [1.0, 1.0, 2.0, 2.0]


def test_only_fp16_has_a_scale() -> None:
    scaled = [made for made in Precision if LossScale.of(cell(precision=made), CPU) is not None]
    assert scaled == [Precision.FP16]


H100, A100, V100 = ("NVIDIA H100 80GB HBM3", (9, 0)), ("NVIDIA A100-SXM4-80GB", (8, 0)), ("Tesla V100", (7, 0))
ADA = ("NVIDIA L40S", (8, 9))


@pytest.mark.parametrize(
    ("precision", "device", "needed"),
    [
        (Precision.FLOAT8, A100, "8.9"),
        (Precision.MXFP8, H100, "10.0"),
        (Precision.BF16, V100, "8.0"),
    ],
)
def test_a_device_that_does_not_know_the_format_is_refused_by_name(
    precision: Precision, device: tuple[str, tuple[int, int]], needed: str
) -> None:
    with pytest.raises(Refusal) as refused:
        check(cell(precision=precision), [H100 if precision is not Precision.MXFP8 else device, device])
    for word in (f"precision={precision}", f"compute capability {needed}", device[0]):
        assert word in str(refused.value)


@pytest.mark.parametrize(
    ("precision", "device"),
    [(Precision.FP16, V100), (Precision.BF16, A100), (Precision.FLOAT8, ADA), (Precision.FP32, V100)],
)
def test_a_device_that_knows_it_is_not(
    precision: Precision, device: tuple[str, tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    check(cell(precision=precision, model=EVEN), [device])


def test_float8_without_torchao_is_refused_with_the_extra_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Refusal, match="extra `float8`"):
        check(float8(), [H100])


def test_the_recipe_is_one_of_two_words() -> None:
    with pytest.raises(ValueError, match="Give tensorwise or rowwise"):
        TrainerSettings(float8_recipe="blockwise")


def float8(gpus: int = 1, **changes: object) -> Cell:
    return cell(gpus=gpus, model=EVEN, precision=Precision.FLOAT8, **changes)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise"])
def test_float8_converts_the_projections_of_blocks_and_nothing_else(recipe: str) -> None:
    pytest.importorskip("torchao")
    model = build_on_meta(EVEN, 32)
    names = [name for name, _ in model.named_parameters()]
    convert(model, float8(trainer={"float8_recipe": recipe}), is_sharded=False, is_emulated=True)
    converted = {name for name, module in model.named_modules() if type(module).__name__ == "Float8Linear"}
    assert len(converted) == 7 * EVEN.n_layers
    assert all(name.startswith("blocks.") for name in converted)
    assert [name for name, _ in model.named_parameters()] == names


@pytest.mark.torchrun
def test_float8_trains_by_emulation_under_every_kind_of_layout(tmp_path: Path) -> None:
    pytest.importorskip("torchao")
    alone = {
        "fp32": cell(model=EVEN),
        "tensorwise": float8(),
        "rowwise": float8(trainer={"float8_recipe": "rowwise"}),
        "tensorwise compiled": float8(compile=True),
        **{
            f"rowwise compiled, {kept} checkpointing": float8(
                compile=True, trainer={"float8_recipe": "rowwise"}, activation_checkpointing=kept
            )
            for kept in (Checkpointing.FULL, Checkpointing.SELECTIVE)
        },
    }
    pipeline = {"parallelism": Parallelism(pp=2, schedule=Schedule.ONE_F_ONE_B), "micro_batch": 2}
    v_shaped = {**pipeline, "parallelism": Parallelism(pp=2, schedule=Schedule.ZBV, virtual_stages=2)}
    rowwise = {"float8_recipe": "rowwise"}
    two = {
        "rowwise fsdp": float8(2, trainer=rowwise),
        "rowwise tp": float8(2, trainer=rowwise, parallelism=Parallelism(tp=2)),
        "tensorwise fsdp, gathered as float8": float8(2),
        "tensorwise ddp": float8(2, parallelism=Parallelism(dp_replicate=2)),
        "tensorwise tp": float8(2, parallelism=Parallelism(tp=2)),
        "tensorwise pp": float8(2, **pipeline),
        "rowwise pp, backward pass in two parts": float8(2, trainer=rowwise, **v_shaped),
    }
    shown: dict[str, Shown] = {}
    for n_ranks, cells in ((1, alone), (2, two)):
        shown |= run_layouts(tmp_path, n_ranks, cells)
    for name in shown.keys() - {"fp32"}:
        assert shown[name].losses == pytest.approx(shown["fp32"].losses, rel=6e-3), name
        assert shown[name].losses[0] == pytest.approx(shown["fp32"].losses[0], rel=2e-4), name
        assert shown[name].losses != shown["fp32"].losses
    # Compiled as far as inductor's input nothing is fused, but the rotation differs in its last bit; rounding to eight
    # bits makes more of it.
    compiled, plain = shown["tensorwise compiled"].losses, shown["tensorwise"].losses
    assert compiled[0] == pytest.approx(plain[0], rel=5e-5)
    assert compiled == pytest.approx(plain, rel=6e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "asked", "expected"),
    [("rowwise", False, True), ("tensorwise", False, False), ("tensorwise", True, True)],
)
def test_compiled_blocks_round_where_the_code_does_where_a_row_has_a_scale_or_the_user_asks_for_it(
    recipe: str, asked: bool, expected: bool
) -> None:
    pytest.importorskip("torchao")
    made = float8(compile=True, trainer={"float8_recipe": recipe})
    with torch._inductor.config.patch(emulate_precision_casts=asked):
        parallelize(made, None, torch.device("cpu"))
        assert precision_casts_are_kept() is expected
    assert keeps_casts(made) is (recipe == "rowwise")
    assert not keeps_casts(float8(trainer={"float8_recipe": "rowwise"}))


@pytest.mark.slow
def test_the_scales_of_all_stages_are_one_reduction_a_step() -> None:
    pytest.importorskip("torchao")
    layout = Parallelism(dp_shard=2, pp=2, schedule=Schedule.INTERLEAVED_1F1B, virtual_stages=2)
    found = examine(float8(4, parallelism=layout, micro_batch=1))
    assert found.problem == ""
    assert [item.count for item in found.collectives if (item.op, item.group) == ("all_reduce", "dp_shard")] == [1]


@pytest.mark.slow
def test_with_one_scale_for_a_tensor_fsdp_gathers_float8() -> None:
    pytest.importorskip("torchao")
    gathered = {}
    for recipe in ("tensorwise", "rowwise"):
        found = examine(float8(8, trainer={"float8_recipe": recipe}))
        assert found.problem == ""
        gathered[recipe] = sum(item.bytes for item in found.collectives if item.op == "all_gather")
    n_converted = EVEN.n_layers * (EVEN.n_layer_params - 2 * EVEN.hidden)
    # A byte less for each of the blocks' weights than bf16 takes.
    assert gathered["rowwise"] - gathered["tensorwise"] == n_converted
