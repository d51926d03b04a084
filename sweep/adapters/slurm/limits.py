"""Which of Slurm's limits a submission would meet, and how much of each is left."""

from __future__ import annotations

import re
from dataclasses import field
from typing import TYPE_CHECKING

from sweep.adapters.slurm.script import own_exclude
from sweep.core.encoding.frozen import dataclass
from sweep.core.settings.site import SizeLimit
from sweep.core.settings.spec import GpuFlag

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from sweep.adapters.slurm.site_text import Account, Association, Partition, Qos, Queued, Reservation, Tres
    from sweep.core.settings.spec import SlurmSpec

_MAX_ARRAY_TASKS = re.compile(r"\bmax_array_tasks=(\d+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What a cluster has said of itself; None: it could not be asked.

    Attributes:
        config: Slurm's settings.
        partitions: Its partitions.
        reservations: Its reservations.
        associations: What this user may do.
        accounts: Accounts with what is shared in them.
        qos: QOS by name.
    """

    config: Mapping[str, str] | None = None
    partitions: Sequence[Partition] | None = None
    reservations: Sequence[Reservation] | None = None
    associations: Sequence[Association] | None = None
    accounts: Sequence[Account] | None = None
    qos: Mapping[str, Qos] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Limit:
    """One limit on how many jobs may be queued or running.

    Attributes:
        name: In Slurm's words.
        most: So many.
        qos: Counts the jobs of this QOS, and of partitions that have it; empty: of any.
        account: Counts the jobs of these accounts; empty: of any.
        of_everyone: Counts other users' jobs too.
    """

    name: str
    most: int
    qos: str = ""
    account: frozenset[str] = frozenset()
    of_everyone: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What a submission asks for, defaults filled in as Slurm does; empty or None where that is not known.

    Attributes:
        partitions: The partitions, by name, as far as they exist.
        association: What it is charged to.
        qos: The QOS whose limits are looked at, in Slurm's order: the first that sets a limit decides it.
    """

    partitions: tuple[Partition, ...] = ()
    association: Association | None = None
    qos: tuple[Qos, ...] = field(default=())

    @property
    def nodes(self) -> frozenset[str]:
        """Nodes that it can run on."""
        return frozenset[str]().union(*(partition.nodes for partition in self.partitions))


def option(spec: SlurmSpec, name: str) -> str | None:
    """What a site's settings ask of sbatch; the free-form ones come last and win."""
    free = {key.replace("_", "-"): value for key, value in spec.sbatch.items()}
    value = free.get(name, getattr(spec, name))
    return None if value is None else str(value)


def asked_of(spec: SlurmSpec, facts: Facts) -> Asked:
    """What a submission with these settings asks for."""
    partitions = _partitions(option(spec, "partition"), facts)
    association = _association(option(spec, "account"), partitions, facts)
    return Asked(partitions=partitions, association=association, qos=_qos(spec, partitions, association, facts))


def _partitions(named: str | None, facts: Facts) -> tuple[Partition, ...]:
    known = facts.partitions or ()
    if named is None:
        return tuple(partition for partition in known if partition.is_default)
    return tuple(partition for partition in known if partition.name in named.split(","))


def _association(named: str | None, partitions: Sequence[Partition], facts: Facts) -> Association | None:
    cluster = (facts.config or {}).get("ClusterName")
    names = {partition.name for partition in partitions}
    fitting = [
        item
        for item in facts.associations or ()
        if item.cluster == cluster
        and (item.account == named if named else item.is_default)
        and (not item.partition or item.partition in names)
    ]
    # One for this very partition comes before one for all.
    return max(fitting, key=lambda item: bool(item.partition), default=None)


def _qos(
    spec: SlurmSpec, partitions: Sequence[Partition], association: Association | None, facts: Facts
) -> tuple[Qos, ...]:
    """The partition's QOS and then the job's, or the other way round where the job's has the flag OverPartQOS.

    The order is that of Slurm's resource limits page; that the first QOS which sets a limit decides it, a higher one
    too, and that the association's counts only where none does, was tried with Slurm 22.05.
    """
    known = facts.qos or {}
    jobs = known.get(_job_qos(option(spec, "qos"), association))
    of_partition = [known[item.qos] for item in partitions if item.qos in known]
    if jobs is None:
        return tuple(of_partition)
    return (jobs, *of_partition) if "OverPartQOS" in jobs.flags else (*of_partition, jobs)


def _job_qos(named: str | None, association: Association | None) -> str:
    if named is not None:
        return named
    if association is None:
        return ""
    alone = association.qos[0] if len(association.qos) == 1 else ""
    return association.default_qos or alone


def enforces_limits(facts: Facts) -> bool:
    """Whether limits of associations and QOS are more than words (AccountingStorageEnforce)."""
    enforced = (facts.config or {}).get("AccountingStorageEnforce", "").lower().split(",")
    return not {"limits", "safe", "all"}.isdisjoint(enforced)


def submit_limits(asked: Asked, facts: Facts) -> list[Limit]:
    """Limits on submitted jobs that apply to what is asked for, the overridden ones left out."""
    if not enforces_limits(facts):
        return []
    found: list[Limit] = []
    for kind, name in (("per_user", "MaxSubmitJobsPerUser"), ("per_account", "MaxSubmitJobsPerAccount")):
        found.extend(_first_of_qos(asked, kind, name))
    account = asked.association
    if not found and account is not None and account.max_submit is not None:
        name = f"MaxSubmitJobs of the account {account.account}"
        found.append(Limit(name=name, most=account.max_submit, account=frozenset({account.account})))
    shared = list(_first_of_qos(asked, "group_submit", "GrpSubmitJobs")) or _of_accounts(asked, facts)
    return [*found, *shared]


def _first_of_qos(asked: Asked, kind: str, name: str) -> Iterator[Limit]:
    for qos in asked.qos:
        most: int | None = getattr(qos, kind)
        if most is not None:
            own = frozenset[str]()
            if kind == "per_account" and asked.association is not None:
                own = frozenset({asked.association.account})
            yield Limit(
                name=f"{name} of the QOS {qos.name}",
                most=most,
                qos=qos.name,
                account=own,
                of_everyone=kind != "per_user",
            )
            return


def _of_accounts(asked: Asked, facts: Facts) -> list[Limit]:
    """GrpSubmitJobs of the account and of all above it: the jobs of every account below count."""
    cluster = (facts.config or {}).get("ClusterName")
    accounts = {item.name: item for item in facts.accounts or () if item.cluster == cluster}
    found: list[Limit] = []
    for name in _upwards(asked.association.account if asked.association else "", accounts):
        most = accounts[name].group_submit
        if most is not None:
            below = frozenset(other for other in accounts if name in _upwards(other, accounts))
            found.append(Limit(name=f"GrpSubmitJobs of the account {name}", most=most, account=below, of_everyone=True))
    return found


def _upwards(name: str, accounts: Mapping[str, Account]) -> list[str]:
    path: list[str] = []
    while name in accounts and name not in path:
        path.append(name)
        name = accounts[name].parent
    return path


def size_limits(asked: Asked, facts: Facts, spec: SlurmSpec) -> tuple[SizeLimit, ...]:
    """Limits on nodes, GPUs and cores that a job alone can exceed: each job's, and those on what runs together.

    Of each the first QOS that sets it decides; the association's, and those of the accounts above it, only where none.
    """
    if not enforces_limits(facts):
        return ()
    found: list[SizeLimit] = []
    for name in ("GrpTRES", "MaxTRES", "MaxTRESPerUser", "MaxTRESPerAccount"):
        for resource in ("node", "gres/gpu", "cpu"):
            limits = ((f"the QOS {qos.name}", qos.tres) for qos in asked.qos)
            holders = [(where, tres) for where, tres in limits if resource in tres.get(name, {})][:1]
            for where, tres in holders or _resources_of_association(asked, facts):
                most = tres.get(name, {}).get(resource)
                if most is not None:
                    found.extend(_size_limit(f"{name} {resource}={most} of {where}", resource, most, spec))
    return tuple(found)


def _resources_of_association(asked: Asked, facts: Facts) -> list[tuple[str, Tres]]:
    association = asked.association
    if association is None:
        return []
    cluster = (facts.config or {}).get("ClusterName")
    accounts = {item.name: item for item in facts.accounts or () if item.cluster == cluster}
    above = [(f"the account {name}", accounts[name].tres) for name in _upwards(association.account, accounts)]
    return [(f"this user in the account {association.account}", association.tres), *above]


def _size_limit(name: str, resource: str, most: int, spec: SlurmSpec) -> Iterator[SizeLimit]:
    if resource == "node":
        yield SizeLimit(name=name, nodes=most)
    elif resource == "cpu":
        # One task on each node has so many cores, at least.
        yield SizeLimit(name=name, nodes=most // (spec.cpus_per_task or 1))
    elif spec.gpu_flag is not GpuFlag.NONE:
        yield SizeLimit(name=name, gpus=most)


def used_of(limit: Limit, queue: Sequence[Queued], partitions: Sequence[Partition]) -> int:
    """Jobs and array tasks in the queue that count against a limit."""
    with_qos = {partition.name for partition in partitions if limit.qos and partition.qos == limit.qos}
    return sum(
        1
        for job in queue
        if (not limit.account or job.account in limit.account)
        and (not limit.qos or job.qos == limit.qos or not with_qos.isdisjoint(job.partition.split(",")))
    )


def max_walltime_min(asked: Asked, facts: Facts) -> int | None:
    """The longest walltime: the partition's MaxTime (of several the shortest), and MaxWall of the first that sets one.

    A QOS with the flag PartitionTimeLimit is free of the partition's.
    """
    walls = [qos.max_wall_min for qos in asked.qos]
    if asked.association is not None:
        walls.append(asked.association.max_wall_min)
    wall = next((minutes for minutes in walls if minutes is not None), None) if enforces_limits(facts) else None
    is_free = any("PartitionTimeLimit" in qos.flags for qos in asked.qos)
    limits = [] if is_free else [partition.max_walltime_min for partition in asked.partitions]
    return min((minutes for minutes in (*limits, wall) if minutes is not None), default=None)


def usable_nodes(asked: Asked, facts: Facts, spec: SlurmSpec) -> frozenset[str]:
    """Nodes of the partitions that the settings leave: not excluded, and of a reservation where one is named."""
    own = option(spec, "reservation")
    reserved = next((item.nodes for item in facts.reservations or () if item.name == own), frozenset[str]())
    return (asked.nodes & reserved if reserved else asked.nodes) - set(own_exclude(spec))


def max_array_tasks(facts: Facts) -> int | None:
    """Tasks of one array: MaxArraySize, or less by the scheduler's own parameter; 1 where arrays are switched off."""
    config = facts.config or {}
    size = config.get("MaxArraySize", "")
    tasks = _MAX_ARRAY_TASKS.search(config.get("SchedulerParameters", ""))
    numbers = [int(text) for text in (size, tasks[1] if tasks else "") if text.isdecimal()]
    return max(1, min(numbers)) if numbers else None


def maintenance_at(asked: Asked, facts: Facts, *, own: str | None, now: float) -> float | None:
    """When the next maintenance begins that leaves the partition no node at all.

    One of some nodes only (rolling updates) keeps no job from the others; one that has begun already can be waited
    for, but no walltime fits before it.

    Args:
        asked: What is asked for.
        facts: What is known.
        own: The reservation that jobs run in, which is no obstacle to them.
        now: Unix time.
    """
    nodes = asked.nodes
    starts = [
        item.starts_at
        for item in facts.reservations or ()
        if "MAINT" in item.flags
        and item.name != own
        and item.starts_at is not None
        and item.starts_at > now
        and ("ALL_NODES" in item.flags or (nodes and nodes <= item.nodes))
    ]
    return min(starts, default=None)
