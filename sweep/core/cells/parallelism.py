"""The layout of a cell: the degree of every parallel dimension, and the pipeline's schedule."""

from __future__ import annotations

import math
import operator
from dataclasses import field
from enum import StrEnum

from sweep.core.cells.axis import AUTO, COUNT, axes_of, axis, check_fields
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
    """Degrees of every parallel dimension; their product is the world size. Every field is an axis."""

    dp_replicate: int = field(default=1, metadata=axis(column=10, is_degree=True))
    """Replicas of the parameters (DDP; with ``dp_shard`` > 1: HSDP)."""
    dp_shard: int = field(default=1, metadata=axis(column=11, is_degree=True, default=AUTO))
    """Ranks over which parameters, gradients and optimiser state are sharded (FSDP)."""
    tp: int = field(default=1, metadata=axis(column=12, is_degree=True))
    """Tensor-parallel degree."""
    pp: int = field(default=1, metadata=axis(column=13, is_degree=True))
    """Pipeline-parallel degree: ranks that hold the stages of one pipeline."""
    cp: int = field(default=1, metadata=axis(column=14, is_degree=True))
    """Context-parallel degree (cp ranks shard parameters too)."""
    schedule: Schedule | None = field(default=None, metadata=axis(column=15))
    """Pipeline schedule; None without a pipeline."""
    virtual_stages: int = field(default=1, metadata=axis(column=16, check=COUNT))
    """Model chunks on each pipeline rank."""
    async_tp: bool = field(default=False, metadata=axis(column=27))
    """True if tensor-parallel communication is overlapped with its matrix multiplications."""
    sequence_parallel: bool = True
    """True if norms and residuals are sharded over the tp ranks."""

    def __post_init__(self) -> None:
        """Refuse a degree that is not a positive integer."""
        check_fields(self, LAYOUT)

    @property
    def world_size(self) -> int:
        """Ranks that the degrees multiply to."""
        return math.prod(_degrees(self))

    @property
    def data_ranks(self) -> int:
        """Data-parallel ranks: groups of ranks that each get their own sequences."""
        return self.dp_replicate * self.dp_shard

    def equation(self) -> str:
        """The degrees as they multiply, for error messages."""
        shown = [f"{name}={degree}" for name, degree in zip(DEGREES, _degrees(self), strict=True) if degree != 1]
        return " x ".join(shown) or "dp_shard=1"


LAYOUT = tuple(item._replace(is_layout=True) for item in axes_of(Parallelism))
"""The axes of the layout."""
DEGREES = tuple(item.field for item in LAYOUT if item.is_degree)
"""Names of the degrees, in the order of tables and messages."""
_degrees = operator.attrgetter(*DEGREES)
