"""A cell: what to run and on which kind of device, with an identity that later fields do not change."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction

from sweep.core.cells.model_shape import ModelShape
from sweep.core.encoding.codec import build as build
from sweep.core.encoding.codec import canonical, plain
from sweep.core.encoding.codec import convert_value as convert_value

SYNTHETIC = "synthetic"
"""The value of ``trainer.data`` that stands for seeded random tokens."""

AxisValue = str | int | float | bool | None


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


class Schedule(StrEnum):
    """Order in which a pipeline stage runs its micro-batches."""

    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    INTERLEAVED_1F1B = "interleaved_1f1b"
    ZBV = "zbv"
    INTERLEAVED_ZERO_BUBBLE = "interleaved_zero_bubble"


class BatchKind(StrEnum):
    """What a grid holds fixed while the number of GPUs changes."""

    SEQUENCES_PER_GPU = "sequences_per_gpu"
    TOKENS_PER_GPU = "tokens_per_gpu"
    GLOBAL_BATCH = "global_batch"


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchRule:
    """How the global batch follows from the number of GPUs.

    Attributes:
        kind: What is held fixed.
        value: Sequences (an exact fraction; with tp or cp a GPU may hold less than one), tokens, or sequences.
    """

    kind: BatchKind
    value: Fraction

    def __post_init__(self) -> None:
        """Refuse a batch of nothing."""
        if self.value <= 0:
            raise ValueError(f"{self.kind}={self.value} is not positive. Give a number above 0.")

    def global_batch(self, *, gpus: int, seq_len: int) -> Fraction:
        """Sequences in one optimiser step, which need not come out whole (then the cell is rejected)."""
        if self.kind is BatchKind.GLOBAL_BATCH:
            return self.value
        if self.kind is BatchKind.TOKENS_PER_GPU:
            return self.value * gpus / seq_len
        return self.value * gpus


@dataclass(frozen=True, kw_only=True, slots=True)
class Parallelism:
    """Degrees of every parallel dimension; their product is the world size.

    Attributes:
        dp_replicate: Replicas of the parameters (DDP; with ``dp_shard`` > 1: HSDP).
        dp_shard: Ranks over which parameters, gradients and optimiser state are sharded (FSDP).
        tp: Tensor-parallel degree.
        pp: Pipeline stages' ranks.
        cp: Context-parallel degree (cp ranks shard parameters too).
        schedule: Pipeline schedule; None without a pipeline.
        virtual_stages: Model chunks on each pipeline rank.
        async_tp: Whether tensor-parallel communication is overlapped with its matrix multiplications.
        sequence_parallel: Whether norms and residuals are sharded over the tp ranks.
    """

    dp_replicate: int = 1
    dp_shard: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    schedule: Schedule | None = None
    virtual_stages: int = 1
    async_tp: bool = False
    sequence_parallel: bool = True

    def __post_init__(self) -> None:
        """Refuse a degree that is not a positive integer."""
        for name in ("dp_replicate", "dp_shard", "tp", "pp", "cp", "virtual_stages"):
            _require_positive(name, getattr(self, name))

    @property
    def world_size(self) -> int:
        """Ranks that the degrees multiply to."""
        return self.dp_replicate * self.dp_shard * self.tp * self.pp * self.cp

    @property
    def data_ranks(self) -> int:
        """Data-parallel ranks: groups of ranks that each get their own sequences."""
        return self.dp_replicate * self.dp_shard

    def equation(self) -> str:
        """The degrees as they multiply, for error messages."""
        names = ("dp_replicate", "dp_shard", "tp", "pp", "cp")
        shown = [f"{name}={getattr(self, name)}" for name in names if getattr(self, name) != 1]
        return " x ".join(shown) or "dp_shard=1"


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainerSettings:
    """What the trainer does besides the layout; every field is an axis by its dotted name (``trainer.lr``).

    Attributes:
        steps: Optimiser steps in all.
        warmup_steps: Leading steps that no metric uses (arXiv 2411.13055 runs 60 and drops the first 10).
        seed: Draws the weights (with each parameter's name) and the tokens.
        lr: Peak learning rate of AdamW.
        beta1: AdamW's first moment decay.
        beta2: AdamW's second moment decay.
        eps: AdamW's epsilon.
        weight_decay: AdamW's decoupled decay.
        grad_clip: Largest global gradient norm; 0 does not clip.
        comm_timeout_s: Seconds after which a collective that does not end is an error.
        threads_per_rank: CPU threads of one rank; 0 leaves one per rank on a GPU and shares the cores out on a CPU.
        lr_warmup_steps: Steps over which the learning rate rises linearly to ``lr``; 0 begins with it.
        forward_prefetch: Groups of parameters that FSDP gathers ahead in the forward pass; 0 leaves it to torch.
        backward_prefetch: The same in the backward pass.
        data: ``synthetic``, or the absolute path of a token file (:mod:`trainer.data.tokens_file`).
        float8_recipe: With precision ``float8``: one scale for each tensor, or for each row.
        bind: ``auto`` binds a rank to the cores beside its GPU, ``none`` does not.
        cp_rotate: How ring attention moves keys and values: ``alltoall`` from neighbour to neighbour while it computes,
            ``allgather`` all of them at once.
    """

    steps: int = 60
    warmup_steps: int = 10
    seed: int = 1234
    lr: float = 3e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1
    grad_clip: float = 1.0
    comm_timeout_s: float = 300.0
    threads_per_rank: int = 0
    lr_warmup_steps: int = 0
    forward_prefetch: int = 1
    backward_prefetch: int = 1
    data: str = SYNTHETIC
    bind: str = "auto"
    float8_recipe: str = "tensorwise"
    cp_rotate: str = "alltoall"

    def __post_init__(self) -> None:
        """Refuse a run whose measured window would be empty, and settings that mean nothing."""
        for item in dataclasses.fields(self):
            if item.name not in _WORDS:
                _require_finite(f"trainer.{item.name}", getattr(self, item.name), whole=item.name in _WHOLE)
        _require_positive("trainer.steps", self.steps)
        if not 0 <= self.warmup_steps < self.steps:
            raise ValueError(
                f"trainer.warmup_steps={self.warmup_steps} leaves no measured step of trainer.steps={self.steps}. "
                "Raise steps or lower warmup_steps."
            )
        for name, (holds, wanted) in _TRAINER_RANGES.items():
            if not holds(getattr(self, name)):
                raise ValueError(f"trainer.{name}={getattr(self, name)} is out of range. Give {wanted}.")
        for name, (is_known, wanted) in _WORDS.items():
            word = getattr(self, name)
            if type(word) is not str or not is_known(word):
                raise ValueError(f"trainer.{name}={word!r} is not known. Give {wanted}.")


_WHOLE = (
    "steps",
    "warmup_steps",
    "seed",
    "threads_per_rank",
    "lr_warmup_steps",
    "forward_prefetch",
    "backward_prefetch",
)
_WORDS: Mapping[str, tuple[Callable[[str], bool], str]] = {
    # Jobs run in folders of their own, so a relative path would name another file.
    "data": (lambda word: word == SYNTHETIC or word.startswith("/"), f"{SYNTHETIC}, or a token file's absolute path"),
    "float8_recipe": (lambda word: word in ("tensorwise", "rowwise"), "tensorwise or rowwise"),
    "cp_rotate": (lambda word: word in ("alltoall", "allgather"), "alltoall or allgather"),
    "bind": (lambda word: word in ("auto", "none"), "auto or none"),
}
_POSITIVE = (lambda value: value > 0, "a number above 0")
_NOT_NEGATIVE = (lambda value: value >= 0, "0 or more")
_DECAY = (lambda value: 0 <= value < 1, "0 or more, and less than 1")
_TRAINER_RANGES: Mapping[str, tuple[Callable[[float], bool], str]] = {
    "lr": _POSITIVE,
    "eps": _POSITIVE,
    "comm_timeout_s": _POSITIVE,
    "weight_decay": _NOT_NEGATIVE,
    "grad_clip": _NOT_NEGATIVE,
    "threads_per_rank": _NOT_NEGATIVE,
    "lr_warmup_steps": _NOT_NEGATIVE,
    "forward_prefetch": _NOT_NEGATIVE,
    "backward_prefetch": _NOT_NEGATIVE,
    "seed": _NOT_NEGATIVE,
    "beta1": _DECAY,
    "beta2": _DECAY,
}


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
                _require_positive(name, value)

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


def _require_finite(name: str, value: object, *, whole: bool) -> None:
    if type(value) is int or (type(value) is float and not whole and math.isfinite(value)):
        return
    raise ValueError(f"{name}={value!r} is not {'a whole' if whole else 'a finite'} number.")


def _require_positive(name: str, value: object) -> None:
    if type(value) is not int or value < 1:
        raise ValueError(f"{name}={value!r} is not a positive integer. Give a whole number >= 1.")


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
