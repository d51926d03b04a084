"""The one rule book: what makes a cell impossible, for the grid that enumerates cells and the trainer that runs them.

Each rule looks at one cell (some at its device's profile too) and answers with the reason why it cannot run, or None.
Nothing is rounded or repaired.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping

from sweep.core.cells.cell import Cell, Checkpointing, Precision
from sweep.core.cells.device import Device
from sweep.core.cells.formats import float8_gather, matrix_sizes, on_cpu, precision_by_capability
from sweep.core.cells.parallelism import Schedule
from sweep.core.encoding.frozen import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Violation:
    """A rule that a cell breaks, and why, in words that say what to change."""

    rule: str
    reason: str


def _world_size(cell: Cell) -> str | None:
    wanted = cell.parallelism.world_size
    if wanted == cell.gpus:
        return None
    shape = f"{cell.nodes} node{'s' if cell.nodes > 1 else ''} x {cell.gpus_per_node}"
    return (
        f"{cell.parallelism.equation()} needs {wanted} GPU{'s' if wanted > 1 else ''}; the cell has {cell.gpus} "
        f"({shape}). Change a degree or the nodes, or make one degree auto."
    )


def _by_tp(what: str) -> Callable[[Cell], str | None]:
    """The rule that a size of the model divides over the tensor-parallel ranks."""
    size_of = operator.attrgetter(what)

    def rule(cell: Cell) -> str | None:
        tp_degree, size = cell.parallelism.tp, size_of(cell.model)
        if size % tp_degree == 0:
            return None
        return (
            f"{cell.model.name} has {what}={size}, which does not divide by tp={tp_degree}. "
            f"Choose a tp that divides {size}."
        )

    return rule


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
    # Head-tail load balancing cuts the sequence into 2*cp pieces; sequence parallelism cuts what a rank holds by tp.
    by_tp = layout.tp if layout.sequence_parallel else 1
    divisor, shown = (2 * layout.cp * by_tp, "2 x cp x tp") if layout.cp > 1 else (by_tp, "tp")
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
    share, rest = divmod(cell.global_batch, cell.parallelism.data_ranks)
    if rest or share % cell.micro_batch == 0:
        return None
    return (
        f"{share} sequences a data-parallel rank do not divide by micro_batch={cell.micro_batch}. "
        f"Choose a micro_batch that divides {share}."
    )


def _micro_batches_by_pp(cell: Cell) -> str | None:
    layout = cell.parallelism
    if layout.pp == 1 or cell.grad_accum.denominator != 1:
        return None
    count = cell.grad_accum.numerator
    if count < layout.pp:
        return (
            f"{count} micro-batches cannot fill a pipeline of pp={layout.pp}. "
            "Raise the batch, or lower micro_batch or pp."
        )
    # As torch's interleaved schedules do: rounds of pp micro-batches or a few more each, all of one size.
    rounds = count // layout.pp
    if layout.schedule in (Schedule.INTERLEAVED_1F1B, Schedule.INTERLEAVED_ZERO_BUBBLE) and count % rounds:
        return (
            f"{layout.schedule} at pp={layout.pp} runs its {count} micro-batches in {rounds} rounds, which does not "
            f"divide. Choose a batch or micro_batch that makes them a multiple of pp={layout.pp}."
        )
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
        f"not virtual_stages={layout.virtual_stages}. Change one of the two."
    )


def _split_backward(cell: Cell) -> str | None:
    """Zero-bubble schedules run a backward pass in two parts, the second from what the first left of the graph."""
    layout = cell.parallelism
    if layout.schedule not in (Schedule.ZBV, Schedule.INTERLEAVED_ZERO_BUBBLE):
        return None
    if cell.compile:
        return f"{layout.schedule} splits the backward pass, which a compiled block cannot. Set compile to false."
    if cell.activation_checkpointing is Checkpointing.SELECTIVE:
        return (
            f"{layout.schedule} splits the backward pass, and what selective checkpointing kept is used up after the "
            "first part. Choose activation_checkpointing none or full."
        )
    # Seen on gloo: no error with two stages a rank, and a gradient norm that is off by 5 % from the first step on.
    if cell.reshard_after_forward and layout.dp_shard * layout.cp > 1:
        return (
            f"{layout.schedule} splits the backward pass, and torch 2.13 frees gathered parameters between its two "
            "parts: gradients would be wrong. Set reshard_after_forward to false, or choose another schedule."
        )
    return None


def _async_tp(cell: Cell) -> str | None:
    layout = cell.parallelism
    if not layout.async_tp:
        return None
    if not (layout.tp > 1 and layout.sequence_parallel and cell.compile):
        return (
            f"async_tp at tp={layout.tp}, sequence_parallel={layout.sequence_parallel}, compile={cell.compile}: it "
            "overlaps the collectives of sequence-parallel tp in compiled blocks. Set tp > 1, sequence_parallel, "
            "compile."
        )
    # Of tp's ranks, which follow each other, some cross to the next node unless tp divides a node's.
    if cell.device == "cpu" or cell.gpus_per_node % layout.tp:
        return (
            f"async_tp at tp={layout.tp} on {cell.gpus_per_node} x {cell.device} a node: it reads the memory of the "
            "other GPUs of its node. Choose GPUs and a tp that divides those of a node, or leave async_tp out."
        )
    if cell.precision is Precision.MXFP8:
        return (
            "async_tp with precision=mxfp8: torch 2.13 overlaps products with one scale for a tensor or a row, not for "
            "blocks of 32. Leave async_tp out, or choose another precision."
        )
    return None


def _precision_by_device(cell: Cell) -> str | None:
    return on_cpu(cell.precision) if cell.device == "cpu" else None


RULES: Mapping[str, Callable[[Cell], str | None]] = {
    "world_size": _world_size,
    "heads_by_tp": _by_tp("n_heads"),
    "kv_heads_by_tp": _by_tp("n_kv_heads"),
    "ffn_by_tp": _by_tp("ffn_hidden"),
    "vocab_by_tp": _by_tp("vocab_size"),
    "layers_by_pp": _layers_by_pp,
    "sequence_by_cp_tp": _sequence_by_cp_tp,
    "schedule_by_pp": _schedule_by_pp,
    "batch_by_data_ranks": _batch_by_data_ranks,
    "batch_by_micro_batch": _batch_by_micro_batch,
    "micro_batches_by_pp": _micro_batches_by_pp,
    "split_backward": _split_backward,
    "async_tp": _async_tp,
    "precision_by_device": _precision_by_device,
    "matrix_sizes": matrix_sizes,
}
DEVICE_RULES: Mapping[str, Callable[[Cell, Device], str | None]] = {"precision_by_capability": precision_by_capability}
"""Rules that look at the profile of the cell's device too, where it is known."""
SETTINGS_RULES: Mapping[str, Callable[[Cell], str | None]] = {"float8_gather": float8_gather}
"""Rules that look at the trainer's settings, which a grid varies last."""


def violations(cell: Cell, device: Device | None = None) -> list[Violation]:
    """Every rule that the cell breaks on its device, in the order of the book."""
    return [*_broken(cell, device), *_violations_of(SETTINGS_RULES, cell)]


def first_violation(cell: Cell, device: Device | None = None) -> Violation | None:
    """The first rule that the cell breaks on its device, whatever the trainer's settings; the one a rejection names."""
    return next(_broken(cell, device), None)


def first_violation_of_settings(cell: Cell) -> Violation | None:
    """The first rule that the trainer's settings break, in a cell that breaks no other."""
    return next(_violations_of(SETTINGS_RULES, cell), None)


def _broken(cell: Cell, device: Device | None) -> Iterator[Violation]:
    yield from _violations_of(RULES, cell)
    if device is not None:
        yield from _violations_of(DEVICE_RULES, cell, device)


def _violations_of(rules: Mapping[str, Callable[..., str | None]], *subject: object) -> Iterator[Violation]:
    for name, rule in rules.items():
        reason = rule(*subject)
        if reason is not None:
            yield Violation(rule=name, reason=reason)
