"""The limits of a cluster at this moment, as far as it reports them."""

from __future__ import annotations

from sweep.core.encoding.frozen import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class SizeLimit:
    """Limits of a single job; one that exceeds them would wait for ever.

    Attributes:
        name: The limit, in the cluster's words.
        nodes: So many nodes at most; None: it does not limit them.
        gpus: So many GPUs at most; the same.
    """

    name: str
    nodes: int | None = None
    gpus: int | None = None

    def exceeded_by(self, *, nodes: int, gpus: int) -> bool:
        """True if a job of this size exceeds it."""
        return (self.nodes is not None and nodes > self.nodes) or (self.gpus is not None and gpus > self.gpus)


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """Limits and facts of a cluster; None or empty: it sets none, or cannot be asked.

    Attributes:
        max_array_tasks: Tasks that one array may have (Slurm's MaxArraySize: its highest index is one less).
        free_tasks: Further tasks that it takes of this user just now (submit limits less what is in the queue).
        max_walltime_min: Longest walltime of the partition.
        nodes: Names of the nodes of the partition.
        usable: Of these, those in service that the site's own settings do not exclude.
        size_limits: What no single job may exceed.
        notes: What the site's settings say that the cluster does not know, in words; it is left out.
        maintenance_at: Unix time at which the next maintenance reservation over the partition begins.
    """

    max_array_tasks: int | None = None
    free_tasks: int | None = None
    max_walltime_min: int | None = None
    nodes: frozenset[str] = frozenset()
    usable: frozenset[str] = frozenset()
    size_limits: tuple[SizeLimit, ...] = ()
    notes: tuple[str, ...] = ()
    maintenance_at: float | None = None


UNLIMITED = Site()
"""A cluster that sets no limits, such as this machine."""
