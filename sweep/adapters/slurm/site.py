"""What a Slurm cluster allows just now, asked of scontrol, sacctmgr, squeue and sinfo, and what no waiting cures."""

from __future__ import annotations

import pwd
import re
import time
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from sweep.adapters.slurm.limits import (
    Facts,
    asked_of,
    enforces_limits,
    maintenance_at,
    max_array_tasks,
    max_walltime_min,
    option,
    size_limits,
    submit_limits,
    usable_nodes,
    used_of,
)
from sweep.adapters.slurm.script import without_unknown
from sweep.adapters.slurm.site_text import (
    ACCOUNT_FORMAT,
    NODE_FORMAT,
    QOS_FORMAT,
    QUEUE_FORMAT,
    USER_FORMAT,
    Queued,
    read_accounts,
    read_associations,
    read_config,
    read_partitions,
    read_qos,
    read_queue,
    read_reservations,
    read_unhealthy,
)
from sweep.core.attempts.attempt import Phase
from sweep.core.settings.site import Site
from sweep.ports import SchedulerError, SchedulerUnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from sweep.adapters.slurm.commands import SlurmCommands
    from sweep.adapters.slurm.limits import Asked
    from sweep.core.attempts.attempt import JobReport
    from sweep.core.settings.spec import SlurmSpec

FRESH_S = 600.0
"""Seconds for which settings, limits and reservations are taken as they were."""
ASK_AGAIN_S = 60.0
"""Seconds after which they are asked for again where some could not be had."""

HOPELESS: tuple[tuple[str, str], ...] = (
    (r"PartitionTimeLimit", "the walltime is above the partition's MaxTime"),
    (r"PartitionNodeLimit", "the nodes asked for are more or fewer than the partition allows"),
    (r"PartitionConfig", "the partition's settings do not allow what is asked for"),
    (r"BadConstraints", "no node can ever be what is asked for"),
    (r"AccountNotAllowed", "the partition does not take the account"),
    (r"QOSNotAllowed", "the partition does not take the QOS"),
    (r"Job's (account|QOS) not permitted to use this partition", "as the two before, in squeue's sentence for them"),
    (r"InvalidAccount", "the account does not exist any more, or not for this user"),
    (r"InvalidQOS", "the QOS does not exist any more, or not for this user"),
    (r"(QOS|Assoc)Max\w+PerJob(Limit)?", "the job alone is above a limit on each job (walltime, nodes, GPUs ...)"),
    (r"(QOS|Assoc)Max\w+PerNode(Limit)?", "the job asks for more of each node than a limit allows"),
    (r"QOSMin\w+", "the job is smaller than the QOS wants its jobs"),
    (r"MaxMemPerLimit", "the memory asked for is above MaxMemPerCPU or MaxMemPerNode"),
    (r"ReservationDeleted", "the reservation was deleted, and the job is held"),
    (r"DependencyNeverSatisfied", "what the job depends on has failed"),
)
"""Reasons for which a job waits that no waiting cures, each with what it means.

The words are those of Slurm's job reason codes page (slurm.schedmd.com/job_reason_codes.html) and of
``job_reason_string()`` in its source. Seen with Slurm 22.05 on jobs that waited for nothing: PartitionTimeLimit,
PartitionNodeLimit, InvalidQOS, QOSMaxWallDurationPerJobLimit, QOSMaxNodePerJobLimit, QOSMinCpuNotSatisfied, and the
two sentences, which squeue prints in the place of AccountNotAllowed and QOSNotAllowed.

Not here, because they pass: what waits for others (Priority, Resources, Reservation, JobArrayTaskLimit, Licenses),
limits that are used up for now (``...PerUser...``, ``...PerAccount...``, ``...Grp...``, MaxJobs, MaxSubmit), what
somebody can set right meanwhile (PartitionDown, PartitionInactive, ReqNodeNotAvail, "Nodes required for job are DOWN,
DRAINED or reserved", JobHeldUser, JobHeldAdmin), and every word that is not known.
"""
_HOPELESS = re.compile("|".join(f"(?:{pattern})" for pattern, _ in HOPELESS))
_WORD = re.compile(r"\w+")
_EXCLUDE = "slurm.exclude (or slurm.sbatch.exclude) names"


def is_hopeless(report: JobReport) -> bool:
    """Whether a waiting job's reason is one that no waiting cures."""
    if report.phase is not Phase.PENDING:
        return False
    match = _HOPELESS.match(report.reason.strip())
    # A longer word is another reason: only the whole of it counts.
    return match is not None and not _WORD.match(report.reason.strip(), match.end())


class SlurmSite:
    """Asks one cluster what it allows one user.

    Args:
        spec: The site's settings.
        commands: Runs Slurm's commands.
        user: Name or number of the user.
        now: Gives Unix time.
    """

    def __init__(
        self, spec: SlurmSpec, commands: SlurmCommands, user: str, *, now: Callable[[], float] = time.time
    ) -> None:
        self._spec, self._commands, self._user, self._now = spec, commands, user, now
        self._facts, self._good_until = Facts(), float("-inf")
        self._unreached = ""

    def site(self) -> Site:
        """Limits and facts; what cannot be asked is None.

        Raises:
            SchedulerUnreachableError: If the controller is away, and never answered.
        """
        facts = self.facts()
        if facts.config is None and self._unreached:
            raise SchedulerUnreachableError(
                f"asked what the cluster allows: {self._unreached}. Nothing was submitted. Wait until `scontrol ping` "
                "says that the controller is up, or let SLURM_CONF name the right cluster's file; then give the same "
                "command again."
            )
        asked = asked_of(self._spec, facts)
        spec, unknown = self._fitting(facts)
        return Site(
            max_array_tasks=max_array_tasks(facts),
            free_tasks=self._free_tasks(asked, facts),
            max_walltime_min=max_walltime_min(asked, facts),
            nodes=asked.nodes,
            usable=usable_nodes(asked, facts, spec) - self._out_of_service().keys(),
            size_limits=size_limits(asked, facts, spec),
            notes=tuple(
                f"{_EXCLUDE} {node}, a node that this cluster does not know; it is left out" for node in unknown
            ),
            maintenance_at=maintenance_at(asked, facts, own=option(self._spec, "reservation"), now=self._now()),
        )

    def cluster_name(self) -> str | None:
        """Its ClusterName; None where the controller does not answer."""
        return (self.facts().config or {}).get("ClusterName")

    def fitting_spec(self) -> SlurmSpec:
        """The site's settings as far as the cluster, when it was last asked, knows what they name."""
        return self._fitting(self._facts)[0]

    def _fitting(self, facts: Facts) -> tuple[SlurmSpec, tuple[str, ...]]:
        if not facts.partitions:
            return self._spec, ()
        return without_unknown(self._spec, frozenset[str]().union(*(part.nodes for part in facts.partitions)))

    def unhealthy(self, nodes: Collection[str]) -> Mapping[str, str]:
        """Of these nodes, those out of service, with state and reason, by one call."""
        return {node: said for node, said in self._out_of_service().items() if node in nodes} if nodes else {}

    def _out_of_service(self) -> Mapping[str, str]:
        return read_unhealthy(self._ask(["sinfo", "-N", "-h", "-o", NODE_FORMAT]) or "")

    def facts(self) -> Facts:
        """What the cluster says of itself, at most FRESH_S old; what cannot be asked now stays as it was."""
        if self._now() < self._good_until:
            return self._facts
        new = self._ask_facts()
        known = {item.name: getattr(new, item.name) for item in fields(Facts) if getattr(new, item.name) is not None}
        is_whole = len(known) == len(fields(Facts))
        self._facts = replace(self._facts, **known)
        self._good_until = self._now() + (FRESH_S if is_whole else ASK_AGAIN_S)
        return self._facts

    def _ask_facts(self) -> Facts:
        """Question after question, up to the first that finds nobody there: each would take its whole time-out."""
        facts, self._unreached = Facts(), ""
        try:
            facts = replace(facts, config=self._read(read_config, "scontrol", "show", "config"))
            if facts.config is None:
                return facts
            partitions = self._read(read_partitions, "scontrol", "-o", "show", "partition")
            facts = replace(facts, partitions=partitions)
            reservations = self._read(read_reservations, "scontrol", "-o", "show", "reservation")
            facts = replace(facts, reservations=reservations)
            if not enforces_limits(facts):
                # Then nothing that sacctmgr says holds a job back, and there may be no database to ask.
                return replace(facts, associations=(), accounts=(), qos={})
            return self._with_limits(facts)
        except SchedulerUnreachableError as error:
            self._unreached = str(error)
            return facts

    def _with_limits(self, facts: Facts) -> Facts:
        name, show = _name_of(self._user), ("sacctmgr", "-n", "-P", "show")
        if name is None:
            return facts
        of_user = (*show, "user", "where", f"name={name}", "withassoc", f"format={USER_FORMAT}")
        return replace(
            facts,
            associations=self._read(read_associations, *of_user),
            # No user: the accounts' own rows.
            accounts=self._read(read_accounts, *show, "assoc", "where", "user=", f"format={ACCOUNT_FORMAT}"),
            qos=self._read(read_qos, *show, "qos", f"format={QOS_FORMAT}"),
        )

    def _free_tasks(self, asked: Asked, facts: Facts) -> int | None:
        limits = submit_limits(asked, facts)
        own = self._queue("-u", self._user) if any(not limit.of_everyone for limit in limits) else None
        everyone = self._queue() if any(limit.of_everyone for limit in limits) else None
        free = []
        for limit in limits:
            queue = everyone if limit.of_everyone else own
            if queue is not None:
                free.append(max(0, limit.most - used_of(limit, queue, facts.partitions or ())))
        return min(free, default=None)

    def _queue(self, *whose: str) -> list[Queued] | None:
        text = self._ask(["squeue", "--array", "-h", *whose, "-o", QUEUE_FORMAT])
        return None if text is None else read_queue(text)

    def _read(self, read: Callable[[str], Any], *command: str) -> Any:
        """What was read of the answer, of the type that ``read`` gives; None where there is none.

        Raises:
            SchedulerUnreachableError: If nobody is there to answer.
        """
        try:
            return read(self._commands.ask([*command]))
        except SchedulerUnreachableError:
            raise
        except SchedulerError:
            return None

    def _ask(self, command: Collection[str]) -> str | None:
        try:
            return self._commands.ask([*command])
        except SchedulerError:
            return None


def _name_of(user: str) -> str | None:
    """Sacctmgr takes names only."""
    if not user.isdecimal():
        return user
    try:
        return pwd.getpwuid(int(user)).pw_name
    except (KeyError, OverflowError):
        return None
