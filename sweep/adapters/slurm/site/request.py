"""Resolves which partition, account and QOS a submission gets, and which walltime and nodes those allow."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sweep.adapters.slurm.script import own_exclude
from sweep.adapters.slurm.site.cluster_config import Association, ClusterConfig, Partition, Qos
from sweep.core.encoding.frozen import dataclass
from sweep.core.settings.spec import SlurmSpec

_MAX_ARRAY_TASKS = re.compile(r"\bmax_array_tasks=(\d+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """The partition, account and QOS of a submission, defaults filled in as Slurm does; empty or None where unknown."""

    partitions: tuple[Partition, ...] = ()
    """The partitions that it names and that exist."""
    association: Association | None = None
    """The association that it is charged to."""
    qos: tuple[Qos, ...] = ()
    """Every QOS whose limits apply, in Slurm's order: of each limit the first that sets it decides."""

    @property
    def nodes(self) -> frozenset[str]:
        """Nodes that the job can run on."""
        return frozenset[str]().union(*(partition.nodes for partition in self.partitions))


def option(spec: SlurmSpec, name: str) -> str | None:
    """The value that a site's settings give an option of sbatch; one in ``slurm.sbatch`` replaces any other."""
    free = {key.replace("_", "-"): value for key, value in spec.sbatch.items()}
    value = free.get(name, getattr(spec, name))
    return None if value is None else str(value)


def resolve_request(spec: SlurmSpec, config: ClusterConfig) -> Request:
    """Resolve what a submission with these settings asks for."""
    partitions = _partitions(option(spec, "partition"), config)
    association = _association(option(spec, "account"), partitions, config)
    return Request(partitions=partitions, association=association, qos=_qos(spec, partitions, association, config))


def _partitions(named: str | None, config: ClusterConfig) -> tuple[Partition, ...]:
    known = config.partitions or ()
    if named is None:
        return tuple(partition for partition in known if partition.is_default)
    return tuple(partition for partition in known if partition.name in named.split(","))


def _association(named: str | None, partitions: Sequence[Partition], config: ClusterConfig) -> Association | None:
    names = {partition.name for partition in partitions}
    fitting = [
        item
        for item in config.associations or ()
        if item.cluster == config.name
        and (item.account == named if named else item.is_default)
        and (not item.partition or item.partition in names)
    ]
    # An association for this very partition comes before one for all partitions.
    return max(fitting, key=lambda item: bool(item.partition), default=None)


def _qos(
    spec: SlurmSpec, partitions: Sequence[Partition], association: Association | None, config: ClusterConfig
) -> tuple[Qos, ...]:
    """The partition's QOS and then the job's; the other way round where the job's has the flag OverPartQOS.

    Slurm's resource limits page gives this order. Tried with Slurm 22.05: the first QOS that sets a limit decides it,
    even where the next is lower, and the association's limit counts only where no QOS sets one.
    """
    known = config.qos or {}
    of_job = known.get(_job_qos(option(spec, "qos"), association))
    of_partition = [known[item.qos] for item in partitions if item.qos in known]
    if of_job is None:
        return tuple(of_partition)
    return (of_job, *of_partition) if "OverPartQOS" in of_job.flags else (*of_partition, of_job)


def _job_qos(named: str | None, association: Association | None) -> str:
    if named is not None:
        return named
    if association is None:
        return ""
    alone = association.qos[0] if len(association.qos) == 1 else ""
    return association.default_qos or alone


def max_walltime_min(request: Request, config: ClusterConfig) -> int | None:
    """The longest walltime of a job: the shortest MaxTime of its partitions, or the first MaxWall where that is less.

    A QOS with the flag PartitionTimeLimit lifts the partition's limit.
    """
    walls = [qos.max_wall_min for qos in request.qos]
    if request.association is not None:
        walls.append(request.association.max_wall_min)
    wall = next((minutes for minutes in walls if minutes is not None), None) if config.enforces_limits else None
    is_lifted = any("PartitionTimeLimit" in qos.flags for qos in request.qos)
    limits = [] if is_lifted else [partition.max_walltime_min for partition in request.partitions]
    return min((minutes for minutes in (*limits, wall) if minutes is not None), default=None)


def usable_nodes(request: Request, config: ClusterConfig, spec: SlurmSpec) -> frozenset[str]:
    """Nodes of the partitions without excluded ones; where a reservation is named, only the reservation's."""
    name = option(spec, "reservation")
    reserved = next((item.nodes for item in config.reservations or () if item.name == name), frozenset[str]())
    return (request.nodes & reserved if reserved else request.nodes) - set(own_exclude(spec))


def max_array_tasks(config: ClusterConfig) -> int | None:
    """Tasks of one array, by MaxArraySize or max_array_tasks; 1 where the cluster allows no arrays."""
    settings = config.settings or {}
    size = settings.get("MaxArraySize", "")
    tasks = _MAX_ARRAY_TASKS.search(settings.get("SchedulerParameters", ""))
    numbers = [int(text) for text in (size, tasks[1] if tasks else "") if text.isdecimal()]
    return max(1, min(numbers)) if numbers else None


def maintenance_at(request: Request, config: ClusterConfig, *, own: str | None, now: float) -> float | None:
    """Unix time at which the next maintenance begins that takes every node of the partition.

    Maintenance of some of the nodes (rolling updates) leaves jobs the others. Maintenance that has begun does not
    count: its end can be waited for, and no walltime fits before it.

    Args:
        request: What the submission asks for.
        config: The cluster's configuration.
        own: The reservation that jobs run in, which does not stop them.
        now: Unix time.
    """
    nodes = request.nodes
    starts = [
        item.starts_at
        for item in config.reservations or ()
        if "MAINT" in item.flags
        and item.name != own
        and item.starts_at is not None
        and item.starts_at > now
        and ("ALL_NODES" in item.flags or (nodes and nodes <= item.nodes))
    ]
    return min(starts, default=None)
