"""MXFP8 by emulation: the same starting weights as ever, every kind of layout, the preflight of a GPU's cell.

Tolerances over five steps, relative: a value has a mantissa of 3 bits, and a block of 32 shares its scale. Seen against
fp32: the first two losses within 5e-4, all five within 1.7e-2 (what gradients lose adds up). Layouts differ from one
process as their blocks of tokens do (seen, on two kinds of CPU: 3e-3 and 5.2e-3 of the loss).
"""

from __future__ import annotations

import dataclasses
import importlib.util
import re
from typing import Any

import pytest
import torch

from sweep.core.cells.cell import Cell, Checkpointing, Precision
from sweep.core.cells.parallelism import Parallelism, Schedule
from sweep.core.cells.rules import violations
from tests.trainer.cells import cell
from tests.trainer.models import WIDE
from tests.trainer.parity import Shown, run_layouts
from tests.trainer.preflights import examine
from trainer.model import mxfp8
from trainer.model.decoder import build_on_meta
from trainer.model.precision import check, convert
from trainer.process.refusal import Refusal

B200, H100 = ("NVIDIA B200", (10, 0)), ("NVIDIA H100 80GB HBM3", (9, 0))


def mx(gpus: int = 1, **changes: Any) -> Cell:
    return cell(gpus=gpus, model=WIDE, precision=Precision.MXFP8, **changes)


ONE = {
    "fp32": cell(model=WIDE),
    "mxfp8": mx(),
    "mxfp8 checkpointed": mx(activation_checkpointing=Checkpointing.SELECTIVE),
    "mxfp8 compiled": mx(compile=True),
}
TWO = {
    "fsdp": mx(2),
    "fsdp resharded, accumulated": mx(2, reshard_after_forward=True, micro_batch=2),
    "ddp": mx(2, parallelism=Parallelism(dp_replicate=2)),
    "tp": mx(2, parallelism=Parallelism(tp=2)),
    "tp without sequence parallelism": mx(2, parallelism=Parallelism(tp=2, sequence_parallel=False)),
    "cp": mx(2, parallelism=Parallelism(cp=2)),
    "pp": mx(2, parallelism=Parallelism(pp=2, schedule=Schedule.ONE_F_ONE_B), micro_batch=2),
}


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Shown]:
    pytest.importorskip(mxfp8.MODULE)
    folder = tmp_path_factory.mktemp("mxfp8")
    return run_layouts(folder, 1, ONE) | run_layouts(folder, 2, TWO)


@pytest.mark.torchrun
def test_starting_weights_are_those_of_every_other_format(shown: dict[str, Shown]) -> None:
    assert {name: found.start for name, found in shown.items()} == dict.fromkeys(shown, shown["fp32"].start)


def close(one: Shown, other: Shown, *, first: float, second: float, last: float, norm: float) -> None:
    """The same training, relatively: losses of the first step, the second and all, and the first gradient's norm.

    From step to step rounding to eight bits makes more of every last bit, on each kind of CPU differently.
    """
    assert one.losses[0] == pytest.approx(other.losses[0], rel=first)
    assert one.grad_norms[0] == pytest.approx(other.grad_norms[0], rel=norm)
    assert one.losses[1] == pytest.approx(other.losses[1], rel=second)
    assert one.losses == pytest.approx(other.losses, rel=last)


@pytest.mark.torchrun
def test_mxfp8_trains_as_fp32_does_within_its_rounding(shown: dict[str, Shown]) -> None:
    for name in shown.keys() - {"fp32"}:
        assert shown[name].formats == ["torch.bfloat16"], name
        close(shown[name], shown["fp32"], first=2e-4, second=5e-4, last=2e-2, norm=5e-3)
        assert shown[name].grad_norms[1] == pytest.approx(shown["fp32"].grad_norms[1], rel=5e-3), name


@pytest.mark.torchrun
def test_layouts_train_as_one_process_does(shown: dict[str, Shown]) -> None:
    for name in TWO:
        close(shown[name], shown["mxfp8"], first=5e-5, second=2e-3, last=1e-2, norm=1e-3)
    # Compiled, the rotation differs in its last bit.
    close(shown["mxfp8 compiled"], shown["mxfp8"], first=5e-5, second=2e-3, last=5e-3, norm=1e-3)
    assert shown["mxfp8 checkpointed"].losses == shown["mxfp8"].losses


def test_projections_of_blocks_are_converted_and_parameters_stay_what_they_are() -> None:
    pytest.importorskip(mxfp8.MODULE)
    model = build_on_meta(WIDE, 32)
    before = dict(model.named_parameters())
    convert(model, mx(), is_sharded=False, is_emulated=True)
    converted = [name for name, module in model.named_modules() if isinstance(module, mxfp8.MXFP8Linear)]
    assert len(converted) == 7 * WIDE.n_layers
    assert all(name.startswith("blocks.") for name in converted)
    after = dict(model.named_parameters())
    assert list(after) == list(before)
    assert all(after[name] is before[name] for name in before)


def test_values_are_rounded_in_all_three_products() -> None:
    pytest.importorskip(mxfp8.MODULE)
    product = mxfp8._product(is_emulated=True)
    generator = torch.Generator().manual_seed(1)
    x, weight, along = (torch.randn(size, generator=generator) for size in ((64, 32), (96, 32), (64, 96)))
    exact = (x @ weight.T, along @ weight, along.T @ x)
    x.requires_grad_()
    weight.requires_grad_()
    result = product(x, weight)
    result.backward(along)  # type: ignore[no-untyped-call]  # torch does not annotate it
    for rounded, true in zip((result, x.grad, weight.grad), exact, strict=True):
        assert rounded is not None
        difference = float((rounded - true).detach().norm() / true.norm())
        assert 1e-2 < difference < 6e-2


def test_a_gpu_that_has_it_is_let_through_and_one_that_has_not_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trainer.model.precision.has_mxfp8_kernels", lambda: True)
    check(mx(), [B200])
    with pytest.raises(Refusal, match=r"needs compute capability 10\.0 or more; NVIDIA H100 80GB HBM3 has 9\.0"):
        check(mx(), [B200, H100])


def test_a_torch_for_which_torchao_has_no_kernels_is_refused_and_not_found_out_in_the_backward_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernels = pytest.importorskip("torchao.prototype.mx_formats.kernels")
    assert kernels._mxfp8_cuda_kernels_available in (True, False)
    monkeypatch.setattr(kernels, "_mxfp8_cuda_kernels_available", False)
    with pytest.raises(Refusal, match=f"mxfp8 needs torchao's kernels.*; torch here is {re.escape(torch.__version__)}"):
        check(mx(), [B200])
    monkeypatch.setattr(kernels, "_mxfp8_cuda_kernels_available", True)
    check(mx(), [B200])


def no_torchao(name: str) -> None:
    raise ModuleNotFoundError(name)


@pytest.mark.parametrize("find", [no_torchao, lambda name: None], ids=["no torchao", "an old one"])
def test_without_torchao_or_with_an_old_one_it_is_refused(find: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", find)
    with pytest.raises(Refusal, match=f"precision=mxfp8 needs {mxfp8.MODULE}, which is not installed here"):
        check(mx(), [B200])


@pytest.mark.slow
def test_a_cell_of_thousands_of_ranks_is_examined_in_it() -> None:
    pytest.importorskip(mxfp8.MODULE)
    many = mx(2048, nodes=256, device="b200-180gb", global_batch=2048, micro_batch=1)
    assert violations(many) == []
    found = examine(many, rank=2047, is_cuda=True)
    assert found.problem == ""
    assert "mxfp8: products are emulated, which takes more for a moment" in found.notes


FIVE_DIMENSIONS = Parallelism(dp_replicate=2, dp_shard=2, cp=2, tp=2, pp=2, schedule=Schedule.ONE_F_ONE_B)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["mxfp8", "tensorwise", "rowwise"])
def test_with_all_dimensions_at_once_the_rules_let_it_through_and_the_trainer_builds_and_steps_it(recipe: str) -> None:
    pytest.importorskip(mxfp8.MODULE)
    made = mx(
        32,
        device="b200-180gb",
        parallelism=FIVE_DIMENSIONS,
        micro_batch=1,
        seq_len=64,
        activation_checkpointing=Checkpointing.SELECTIVE,
        reshard_after_forward=True,
    )
    if recipe != "mxfp8":
        settings = dataclasses.replace(made.trainer, float8_recipe=recipe)
        made = dataclasses.replace(made, precision=Precision.FLOAT8, trainer=settings)
    assert violations(made) == []
    assert examine(made, rank=31, is_cuda=True).problem == ""
