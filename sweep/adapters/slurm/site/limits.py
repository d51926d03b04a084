"""Finds which of Slurm's limits apply to a submission, and counts the jobs against each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sweep.adapters.slurm.site.cluster_config import ClusterConfig, Partition, QueuedJob, Tres
from sweep.adapters.slurm.site.request import Request
from sweep.core.encoding.frozen import dataclass
from sweep.core.settings.site import SizeLimit
from sweep.core.settings.spec import GpuFlag, SlurmSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class SubmitLimit:
    """One limit on how many jobs may be pending or running at once."""

    name: str
    """Slurm's name of the limit, and whose it is."""
    most: int
    qos: str = ""
    """Counts jobs of this QOS and of partitions that have it; empty: of any QOS."""
    accounts: frozenset[str] = frozenset()
    """Counts jobs of these accounts; empty: of any account."""
    of_everyone: bool = False
    """True if other users' jobs count too."""


def submit_limits(request: Request, config: ClusterConfig) -> list[SubmitLimit]:
    """Limits on submitted jobs that apply to a submission, without those that others override."""
    if not config.enforces_limits:
        return []
    found: list[SubmitLimit] = []
    for kind, name in (("per_user", "MaxSubmitJobsPerUser"), ("per_account", "MaxSubmitJobsPerAccount")):
        found.extend(_first_of_qos(request, kind, name))
    association = request.association
    if not found and association is not None and association.max_submit is not None:
        name = f"MaxSubmitJobs of the account {association.account}"
        found.append(SubmitLimit(name=name, most=association.max_submit, accounts=frozenset({association.account})))
    shared = list(_first_of_qos(request, "group_submit", "GrpSubmitJobs")) or _of_accounts(request, config)
    return [*found, *shared]


def _first_of_qos(request: Request, kind: str, name: str) -> Iterator[SubmitLimit]:
    for qos in request.qos:
        most: int | None = getattr(qos, kind)
        if most is not None:
            accounts = frozenset[str]()
            if kind == "per_account" and request.association is not None:
                accounts = frozenset({request.association.account})
            yield SubmitLimit(
                name=f"{name} of the QOS {qos.name}",
                most=most,
                qos=qos.name,
                accounts=accounts,
                of_everyone=kind != "per_user",
            )
            return


def _of_accounts(request: Request, config: ClusterConfig) -> list[SubmitLimit]:
    """GrpSubmitJobs of the account and of its parents, each of which counts the jobs of all accounts below it."""
    found: list[SubmitLimit] = []
    for account in config.account_and_parents(request.association.account) if request.association else ():
        if account.group_submit is not None:
            below = frozenset(
                item.name for item in config.accounts or () if account in config.account_and_parents(item.name)
            )
            name = f"GrpSubmitJobs of the account {account.name}"
            found.append(SubmitLimit(name=name, most=account.group_submit, accounts=below, of_everyone=True))
    return found


def size_limits(request: Request, config: ClusterConfig, spec: SlurmSpec) -> tuple[SizeLimit, ...]:
    """Limits on nodes, GPUs and cores that a single job can exceed, those on all running jobs together included.

    Of each the first QOS that sets it decides; those of the association and its accounts count only where none does.
    """
    if not config.enforces_limits:
        return ()
    found: list[SizeLimit] = []
    for name in ("GrpTRES", "MaxTRES", "MaxTRESPerUser", "MaxTRESPerAccount"):
        for resource in ("node", "gres/gpu", "cpu"):
            limits = ((f"the QOS {qos.name}", qos.tres) for qos in request.qos)
            holders = [(where, tres) for where, tres in limits if resource in tres.get(name, {})][:1]
            for where, tres in holders or _resources_of_association(request, config):
                most = tres.get(name, {}).get(resource)
                if most is not None:
                    found.extend(_size_limit(f"{name} {resource}={most} of {where}", resource, most, spec))
    return tuple(found)


def _resources_of_association(request: Request, config: ClusterConfig) -> list[tuple[str, Tres]]:
    association = request.association
    if association is None:
        return []
    accounts = config.account_and_parents(association.account)
    return [
        (f"this user in the account {association.account}", association.tres),
        *((f"the account {account.name}", account.tres) for account in accounts),
    ]


def _size_limit(name: str, resource: str, most: int, spec: SlurmSpec) -> Iterator[SizeLimit]:
    if resource == "node":
        yield SizeLimit(name=name, nodes=most)
    elif resource == "cpu":
        # The one task on each node has at least so many cores.
        yield SizeLimit(name=name, nodes=most // (spec.cpus_per_task or 1))
    elif spec.gpu_flag is not GpuFlag.NONE:
        yield SizeLimit(name=name, gpus=most)


def count_against(limit: SubmitLimit, queue: Sequence[QueuedJob], partitions: Sequence[Partition]) -> int:
    """Jobs and array tasks in the queue that count against a limit."""
    with_qos = {partition.name for partition in partitions if limit.qos and partition.qos == limit.qos}
    return sum(
        1
        for job in queue
        if (not limit.accounts or job.account in limit.accounts)
        and (not limit.qos or job.qos == limit.qos or not with_qos.isdisjoint(job.partition.split(",")))
    )
