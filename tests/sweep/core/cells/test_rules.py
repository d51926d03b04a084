from __future__ import annotations

from dataclasses import replace

import pytest

from sweep.core.cells.cell import Cell, Checkpointing, Precision
from sweep.core.cells.parallelism import Parallelism, Schedule
from sweep.core.cells.rules import RULES, Violation, first_violation, violations
from tests.sweep.core.cell_factory import CELL, SHAPE


def cell(*, model: dict[str, int] | None = None, **changes: object) -> Cell:
    """The cell above with another layout (given flat) or other fields."""
    layout = {name: changes.pop(name) for name in list(changes) if name in Parallelism.__dataclass_fields__}
    shape = replace(SHAPE, **(model or {}))  # type: ignore[arg-type]  # whole numbers only
    fields = {"parallelism": Parallelism(**layout)} if layout else {}  # type: ignore[arg-type]
    return replace(CELL, model=shape, **fields, **changes)  # type: ignore[arg-type]


PIPELINE = {"dp_shard": 4, "pp": 4, "schedule": Schedule.ONE_F_ONE_B, "micro_batch": 1}

KEPT = {
    "world_size": [cell(), cell(dp_replicate=16), cell(dp_shard=2, tp=2, pp=2, cp=2)],
    "heads_by_tp": [cell(), cell(tp=8), cell(tp=3)],
    "kv_heads_by_tp": [cell(), cell(tp=4)],
    "ffn_by_tp": [cell(), cell(tp=8)],
    "vocab_by_tp": [cell(), cell(tp=8)],
    "layers_by_pp": [cell(), cell(pp=12), cell(pp=6, virtual_stages=2), cell(pp=8)],
    "sequence_by_cp_tp": [
        cell(),
        cell(seq_len=1024, cp=8),
        cell(seq_len=24, cp=2, tp=6),
        cell(seq_len=9, tp=3),
        cell(seq_len=12, cp=2, tp=4, sequence_parallel=False),
    ],
    "schedule_by_pp": [
        cell(),
        cell(pp=2, schedule=Schedule.GPIPE),
        cell(pp=2, schedule=Schedule.ONE_F_ONE_B),
        cell(pp=2, schedule=Schedule.INTERLEAVED_1F1B, virtual_stages=3),
        cell(pp=2, schedule=Schedule.ZBV, virtual_stages=2),
        cell(pp=2, schedule=Schedule.INTERLEAVED_ZERO_BUBBLE, virtual_stages=2),
    ],
    "batch_by_data_ranks": [cell(), cell(dp_replicate=4, dp_shard=4), cell(dp_shard=2, tp=8)],
    # Where another rule is broken already, this one has nothing to add.
    "batch_by_micro_batch": [cell(), cell(micro_batch=1), cell(global_batch=24, micro_batch=2)],
    "micro_batches_by_pp": [
        cell(**PIPELINE),
        cell(**{**PIPELINE, "schedule": Schedule.INTERLEAVED_1F1B}, virtual_stages=2),
        # torch takes 6 micro-batches over 4 ranks in one round of 6.
        cell(**{**PIPELINE, "schedule": Schedule.INTERLEAVED_1F1B, "global_batch": 24}, virtual_stages=2),
        cell(**{**PIPELINE, "global_batch": 36}),
        cell(**{**PIPELINE, "global_batch": 33}),
        cell(micro_batch=2),
    ],
    "split_backward": [
        cell(compile=True, activation_checkpointing=Checkpointing.SELECTIVE),
        cell(pp=2, schedule=Schedule.INTERLEAVED_1F1B, virtual_stages=2, compile=True),
        cell(pp=2, schedule=Schedule.ZBV, virtual_stages=2, activation_checkpointing=Checkpointing.FULL),
        cell(dp_shard=8, pp=2, schedule=Schedule.INTERLEAVED_1F1B, virtual_stages=2, reshard_after_forward=True),
        cell(dp_shard=8, pp=2, schedule=Schedule.INTERLEAVED_ZERO_BUBBLE, virtual_stages=3),
        cell(
            dp_shard=1, pp=16, schedule=Schedule.INTERLEAVED_ZERO_BUBBLE, virtual_stages=3, reshard_after_forward=True
        ),
    ],
    "async_tp": [cell(), cell(dp_shard=8, tp=2, async_tp=True, compile=True)],
    "precision_by_device": [
        cell(precision=Precision.FLOAT8),
        cell(device="cpu", precision=Precision.FP32),
        cell(device="cpu"),
    ],
    "matrix_sizes": [
        cell(),
        cell(model={"n_heads": 12, "hidden": 120, "ffn_hidden": 961}),
        cell(precision=Precision.FLOAT8),
        cell(precision=Precision.FLOAT8, tp=4),
        cell(precision=Precision.MXFP8),
        cell(precision=Precision.MXFP8, cp=2, seq_len=64, micro_batch=1),
    ],
}

BROKEN = {
    "world_size": [
        (cell(tp=8, pp=2, nodes=1), "tp=8 x pp=2 needs 16 GPUs; the cell has 8 (1 node x 8). Change a degree"),
        (cell(dp_shard=1), "dp_shard=1 needs 1 GPU; the cell has 16 (2 nodes x 8)"),
    ],
    "heads_by_tp": [(cell(tp=16), "m has n_heads=24, which does not divide by tp=16. Choose a tp that divides 24")],
    "kv_heads_by_tp": [(cell(tp=8), "m has n_kv_heads=12, which does not divide by tp=8")],
    "ffn_by_tp": [(cell(model={"ffn_hidden": 961}, tp=2), "m has ffn_hidden=961, which does not divide by tp=2")],
    "vocab_by_tp": [(cell(model={"vocab_size": 4801}, tp=2), "m has vocab_size=4801, which does not divide by tp=2")],
    "layers_by_pp": [
        (cell(pp=16), "m has 12 layers for 16 pipeline stages (pp=16 x virtual_stages=1). Every stage needs a layer"),
        (cell(pp=8, virtual_stages=2), "12 layers for 16 pipeline stages (pp=8 x virtual_stages=2)"),
    ],
    "sequence_by_cp_tp": [
        (cell(seq_len=4100, cp=2, tp=2), "seq_len=4100 does not divide by 2 x cp x tp=8. Choose a multiple of 8"),
        (cell(seq_len=4095, tp=2), "seq_len=4095 does not divide by tp=2"),
    ],
    "schedule_by_pp": [
        (cell(pp=2), "pp=2 needs a schedule. Choose one of gpipe, 1f1b"),
        (cell(schedule=Schedule.GPIPE), "schedule=gpipe with virtual_stages=1 means nothing at pp=1. Leave both"),
        (cell(virtual_stages=2), "schedule=None with virtual_stages=2 means nothing at pp=1"),
        (cell(pp=2, schedule=Schedule.GPIPE, virtual_stages=2), "gpipe runs exactly 1 stage(s) a rank, not virtual_s"),
        (cell(pp=2, schedule=Schedule.ONE_F_ONE_B, virtual_stages=2), "1f1b runs exactly 1 stage(s) a rank"),
        (cell(pp=2, schedule=Schedule.INTERLEAVED_1F1B), "interleaved_1f1b runs 2 or more stage(s) a rank"),
        (cell(pp=2, schedule=Schedule.ZBV, virtual_stages=3), "zbv runs exactly 2 stage(s) a rank"),
        (cell(pp=2, schedule=Schedule.INTERLEAVED_ZERO_BUBBLE), "interleaved_zero_bubble runs 2 or more"),
    ],
    "batch_by_data_ranks": [
        (
            cell(global_batch=24),
            "global_batch=24 does not divide over 16 data-parallel ranks (dp_replicate=1 x dp_shard=16). "
            "Choose a multiple of 16",
        ),
    ],
    "batch_by_micro_batch": [
        (
            cell(global_batch=48, micro_batch=2),
            "3 sequences a data-parallel rank do not divide by micro_batch=2. Choose a micro_batch that divides 3",
        ),
    ],
    "micro_batches_by_pp": [
        (cell(**PIPELINE, global_batch=8), "2 micro-batches cannot fill a pipeline of pp=4. Raise the batch"),
        (
            cell(**{**PIPELINE, "schedule": Schedule.INTERLEAVED_1F1B, "global_batch": 36}, virtual_stages=2),
            "interleaved_1f1b at pp=4 runs its 9 micro-batches in 2 rounds, which does not divide. Choose a batch",
        ),
    ],
    "split_backward": [
        (cell(pp=2, schedule=Schedule.ZBV, virtual_stages=2, compile=True), "zbv splits the backward pass, which a c"),
        (
            cell(
                pp=2,
                schedule=Schedule.INTERLEAVED_ZERO_BUBBLE,
                virtual_stages=2,
                activation_checkpointing=Checkpointing.SELECTIVE,
            ),
            "what selective checkpointing kept is used up after the first part. Choose",
        ),
        (
            cell(dp_shard=8, pp=2, schedule=Schedule.ZBV, virtual_stages=2, reshard_after_forward=True),
            "torch 2.13 frees gathered parameters between its two parts: gradients would be wrong. Set",
        ),
        (
            cell(
                dp_shard=4,
                cp=2,
                pp=2,
                schedule=Schedule.INTERLEAVED_ZERO_BUBBLE,
                virtual_stages=2,
                reshard_after_forward=True,
            ),
            "interleaved_zero_bubble splits the backward pass, and torch 2.13 frees",
        ),
    ],
    "async_tp": [
        (cell(device="cpu", dp_shard=8, tp=2, async_tp=True, compile=True), "async_tp at tp=2 on 8 x cpu a node: it"),
        (cell(dp_shard=1, tp=16, async_tp=True, compile=True), "async_tp at tp=16 on 8 x h100 a node"),
        # The second group of four has two GPUs on either node.
        (
            cell(nodes=2, gpus_per_node=6, dp_shard=3, tp=4, async_tp=True, compile=True),
            "async_tp at tp=4 on 6 x h100 a node",
        ),
        (
            cell(dp_shard=8, tp=2, async_tp=True, compile=True, precision=Precision.MXFP8),
            "async_tp with precision=mxfp8: torch",
        ),
        (cell(async_tp=True), "async_tp at tp=1, sequence_parallel=True, compile=False"),
        (cell(tp=2, async_tp=True), "Set tp > 1, sequence_parallel, compile"),
        (cell(tp=2, async_tp=True, sequence_parallel=False, compile=True), "sequence_parallel=False"),
    ],
    "precision_by_device": [
        (cell(device="cpu", precision=precision), f"precision={precision} does not run on a CPU. Choose fp32 or bf16")
        for precision in (Precision.FLOAT8, Precision.MXFP8, Precision.FP16)
    ],
    "matrix_sizes": [
        (cell(precision=Precision.FLOAT8, tp=8), "m has kv_hidden=24 a rank at tp=8"),
        (cell(precision=Precision.FLOAT8, model={"n_heads": 12, "hidden": 120}), "m has hidden=120 a rank at tp=1"),
        (cell(precision=Precision.FLOAT8, model={"ffn_hidden": 961}), "m has ffn_hidden=961 a rank at tp=1"),
        (cell(precision=Precision.MXFP8, tp=4), "mxfp8 multiplies multiples of 32; m has kv_hidden=48 a rank at tp=4"),
        (
            cell(precision=Precision.MXFP8, cp=4, seq_len=120, micro_batch=1),
            "micro_batch=1 x seq_len=120 over cp=4 is 30 tokens. Change one of them",
        ),
        (cell(precision=Precision.FLOAT8, seq_len=31, micro_batch=1), "micro_batch=1 x seq_len=31 over cp=1 is 31"),
    ],
}


def test_every_rule_of_the_book_is_shown_kept_and_broken() -> None:
    assert set(KEPT) == set(BROKEN) == set(RULES)


@pytest.mark.parametrize(("rule", "kept"), [(rule, kept) for rule, cells in KEPT.items() for kept in cells])
def test_a_cell_that_keeps_a_rule_is_not_blamed(rule: str, kept: Cell) -> None:
    assert RULES[rule](kept) is None


@pytest.mark.parametrize(("rule", "case"), [(rule, case) for rule, cases in BROKEN.items() for case in cases])
def test_a_cell_that_breaks_a_rule_hears_what_is_true_and_what_to_change(rule: str, case: tuple[Cell, str]) -> None:
    broken, words = case
    reason = RULES[rule](broken)
    assert reason is not None
    assert words in reason
    assert Violation(rule=rule, reason=reason) in violations(broken)


@pytest.mark.parametrize("rule", RULES)
def test_every_reason_ends_in_what_to_change(rule: str) -> None:
    for broken, _ in BROKEN[rule]:
        last = str(RULES[rule](broken)).rstrip(".").rsplit(". ", 1)[-1].rsplit(": ", 1)[-1]
        assert last.split()[0].lower() in {"change", "choose", "lower", "leave", "raise", "set"}, last


def test_a_cell_that_can_run_breaks_no_rule() -> None:
    assert first_violation(CELL) is None
    assert violations(CELL) == []


def test_a_rejection_names_the_first_rule_in_the_order_of_the_book() -> None:
    broken = cell(tp=16, seq_len=4095, global_batch=7)
    found = violations(broken)
    assert [item.rule for item in found] == [rule for rule in RULES if rule in {item.rule for item in found}]
    assert len(found) > 2
    assert first_violation(broken) == found[0]


def test_layers_need_not_divide_over_the_stages() -> None:
    # Llama-3 405B has 126 layers and is trained over 16 stages.
    assert RULES["layers_by_pp"](cell(model={"n_layers": 126}, pp=16)) is None
