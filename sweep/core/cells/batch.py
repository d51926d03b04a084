"""The batch rules: what a grid holds fixed while the number of GPUs changes, and the global batch that follows."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from fractions import Fraction

from sweep.core.encoding.frozen import dataclass


class BatchKind(StrEnum):
    """The quantity that a grid holds fixed while the number of GPUs changes; its value is the axis of that name."""

    SEQUENCES_PER_GPU = "sequences_per_gpu"
    TOKENS_PER_GPU = "tokens_per_gpu"
    GLOBAL_BATCH = "global_batch"


BATCH_TITLES: Mapping[BatchKind, str] = {
    BatchKind.SEQUENCES_PER_GPU: "sequences/GPU",
    BatchKind.TOKENS_PER_GPU: "tokens/GPU",
    BatchKind.GLOBAL_BATCH: "global batch (sequences)",
}
"""Titles of the axes by which grids give the value of their batch rule."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchRule:
    """How the global batch follows from the number of GPUs."""

    kind: BatchKind
    """The quantity that is held fixed."""
    value: Fraction
    """Sequences (an exact fraction: with tp or cp a GPU may hold less than one), tokens, or sequences."""

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
