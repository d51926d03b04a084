"""A cell: what to run and on which kind of device, with an identity that later fields do not change."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from fractions import Fraction

from sweep.core.cells.axis import require_positive
from sweep.core.cells.model_shape import ModelShape
from sweep.core.cells.parallelism import Parallelism
from sweep.core.cells.trainer_settings import TrainerSettings
from sweep.core.encoding.codec import build, canonical, plain
from sweep.core.encoding.frozen import dataclass


class Precision(StrEnum):
    """Number format of the matrix multiplications; master weights, optimiser and reductions stay fp32."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"
    FLOAT8 = "float8"
    MXFP8 = "mxfp8"


class Checkpointing(StrEnum):
    """Which activations are recomputed in the backward pass."""

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One configuration of the trainer on one kind of device; never which nodes, when or why.

    A cell can be built with degrees that contradict each other; :mod:`sweep.core.cells.rules` says whether it can run.

    Attributes:
        model: Shape of the model.
        device: Name of the device profile (``conf/hardware``).
        nodes: Nodes of the job.
        gpus_per_node: Ranks on each node (on a CPU: processes).
        parallelism: Degrees of every parallel dimension.
        global_batch: Sequences in one optimiser step.
        micro_batch: Sequences that a data-parallel rank takes in one forward pass.
        seq_len: Tokens of a sequence.
        precision: Number format.
        compile: Whether blocks go through torch.compile.
        activation_checkpointing: What is recomputed.
        reshard_after_forward: Whether FSDP frees gathered parameters after the forward pass (ZeRO-3; without: ZeRO-2,
            as in arXiv 2411.13055).
        trainer: Everything else the trainer is told.
    """

    model: ModelShape
    device: str
    nodes: int
    gpus_per_node: int
    parallelism: Parallelism
    global_batch: int
    micro_batch: int
    seq_len: int
    precision: Precision = Precision.BF16
    compile: bool = False
    activation_checkpointing: Checkpointing = Checkpointing.NONE
    reshard_after_forward: bool = False
    trainer: TrainerSettings = field(default_factory=TrainerSettings)

    def __post_init__(self) -> None:
        """Refuse sizes that are not positive integers."""
        for name, value in (
            ("nodes", self.nodes),
            ("gpus_per_node", self.gpus_per_node),
            ("global_batch", self.global_batch),
            ("micro_batch", self.micro_batch),
            ("seq_len", self.seq_len),
        ):
            if type(value) is not int or value < 1:
                require_positive(name, value)

    @property
    def gpus(self) -> int:
        """Ranks in all: the x of every series."""
        return self.nodes * self.gpus_per_node

    @property
    def sequences_per_gpu(self) -> Fraction:
        """The effective local batch of arXiv 2411.13055: global batch over GPUs, whatever tp, pp and cp are."""
        return Fraction(self.global_batch, self.gpus)

    @property
    def sequences_per_data_rank(self) -> Fraction:
        """Sequences that one data-parallel rank gets in a step."""
        return Fraction(self.global_batch, self.parallelism.data_ranks)

    @property
    def grad_accum(self) -> Fraction:
        """Micro-batches of a step on one data-parallel rank (with pp > 1: what fills the pipeline)."""
        return self.sequences_per_data_rank / self.micro_batch

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimiser step over all ranks."""
        return self.global_batch * self.seq_len


def cell_id(cell: Cell) -> str:
    """First 16 hex digits of SHA-256 over the canonical JSON of the cell, fields at their default left out.

    Leaving defaults out keeps the ids of old cells when a field with a default is added. Who fills a mapping by id
    must treat two different cells with one id as an error (:func:`sweep.core.grids.grid.expand` does).
    """
    return hashlib.sha256(canonical_json(cell).encode()).hexdigest()[:16]


def canonical_json(cell: Cell) -> str:
    """The cell as sorted, compact JSON without the fields that are at their default.

    Values are written as their field's type, so that ``lr=1`` and ``lr=1.0``, which are equal, are one text.
    """
    return canonical(cell)


def cell_to_json(cell: Cell) -> dict[str, object]:
    """Every field of the cell as plain JSON values, defaults included, for files that people read."""
    return plain(cell)


def cell_from_json(data: Mapping[str, object]) -> Cell:
    """The inverse of :func:`cell_to_json`.

    Raises:
        ValueError: If a field is unknown, missing or of the wrong type.
    """
    return build(Cell, data, "cell")
