"""The settings of the trainer besides the layout, and the values that each may have."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping

from sweep.core.cells.axis import require_positive
from sweep.core.encoding.frozen import dataclass

SYNTHETIC = "synthetic"
"""The value of ``trainer.data`` that stands for seeded random tokens."""


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
        require_positive("trainer.steps", self.steps)
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


def _require_finite(name: str, value: object, *, whole: bool) -> None:
    if type(value) is int or (type(value) is float and not whole and math.isfinite(value)):
        return
    raise ValueError(f"{name}={value!r} is not {'a whole' if whole else 'a finite'} number.")
