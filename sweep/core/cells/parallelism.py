"""The layout of a cell: the degree of every parallel dimension, and the pipeline's schedule."""

from __future__ import annotations

from enum import StrEnum

from sweep.core.cells.axis import require_positive
from sweep.core.encoding.frozen import dataclass


class Schedule(StrEnum):
    """Order in which a pipeline stage runs its micro-batches."""

    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    INTERLEAVED_1F1B = "interleaved_1f1b"
    ZBV = "zbv"
    INTERLEAVED_ZERO_BUBBLE = "interleaved_zero_bubble"


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
            require_positive(name, getattr(self, name))

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
