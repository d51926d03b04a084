"""The settings of the trainer besides the layout, each with its default and the values that it can have."""

from __future__ import annotations

import math
from dataclasses import field

from sweep.core.cells.axis import (
    ABOVE_ZERO,
    BELOW_ONE,
    COUNT,
    NOT_NEGATIVE,
    ValueCheck,
    axes_of,
    axis,
    check_fields,
    one_of,
)
from sweep.core.encoding.frozen import dataclass

SYNTHETIC = "synthetic"
"""The value of ``trainer.data`` that stands for seeded random tokens."""
_DATA = ValueCheck(
    # Jobs run in folders of their own, so a relative path would name another file.
    lambda word: isinstance(word, str) and (word == SYNTHETIC or word.startswith("/")),
    "is not known",
    f"{SYNTHETIC}, or a token file's absolute path",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainerSettings:
    """Settings of the trainer besides the layout; every field is an axis by its dotted name (``trainer.lr``)."""

    steps: int = field(default=60, metadata=axis(check=COUNT))
    """Optimiser steps in all."""
    warmup_steps: int = 10
    """Leading steps that no metric uses (arXiv 2411.13055 runs 60 and drops the first 10)."""
    seed: int = field(default=1234, metadata=axis(check=NOT_NEGATIVE))
    """Draws the weights (with each parameter's name) and the tokens."""
    lr: float = field(default=3e-4, metadata=axis(check=ABOVE_ZERO))
    """Peak learning rate of AdamW."""
    beta1: float = field(default=0.9, metadata=axis(check=BELOW_ONE))
    """AdamW's first moment decay."""
    beta2: float = field(default=0.95, metadata=axis(check=BELOW_ONE))
    """AdamW's second moment decay."""
    eps: float = field(default=1e-8, metadata=axis(check=ABOVE_ZERO))
    """AdamW's epsilon."""
    weight_decay: float = field(default=0.1, metadata=axis(check=NOT_NEGATIVE))
    """AdamW's decoupled decay."""
    grad_clip: float = field(default=1.0, metadata=axis(check=NOT_NEGATIVE))
    """Largest global gradient norm; 0 does not clip."""
    comm_timeout_s: float = field(default=300.0, metadata=axis(check=ABOVE_ZERO))
    """Seconds after which a collective that does not end is an error."""
    threads_per_rank: int = field(default=0, metadata=axis(check=NOT_NEGATIVE))
    """CPU threads of one rank; 0: one per rank on a GPU, an equal share of the cores on a CPU."""
    lr_warmup_steps: int = field(default=0, metadata=axis(check=NOT_NEGATIVE))
    """Steps over which the learning rate rises linearly to ``lr``; 0: it begins with ``lr``."""
    forward_prefetch: int = field(default=1, metadata=axis(check=NOT_NEGATIVE))
    """Groups of parameters that FSDP gathers ahead in the forward pass; 0: as torch does by itself."""
    backward_prefetch: int = field(default=1, metadata=axis(check=NOT_NEGATIVE))
    """Groups of parameters that FSDP gathers ahead in the backward pass; 0: as torch does by itself."""
    data: str = field(default=SYNTHETIC, metadata=axis(check=_DATA))
    """``synthetic``, or the absolute path of a token file (:mod:`trainer.data.tokens_file`)."""
    bind: str = field(default="auto", metadata=axis(check=one_of("auto", "none")))
    """``auto`` binds a rank to the cores beside its GPU, ``none`` does not."""
    float8_recipe: str = field(default="tensorwise", metadata=axis(check=one_of("tensorwise", "rowwise")))
    """With precision ``float8``: one scale for each tensor, or one for each row."""
    cp_rotate: str = field(default="alltoall", metadata=axis(check=one_of("alltoall", "allgather")))
    """How ring attention moves keys and values: ``alltoall`` from neighbour to neighbour while it computes,
    ``allgather`` all of them at once."""

    def __post_init__(self) -> None:
        """Refuse a run whose measured window would be empty, and values that a setting cannot have."""
        for item in SETTINGS_AXES:
            _require_kind(item.name, getattr(self, item.field), type(item.default))
        check_fields(self, SETTINGS_AXES)
        if not 0 <= self.warmup_steps < self.steps:
            raise ValueError(
                f"trainer.warmup_steps={self.warmup_steps} leaves no measured step of trainer.steps={self.steps}. "
                "Raise steps or lower warmup_steps."
            )


SETTINGS_AXES = axes_of(TrainerSettings, "trainer.")


def _require_kind(name: str, value: object, kind: type) -> None:
    """Refuse a number or a flag of another type than the setting's default has; its check judges a text."""
    if kind is bool and type(value) is not bool:
        raise ValueError(f"{name}={value!r} is not true or false.")
    if kind is int and type(value) is not int:
        raise ValueError(f"{name}={value!r} is not a whole number.")
    if kind is float and not (type(value) is int or (type(value) is float and math.isfinite(value))):
        raise ValueError(f"{name}={value!r} is not a finite number.")
