"""Which process this is among all: the rank variables that torchrun sets, or one process by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranks:
    """This process's place among all.

    Attributes:
        rank: Global rank.
        world_size: Processes in all.
        local_rank: Rank on this node: the index of its device.
        local_world_size: Processes that this node's torchrun agent started.
        node_rank: Rank of that agent.
        restart: How often this job id had run before (Slurm's own count).
        has_agent: Whether a torchrun agent started this process.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    node_rank: int = 0
    restart: int = 0
    has_agent: bool = False

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Ranks:
        """Read torchrun's variables; without an agent this is the only process.

        Without an agent RANK and WORLD_SIZE are not believed: an enclosing job may have left them behind.
        """
        restart = int(environ.get("SLURM_RESTART_COUNT", "0"))
        if "TORCHELASTIC_RUN_ID" not in environ:
            return cls(restart=restart)
        return cls(
            rank=int(environ["RANK"]),
            world_size=int(environ["WORLD_SIZE"]),
            local_rank=int(environ["LOCAL_RANK"]),
            local_world_size=int(environ["LOCAL_WORLD_SIZE"]),
            # torchrun's GROUP_RANK sorts agents by address; the launcher says which node of the job this is.
            node_rank=int(environ.get("SWEEP_NODE_RANK", environ["GROUP_RANK"])),
            restart=restart,
            has_agent=True,
        )

    @property
    def speaks_for_node(self) -> bool:
        """Whether this rank reports what all ranks of the node find alike."""
        return self.local_rank == 0

    @property
    def node_ranks(self) -> range:
        """Global ranks of this node (torchrun numbers them without gaps)."""
        first = self.rank - self.local_rank
        return range(first, first + self.local_world_size)
