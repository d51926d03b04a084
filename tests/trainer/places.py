"""A rank's place among others."""

from __future__ import annotations

from trainer.process.ranks import Ranks


def ranks(rank: int) -> Ranks:
    """One of the eight ranks of two nodes."""
    return Ranks(
        rank=rank, world_size=8, local_rank=rank % 4, local_world_size=4, node_rank=rank // 4, has_agent=True
    )  # fmt: skip
