"""A cell: what to run and on which kind of device, with an identity that later fields do not change."""

from __future__ import annotations

import hashlib
from dataclasses import field
from enum import StrEnum
from fractions import Fraction

from sweep.core.cells.axis import COUNT, axes_of, axis, check_fields
from sweep.core.cells.model_shape import ModelShape
from sweep.core.cells.parallelism import Parallelism
from sweep.core.cells.trainer_settings import TrainerSettings
from sweep.core.encoding.frozen import dataclass
from sweep.core.encoding.plain import canonical


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
    Every field is an axis or holds axes (:mod:`sweep.core.cells.axes`).
    """

    model: ModelShape = field(metadata=axis(place=3, column=5))
    """Shape of the model."""
    device: str = field(metadata=axis(place=2))
    """Name of the device profile (``conf/hardware``)."""
    nodes: int = field(metadata=axis(place=0, column=8, check=COUNT))
    """Nodes of the job."""
    gpus_per_node: int = field(metadata=axis(place=1, title="GPUs/node", check=COUNT))
    """Ranks on each node (on a CPU: processes)."""
    parallelism: Parallelism = field(metadata=axis(place=6))
    """Degrees of every parallel dimension."""
    global_batch: int = field(metadata=axis(place=5, column=19, check=COUNT))
    """Sequences in one optimiser step."""
    micro_batch: int = field(metadata=axis(column=17, check=COUNT, default=None, is_layout=True))
    """Sequences that a data-parallel rank takes in one forward pass; None in a grid: as the pipeline needs."""
    seq_len: int = field(metadata=axis(place=4, title="context (tokens)", column=22, check=COUNT))
    """Tokens of a sequence."""
    precision: Precision = field(default=Precision.BF16, metadata=axis(column=23))
    """Number format of the matrix multiplications."""
    compile: bool = field(default=False, metadata=axis(column=24))
    """True if blocks go through torch.compile."""
    activation_checkpointing: Checkpointing = field(
        default=Checkpointing.NONE, metadata=axis(column=25, is_layout=True)
    )
    """Activations that are recomputed in the backward pass."""
    reshard_after_forward: bool = field(default=False, metadata=axis(column=26, is_layout=True))
    """True if FSDP frees gathered parameters after the forward pass (ZeRO-3; without: ZeRO-2, as in arXiv
    2411.13055)."""
    trainer: TrainerSettings = field(default_factory=TrainerSettings)
    """Settings of the trainer besides the layout."""

    def __post_init__(self) -> None:
        """Refuse sizes that are not positive integers."""
        check_fields(self, _CHECKED)

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


_CHECKED = tuple(item for item in axes_of(Cell) if item.check is not None)


def cell_id(cell: Cell) -> str:
    """First 16 hex digits of SHA-256 over the canonical JSON of the cell, fields at their default left out.

    Leaving defaults out keeps the ids of old cells when a field with a default is added. Who fills a mapping by id
    must treat two different cells with one id as an error (:func:`sweep.core.grids.grid.expand` does).
    """
    return hashlib.sha256(canonical(cell).encode()).hexdigest()[:16]
