"""Every layout of data parallelism against one process: the same starting weights, losses and gradient norms."""

from __future__ import annotations

import pytest

from sweep.core.cells.cell import Checkpointing, Precision
from sweep.core.cells.parallelism import Parallelism
from tests.trainer.cells import cell
from tests.trainer.parity import BF16_LOSS_TOLERANCE, BF16_NORM_TOLERANCE, FP32_TOLERANCE, Shown, run_layouts

pytestmark = pytest.mark.torchrun

ddp2 = Parallelism(dp_replicate=2)
hsdp = Parallelism(dp_replicate=2, dp_shard=2)
ONE = {
    "fp32": cell(),
    "fp32 accumulated": cell(micro_batch=2),
    "fp32 checkpointed": cell(activation_checkpointing=Checkpointing.FULL),
    "bf16": cell(precision=Precision.BF16),
}
TWO = {
    "ddp": cell(gpus=2, parallelism=ddp2),
    "ddp accumulated": cell(gpus=2, parallelism=ddp2, micro_batch=1),
    "ddp checkpointed": cell(gpus=2, parallelism=ddp2, activation_checkpointing=Checkpointing.FULL),
    "fsdp": cell(gpus=2),
    "fsdp resharded": cell(gpus=2, reshard_after_forward=True),
    "fsdp accumulated": cell(gpus=2, micro_batch=1),
    "fsdp accumulated resharded": cell(gpus=2, micro_batch=2, reshard_after_forward=True),
    "fsdp checkpointed": cell(gpus=2, activation_checkpointing=Checkpointing.FULL),
    "fsdp checkpointed resharded": cell(
        gpus=2, activation_checkpointing=Checkpointing.FULL, reshard_after_forward=True
    ),
    "ddp bf16": cell(gpus=2, parallelism=ddp2, precision=Precision.BF16),
    "fsdp bf16": cell(gpus=2, precision=Precision.BF16),
    "fsdp bf16 accumulated": cell(gpus=2, precision=Precision.BF16, micro_batch=1),
}
FOUR = {
    "ddp of 4": cell(gpus=4, parallelism=Parallelism(dp_replicate=4)),
    "fsdp of 4": cell(gpus=4, micro_batch=1, reshard_after_forward=True),
    "fsdp prefetched further": cell(gpus=4, trainer={"forward_prefetch": 3, "backward_prefetch": 2}),
    "fsdp not prefetched": cell(gpus=4, trainer={"forward_prefetch": 0, "backward_prefetch": 0}),
    "hsdp": cell(gpus=4, parallelism=hsdp),
    "hsdp bf16": cell(gpus=4, parallelism=hsdp, precision=Precision.BF16),
    "hsdp accumulated resharded": cell(gpus=4, parallelism=hsdp, micro_batch=1, reshard_after_forward=True),
}


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Shown]:
    folder = tmp_path_factory.mktemp("layouts")
    groups = {1: ONE, 2: TWO, 4: FOUR}
    return {
        name: result
        for n_ranks, cells in groups.items()
        for name, result in run_layouts(folder, n_ranks, cells).items()
    }


@pytest.mark.parametrize("name", [*ONE, *TWO, *FOUR])
def test_layout_starts_from_the_same_weights_bit_for_bit(name: str, shown: dict[str, Shown]) -> None:
    assert shown[name].start == shown["fp32"].start


@pytest.mark.parametrize("name", [name for name in [*ONE, *TWO, *FOUR] if "bf16" not in name])
def test_fp32_layout_trains_as_one_process_does(name: str, shown: dict[str, Shown]) -> None:
    expected = shown["fp32"]
    assert shown[name].losses == pytest.approx(expected.losses, rel=FP32_TOLERANCE)
    assert shown[name].grad_norms == pytest.approx(expected.grad_norms, rel=FP32_TOLERANCE)


@pytest.mark.parametrize("name", [name for name in [*ONE, *TWO, *FOUR] if "bf16" in name])
def test_bf16_layout_trains_as_one_fp32_process_does_within_its_rounding(name: str, shown: dict[str, Shown]) -> None:
    expected = shown["fp32"]
    assert shown[name].losses == pytest.approx(expected.losses, rel=BF16_LOSS_TOLERANCE)
    assert shown[name].grad_norms == pytest.approx(expected.grad_norms, rel=BF16_NORM_TOLERANCE)


@pytest.mark.parametrize("name", [name for name in [*TWO, *FOUR] if "bf16" in name])
def test_bf16_layouts_agree_with_bf16_on_one_process(name: str, shown: dict[str, Shown]) -> None:
    assert shown[name].losses == pytest.approx(shown["bf16"].losses, rel=2e-4)


@pytest.mark.parametrize("name", [*ONE, *TWO, *FOUR])
def test_layout_computes_in_the_format_that_was_asked_for(name: str, shown: dict[str, Shown]) -> None:
    assert shown[name].formats == ["torch.bfloat16" if "bf16" in name else "torch.float32"]


GROUPS = len(("embedding", "block 0", "block 1", "block 2", "norm and head"))
# All but norm and head are gathered again for the backward pass where they were freed.
FREED = GROUPS - 1


@pytest.mark.parametrize(
    ("name", "gathers_per_step"),
    [
        ("fsdp", GROUPS),
        ("fsdp resharded", GROUPS + FREED),
        ("fsdp accumulated", GROUPS),
        ("fsdp accumulated resharded", 2 * (GROUPS + FREED)),
        ("fsdp bf16 accumulated", GROUPS),
        ("fsdp prefetched further", GROUPS),
        ("fsdp not prefetched", GROUPS),
        ("hsdp", GROUPS),
        ("hsdp accumulated resharded", 2 * (GROUPS + FREED)),
    ],
)
def test_parameters_are_gathered_as_often_as_they_were_freed_and_gradients_reduced_once_a_step(
    name: str, gathers_per_step: int, shown: dict[str, Shown]
) -> None:
    assert shown[name].calls["gather"] == 5 * gathers_per_step
    assert shown[name].calls["reduce"] == 5 * GROUPS


@pytest.mark.parametrize("name", [*ONE, *TWO])
def test_a_checkpointed_block_runs_twice_a_step_and_any_other_once(name: str, shown: dict[str, Shown]) -> None:
    n_micro_batches = {**ONE, **TWO}[name].grad_accum
    passes = 2 if "checkpointed" in name else 1
    assert shown[name].calls["block"] == 5 * 3 * n_micro_batches * passes


def test_gradients_are_clipped_in_these_runs(shown: dict[str, Shown]) -> None:
    assert max(shown["fp32"].grad_norms) > 0.5
