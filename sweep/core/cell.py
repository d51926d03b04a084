"""A cell: what to run and on which kind of device, with an identity that later fields do not change."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from typing import Any

from sweep.core.model import ModelShape

AxisValue = str | int | float | bool | None
_Built = typing.TypeVar("_Built")


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

    def __post_init__(self) -> None:
        """Refuse a run whose measured window would be empty, and settings that mean nothing."""
        _require_positive("trainer.steps", self.steps)
        if not 0 <= self.warmup_steps < self.steps:
            raise ValueError(
                f"trainer.warmup_steps={self.warmup_steps} leaves no measured step of trainer.steps={self.steps}. "
                "Raise steps or lower warmup_steps."
            )
        for name in ("lr", "eps", "comm_timeout_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"trainer.{name}={getattr(self, name)} is not positive. Give a number above 0.")
        for name in ("weight_decay", "grad_clip", "threads_per_rank", "seed"):
            if getattr(self, name) < 0:
                raise ValueError(f"trainer.{name}={getattr(self, name)} is negative. Give 0 or more.")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"trainer.{name}={getattr(self, name)} is not in [0, 1).")


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One configuration of the trainer on one kind of device; never which nodes, when or why.

    A cell can be built with degrees that contradict each other; :mod:`sweep.core.rules` says whether it can run.

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
        for name in ("nodes", "gpus_per_node", "global_batch", "micro_batch", "seq_len"):
            _require_positive(name, getattr(self, name))

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


def _require_positive(name: str, value: object) -> None:
    if type(value) is not int or value < 1:
        raise ValueError(f"{name}={value!r} is not a positive integer. Give a whole number >= 1.")


def cell_id(cell: Cell) -> str:
    """First 16 hex digits of SHA-256 over the canonical JSON of the cell, fields at their default left out.

    Leaving defaults out keeps the ids of old cells when a field with a default is added. Who fills a mapping by id
    must treat two different cells with one id as an error (:func:`sweep.core.grid.expand` does).
    """
    return hashlib.sha256(canonical_json(cell).encode()).hexdigest()[:16]


def canonical_json(cell: Cell) -> str:
    """The cell as sorted, compact JSON without the fields that are at their default."""
    return json.dumps(_without_defaults(cell), sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def cell_to_json(cell: Cell) -> dict[str, object]:
    """Every field of the cell as plain JSON values, defaults included, for files that people read."""
    return dataclasses.asdict(cell)


def cell_from_json(data: Mapping[str, object]) -> Cell:
    """The inverse of :func:`cell_to_json`.

    Raises:
        ValueError: If a field is unknown, missing or of the wrong type.
    """
    return typing.cast("Cell", _build(Cell, data, "cell"))


@functools.lru_cache(maxsize=4096)
def _part_without_defaults(part: ModelShape | TrainerSettings | Parallelism) -> dict[str, object]:
    return dict(_set_fields(part))


def _without_defaults(cell: Cell) -> dict[str, object]:
    # Models, settings and layouts recur in a grid of 100,000 cells; their canonical form is computed once each.
    return {
        name: _part_without_defaults(value) if isinstance(value, ModelShape | TrainerSettings | Parallelism) else value
        for name, value in _set_fields(cell)
    }


def _set_fields(part: Any) -> list[tuple[str, object]]:
    found = []
    for name, default in _defaults(type(part)):
        value = getattr(part, name)
        if value != default:
            found.append((name, value))
    return found


@functools.cache
def _defaults(cls: type) -> tuple[tuple[str, object], ...]:
    """Field names of a dataclass with their defaults (MISSING where there is none)."""
    pairs = []
    for item in dataclasses.fields(cls):
        made = item.default_factory() if item.default_factory is not dataclasses.MISSING else item.default
        pairs.append((item.name, made))
    return tuple(pairs)


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    # Modules that name Mapping in annotations only import it for the type checker.
    return typing.get_type_hints(cls, localns={"Mapping": Mapping})


def build(cls: type[_Built], data: Mapping[str, object], where: str) -> _Built:
    """An instance of a dataclass from plain values, nested dataclasses, tuples and mappings included.

    Raises:
        ValueError: If a field is unknown, missing or of the wrong type; ``where`` opens the message.
    """
    return typing.cast("_Built", _build(cls, data, where))


def _build(cls: Any, data: Mapping[str, object], where: str) -> object:
    known = {item.name for item in dataclasses.fields(cls)}
    unknown = sorted(set(data) - known)
    if unknown:
        raise ValueError(f"{where} has the unknown field(s) {unknown}; known are {sorted(known)}.")
    hints = _hints(cls)
    values = {name: _convert(hints[name], value, f"{where}.{name}") for name, value in data.items()}
    try:
        return cls(**values)
    except TypeError as error:
        raise ValueError(f"{where}: {error}") from error


def convert_value(owner: type, name: str, value: object, where: str) -> object:
    """A value from outside, checked and normalised to the type of a dataclass field.

    Raises:
        ValueError: If it is of another type; the message names the type, or the values that are allowed.
    """
    return _convert(_hints(owner)[name], value, where)


def _convert(hint: Any, value: object, where: str) -> object:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        if value is None:
            return None
        options = [option for option in typing.get_args(hint) if option is not type(None)]
        if len(options) > 1:
            return _one_of(options, value, where)
        hint = options[0]
    if typing.get_origin(hint) is tuple:
        return _tuple(typing.get_args(hint), value, where)
    if typing.get_origin(hint) is Mapping:
        return _mapping(typing.get_args(hint)[1], value, where)
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, dict):
            raise ValueError(f"{where}={value!r} is not a mapping.")
        return _build(hint, value, where)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return _enum(hint, value, where)
    return _scalar(hint, value, where)


def _one_of(options: list[type], value: object, where: str) -> object:
    if type(value) not in options:
        raise ValueError(
            f"{where}={value!r} is not {' or '.join(_WORDS.get(item, item.__name__) for item in options)}."
        )
    return value


def _tuple(items: tuple[Any, ...], value: object, where: str) -> tuple[object, ...]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"{where}={value!r} is not a list. Write it in brackets: [...].")
    if items[-1] is not Ellipsis and len(value) != len(items):
        raise ValueError(f"{where}={value!r} does not have {len(items)} values.")
    hints = [items[0]] * len(value) if items[-1] is Ellipsis else items
    return tuple(
        _convert(hint, item, f"{where}[{at}]") for at, (hint, item) in enumerate(zip(hints, value, strict=True))
    )


def _mapping(hint: Any, value: object, where: str) -> dict[str, object]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{where}={value!r} is not a mapping. Write it as name: value.")
    return {str(name): _convert(hint, item, f"{where}.{name}") for name, item in value.items()}


def _enum(hint: type[StrEnum], value: object, where: str) -> StrEnum:
    try:
        return hint(str(value))
    except ValueError:
        raise ValueError(f"{where}={value!r} is not one of {', '.join(hint)}.") from None


_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def _scalar(hint: type, value: object, where: str) -> object:
    if hint is float and type(value) is int:
        return float(value)
    if hint is int and type(value) is float and value.is_integer():
        return int(value)
    if type(value) is not hint:
        raise ValueError(f"{where}={value!r} is not {_WORDS.get(hint, hint.__name__)}.")
    return value
