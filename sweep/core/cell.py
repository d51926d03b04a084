"""A cell: what to run and on which kind of device, with an identity that later fields do not change."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import operator
import types
import typing
from collections.abc import Callable, Mapping
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
        for item in dataclasses.fields(self):
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


_WHOLE = ("steps", "warmup_steps", "seed", "threads_per_rank")
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
    "seed": _NOT_NEGATIVE,
    "beta1": _DECAY,
    "beta2": _DECAY,
}


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
    must treat two different cells with one id as an error (:func:`sweep.core.grid.expand` does).
    """
    return hashlib.sha256(canonical_json(cell).encode()).hexdigest()[:16]


def canonical_json(cell: Cell) -> str:
    """The cell as sorted, compact JSON without the fields that are at their default.

    Values are written as their field's type, so that ``lr=1`` and ``lr=1.0``, which are equal, are one text.
    """
    return _canonical(cell)


def cell_to_json(cell: Cell) -> dict[str, object]:
    """Every field of the cell as plain JSON values, defaults included, for files that people read."""
    return _plain(cell)


def cell_from_json(data: Mapping[str, object]) -> Cell:
    """The inverse of :func:`cell_to_json`.

    Raises:
        ValueError: If a field is unknown, missing or of the wrong type.
    """
    return build(Cell, data, "cell")


def _canonical(part: Any) -> str:
    read, pieces = _canonical_fields(part.__class__)
    return "{" + ",".join(filter(None, map(operator.getitem, pieces, read(part)))) + "}"


class _Pieces(dict[Any, str]):
    """A field's piece of the canonical text by its value: empty for the default.

    Values recur (a grid of 100,000 cells has few models, layouts and degrees), so each piece is made once. Values that
    are equal share one, whatever their type: they are written as the field's.
    """

    def __init__(self, name: str, write: Callable[[Any], str], default: object) -> None:
        super().__init__()
        self._start = f'"{name}":'
        self._write = write
        self._default = None if default is dataclasses.MISSING else write(default)

    def __missing__(self, value: Any) -> str:
        if len(self) >= _MOST_PIECES:
            self.clear()
        text = self._write(value)
        self[value] = piece = "" if text == self._default else self._start + text
        return piece


_MOST_PIECES = 65536


@functools.cache
def _canonical_fields(cls: Any) -> tuple[Callable[[Any], tuple[Any, ...]], tuple[_Pieces, ...]]:
    """How to read the fields of a dataclass in sorted order, and the pieces of each."""
    found = sorted(dataclasses.fields(cls), key=lambda item: item.name)
    pieces = []
    for item in found:
        made = item.default_factory() if item.default_factory is not dataclasses.MISSING else item.default
        pieces.append(_Pieces(item.name, _writer(_hints(cls)[item.name]), made))
    return operator.attrgetter(*(item.name for item in found)), tuple(pieces)


def _writer(hint: Any) -> Callable[[Any], str]:
    """What turns a value of this type into canonical JSON."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        (option,) = [option for option in typing.get_args(hint) if option is not type(None)]
        write = _writer(option)
        return lambda value: "null" if value is None else write(value)
    if dataclasses.is_dataclass(hint):
        return _canonical
    if issubclass(hint, StrEnum):
        return {member: json.dumps(member) for member in hint}.__getitem__
    return _WRITERS[hint]


_WRITERS: Mapping[type, Callable[[Any], str]] = {
    bool: lambda value: "true" if value else "false",
    int: int.__repr__,
    # + 0.0: minus zero equals zero.
    float: lambda value: float.__repr__(float(value) + 0.0),
    str: json.encoder.encode_basestring_ascii,
}


def _plain(part: Any) -> dict[str, Any]:
    read, names, nested = _plain_fields(part.__class__)
    data = dict(zip(names, read(part), strict=True))
    for name in nested:
        data[name] = _plain(data[name])
    return data


@functools.cache
def _plain_fields(cls: Any) -> tuple[Callable[[Any], tuple[Any, ...]], tuple[str, ...], tuple[str, ...]]:
    names = tuple(item.name for item in dataclasses.fields(cls))
    nested = tuple(name for name in names if dataclasses.is_dataclass(_hints(cls)[name]))
    return operator.attrgetter(*names), names, nested


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


def _build(cls: Any, data: object, where: str) -> object:
    known = {item.name for item in dataclasses.fields(cls)}
    if not isinstance(data, Mapping):
        raise ValueError(f"{where}={data!r} is not a mapping.")
    unknown = sorted(map(str, set(data) - known))
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
    if hint in (object, Any):
        return value
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
