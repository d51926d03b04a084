"""This process's place among all ranks, from the variables that torchrun sets; without torchrun it is alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trainer.process.refusal import Refusal

_AGENTS_MARK = "TORCHELASTIC_RUN_ID"
# The launcher's own, and Slurm's.
_NODE, _RESTARTS = "SWEEP_NODE_RANK", "SLURM_RESTART_COUNT"
_OPTIONAL = (_NODE, _RESTARTS)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranks:
    """This process's place among all ranks.

    Attributes:
        rank: Global rank.
        world_size: Number of processes.
        local_rank: Rank on this node: the index of its device.
        local_world_size: Processes that this node's torchrun agent started.
        node_rank: Rank of this node.
        restart: Number of earlier runs of this job id (Slurm's count).
        has_agent: True if a torchrun agent started this process.
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
        """Read torchrun's variables.

        Without an agent RANK and WORLD_SIZE are ignored, since an enclosing job may have left them behind.

        Raises:
            Refusal: If a variable is missing or is not a number.
        """

        def number(*names: str) -> int:
            name = next((name for name in names if name in environ), None)
            if name is None:
                raise Refusal(
                    f"{names[-1]} is missing. torchrun sets it for every rank: start this with torchrun, or unset "
                    f"{_AGENTS_MARK}, which says that it was."
                )
            text = environ[name]
            if not text.isdecimal():
                instead = "Unset it, or set it right." if name in _OPTIONAL else "Set it right; torchrun does."
                raise Refusal(f"{name}={text} is no number of ranks, nodes or restarts. {instead}")
            return int(text)

        restart = number(_RESTARTS) if _RESTARTS in environ else 0
        if not has_agent(environ):
            return cls(restart=restart)
        return cls(
            rank=number("RANK"),
            world_size=number("WORLD_SIZE"),
            local_rank=number("LOCAL_RANK"),
            local_world_size=number("LOCAL_WORLD_SIZE"),
            # torchrun's GROUP_RANK sorts agents by address; the launcher's variable has the node's place in the job.
            node_rank=number(_NODE, "GROUP_RANK"),
            restart=restart,
            has_agent=True,
        )

    @property
    def first_rank_of_node(self) -> int:
        """Rank that reports an error which all ranks of this node find."""
        return self.rank - self.local_rank

    @property
    def node_ranks(self) -> range:
        """Global ranks of this node (torchrun numbers them without gaps)."""
        first = self.rank - self.local_rank
        return range(first, first + self.local_world_size)


def has_agent(environ: Mapping[str, str]) -> bool:
    """True if a torchrun agent started this process."""
    return _AGENTS_MARK in environ


def reports_at_once(environ: Mapping[str, str]) -> bool:
    """True for rank 0, and for a process without a valid rank: it reports bad arguments without waiting."""
    rank = environ.get("RANK", "")
    return not has_agent(environ) or not rank.isdecimal() or int(rank) == 0
