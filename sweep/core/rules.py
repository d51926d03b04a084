"""The one rule book: what makes a cell impossible, for the grid that enumerates cells and the trainer that runs them.

Each rule looks at one cell and answers with the reason why it cannot run, or None. Nothing is rounded or repaired.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sweep.core.cell import Checkpointing, Precision, Schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sweep.core.cell import Cell


@dataclass(frozen=True, kw_only=True, slots=True)
class Violation:
    """A rule that a cell breaks, and why, in words that say what to change."""

    rule: str
    reason: str


class RuleError(ValueError):
    """A combination of axis values cannot be a cell."""

    def __init__(self, violation: Violation) -> None:
        """Carry the violated rule along with the message."""
        super().__init__(f"{violation.rule}: {violation.reason}")
        self.violation = violation


def _world_size(cell: Cell) -> str | None:
    wanted = cell.parallelism.world_size
    if wanted == cell.gpus:
        return None
    shape = f"{cell.nodes} node{'s' if cell.nodes > 1 else ''} x {cell.gpus_per_node}"
    return (
        f"{cell.parallelism.equation()} needs {wanted} GPU{'s' if wanted > 1 else ''}; the cell has {cell.gpus} "
        f"({shape}). Change a degree or the nodes, or make one degree auto."
    )


def _divides(cell: Cell, what: str, size: int) -> str | None:
    tp_degree = cell.parallelism.tp
    if size % tp_degree == 0:
        return None
    return (
        f"{cell.model.name} has {what}={size}, which does not divide by tp={tp_degree}. "
        f"Choose a tp that divides {size}."
    )


def _heads_by_tp(cell: Cell) -> str | None:
    return _divides(cell, "n_heads", cell.model.n_heads)


def _kv_heads_by_tp(cell: Cell) -> str | None:
    return _divides(cell, "n_kv_heads", cell.model.n_kv_heads)


def _ffn_by_tp(cell: Cell) -> str | None:
    return _divides(cell, "ffn_hidden", cell.model.ffn_hidden)


def _vocab_by_tp(cell: Cell) -> str | None:
    return _divides(cell, "vocab_size", cell.model.vocab_size)


def _layers_by_pp(cell: Cell) -> str | None:
    stages = cell.parallelism.pp * cell.parallelism.virtual_stages
    if cell.model.n_layers >= stages:
        return None
    return (
        f"{cell.model.name} has {cell.model.n_layers} layers for {stages} pipeline stages (pp={cell.parallelism.pp} x "
        f"virtual_stages={cell.parallelism.virtual_stages}). Every stage needs a layer: lower pp or virtual_stages."
    )


def _sequence_by_cp_tp(cell: Cell) -> str | None:
    layout = cell.parallelism
    # Head-tail load balancing cuts the sequence into 2*cp pieces; sequence parallelism cuts each of them by tp.
    divisor, shown = (2 * layout.cp * layout.tp, "2 x cp x tp") if layout.cp > 1 else (layout.tp, "tp")
    if cell.seq_len % divisor == 0:
        return None
    return f"seq_len={cell.seq_len} does not divide by {shown}={divisor}. Choose a multiple of {divisor}."


def _batch_by_data_ranks(cell: Cell) -> str | None:
    ranks = cell.parallelism.data_ranks
    if cell.global_batch % ranks == 0:
        return None
    return (
        f"global_batch={cell.global_batch} does not divide over {ranks} data-parallel ranks "
        f"(dp_replicate={cell.parallelism.dp_replicate} x dp_shard={cell.parallelism.dp_shard}). "
        f"Choose a multiple of {ranks}, or give more ranks to tp, pp or cp."
    )


def _batch_by_micro_batch(cell: Cell) -> str | None:
    share = cell.sequences_per_data_rank
    if share.denominator != 1 or share.numerator % cell.micro_batch == 0:
        return None
    return (
        f"{share} sequences a data-parallel rank do not divide by micro_batch={cell.micro_batch}. "
        f"Choose a micro_batch that divides {share}."
    )


def _micro_batches_by_pp(cell: Cell) -> str | None:
    count, layout = cell.grad_accum, cell.parallelism
    if layout.pp == 1 or count.denominator != 1:
        return None
    if count < layout.pp:
        return (
            f"{count} micro-batches cannot fill a pipeline of pp={layout.pp}. "
            "Raise the batch, or lower micro_batch or pp."
        )
    if layout.schedule in (Schedule.INTERLEAVED_1F1B, Schedule.INTERLEAVED_ZERO_BUBBLE) and count % layout.pp:
        return f"{layout.schedule} needs its {count} micro-batches to be a multiple of pp={layout.pp}."
    return None


_STAGES_OF_SCHEDULE: Mapping[Schedule, Callable[[int], bool]] = {
    Schedule.GPIPE: lambda stages: stages == 1,
    Schedule.ONE_F_ONE_B: lambda stages: stages == 1,
    Schedule.INTERLEAVED_1F1B: lambda stages: stages > 1,
    Schedule.ZBV: lambda stages: stages == 2,
    Schedule.INTERLEAVED_ZERO_BUBBLE: lambda stages: stages > 1,
}
_STAGES_IN_WORDS = {
    Schedule.GPIPE: "exactly 1",
    Schedule.ONE_F_ONE_B: "exactly 1",
    Schedule.INTERLEAVED_1F1B: "2 or more",
    Schedule.ZBV: "exactly 2",
    Schedule.INTERLEAVED_ZERO_BUBBLE: "2 or more",
}


def _schedule_by_pp(cell: Cell) -> str | None:
    layout = cell.parallelism
    if layout.pp == 1:
        if layout.schedule is None and layout.virtual_stages == 1:
            return None
        return (
            f"schedule={layout.schedule} with virtual_stages={layout.virtual_stages} means nothing at pp=1. "
            "Leave both at their default, or raise pp."
        )
    if layout.schedule is None:
        return f"pp={layout.pp} needs a schedule. Choose one of {', '.join(Schedule)}."
    if _STAGES_OF_SCHEDULE[layout.schedule](layout.virtual_stages):
        return None
    return (
        f"{layout.schedule} runs {_STAGES_IN_WORDS[layout.schedule]} stage(s) a rank, "
        f"not virtual_stages={layout.virtual_stages}."
    )


def _async_tp(cell: Cell) -> str | None:
    layout = cell.parallelism
    if not layout.async_tp or (layout.tp > 1 and layout.sequence_parallel and cell.compile):
        return None
    return "async_tp overlaps the collectives of sequence-parallel tp in compiled blocks: it needs tp > 1 and compile."


def _precision_by_device(cell: Cell) -> str | None:
    if cell.device == "cpu" and cell.precision in (Precision.FLOAT8, Precision.MXFP8, Precision.FP16):
        return f"precision={cell.precision} does not run on a CPU. Choose fp32 or bf16."
    return None


# What the trainer of this version cannot do yet, checked last: a cell that is impossible anyway says why.
_NOT_YET: Mapping[str, Callable[[Cell], bool]] = {
    "tp > 1": lambda cell: cell.parallelism.tp > 1,
    "pp > 1": lambda cell: cell.parallelism.pp > 1,
    "cp > 1": lambda cell: cell.parallelism.cp > 1,
    "dp_replicate > 1 together with dp_shard > 1 (HSDP)": lambda cell: (
        cell.parallelism.dp_replicate > 1 and cell.parallelism.dp_shard > 1
    ),
    "precision fp16, float8 or mxfp8": lambda cell: cell.precision not in (Precision.FP32, Precision.BF16),
    "compile": lambda cell: cell.compile,
    "activation_checkpointing=selective": lambda cell: cell.activation_checkpointing is Checkpointing.SELECTIVE,
}


def _trainer_cannot_yet(cell: Cell) -> str | None:
    missing = [feature for feature, is_asked in _NOT_YET.items() if is_asked(cell)]
    if not missing:
        return None
    return f"the trainer of this version cannot run: {'; '.join(missing)}."


RULES: Mapping[str, Callable[[Cell], str | None]] = {
    "world_size": _world_size,
    "heads_by_tp": _heads_by_tp,
    "kv_heads_by_tp": _kv_heads_by_tp,
    "ffn_by_tp": _ffn_by_tp,
    "vocab_by_tp": _vocab_by_tp,
    "layers_by_pp": _layers_by_pp,
    "sequence_by_cp_tp": _sequence_by_cp_tp,
    "schedule_by_pp": _schedule_by_pp,
    "batch_by_data_ranks": _batch_by_data_ranks,
    "batch_by_micro_batch": _batch_by_micro_batch,
    "micro_batches_by_pp": _micro_batches_by_pp,
    "async_tp": _async_tp,
    "precision_by_device": _precision_by_device,
    "trainer_cannot_yet": _trainer_cannot_yet,
}


def violations(cell: Cell) -> list[Violation]:
    """Every rule that the cell breaks, in the order of the book."""
    found = []
    for name, rule in RULES.items():
        reason = rule(cell)
        if reason is not None:
            found.append(Violation(rule=name, reason=reason))
    return found


def first_violation(cell: Cell) -> Violation | None:
    """The first rule that the cell breaks; the one a rejection names."""
    for name, rule in RULES.items():
        reason = rule(cell)
        if reason is not None:
            return Violation(rule=name, reason=reason)
    return None
