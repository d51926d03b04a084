"""Checks of the partition, account, QOS, reservation, nodes and walltime that a cluster's settings ask Slurm for."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from sweep.adapters.slurm.site.cluster_site import SlurmSite
from sweep.adapters.slurm.site.read_config import NODE_FORMAT, read_out_of_service
from sweep.adapters.slurm.site.request import Request, max_array_tasks, max_walltime_min, option, resolve_request
from sweep.usecases.doctor.checks import Finding, not_checked, ok, problem, warning

if TYPE_CHECKING:
    from sweep.adapters.slurm.commands import SlurmCommands
    from sweep.core.settings.spec import ClusterSpec


class RequestChecks:
    """The checks of what one cluster's settings ask for.

    Args:
        cluster: The cluster.
        commands: Runs Slurm's commands.
        user: Whose limits apply.
        nodes: Nodes of the largest job that is to be run.
    """

    def __init__(self, cluster: ClusterSpec, commands: SlurmCommands, user: str, *, nodes: int) -> None:
        self._cluster, self._spec, self._commands, self._nodes = cluster, cluster.slurm, commands, nodes
        self._site = SlurmSite(self._spec, commands, user)

    def _resolved(self) -> Request:
        return resolve_request(self._spec, self._site.config())

    def partition(self) -> Finding:
        """The partition exists and starts jobs."""
        known = self._site.config().partitions
        if known is None:
            return not_checked("partition", "scontrol does not list the partitions")
        named, chosen = option(self._spec, "partition"), self._resolved().partitions
        others = ", ".join(sorted(item.name for item in known)) or "none"
        mend = f"Set cluster.slurm.partition to one of: {others}."
        unknown = {*(named.split(",") if named else [])} - {item.name for item in chosen}
        if unknown:
            return problem("partition", f"there is no partition {', '.join(sorted(unknown))}", mend)
        if not chosen:
            return problem("partition", "the cluster has no default", mend)
        down = [item.name for item in chosen if not item.is_up]
        if down:
            return warning("partition", f"{', '.join(down)} is not up", f"Wait, or choose another of: {others}.")
        names = ", ".join(f"{item.name} ({len(item.nodes)} nodes)" for item in chosen)
        return ok("partition", names if named else f"{names}, the default")

    def account(self) -> Finding:
        """The user may use the account and the QOS."""
        associations = self._site.config().associations
        if not associations:
            why = "sacctmgr does not list this user's accounts; the job script's check may show them"
            return not_checked("account and QOS", why)
        named, qos = option(self._spec, "account"), option(self._spec, "qos")
        chosen = self._resolved().association
        if chosen is None:
            mine = ", ".join(sorted({item.account for item in associations}))
            what = f"the account {named} is not one of this user's" if named else "this user has no default account"
            return problem("account and QOS", what, f"Set cluster.slurm.account to one of: {mine}.")
        if qos is not None and qos not in chosen.qos:
            mend = f"Set cluster.slurm.qos to one of: {', '.join(chosen.qos) or 'none'}."
            return problem("account and QOS", f"the QOS {qos} may not be used with the account {chosen.account}", mend)
        shown = qos or chosen.default_qos or "the cluster's default"
        return ok("account and QOS", f"account {chosen.account}, QOS {shown}")

    def reservation(self) -> list[Finding]:
        """The reservation exists; no finding where the settings name none."""
        named, known = option(self._spec, "reservation"), self._site.config().reservations
        if named is None:
            return []
        if known is None:
            return [not_checked("reservation", "scontrol does not list the reservations")]
        names = sorted(item.name for item in known)
        if named not in names:
            mend = f"Set cluster.slurm.reservation to one of: {', '.join(names) or 'none, leave it out'}."
            return [problem("reservation", f"there is no reservation {named}", mend)]
        return [ok("reservation", named)]

    def nodes(self) -> Finding:
        """Enough of the partition's nodes are in service."""
        names = self._resolved().nodes
        states = read_out_of_service(self._commands.ask(["sinfo", "-N", "-h", "-o", NODE_FORMAT]))
        sick = {node: state for node, state in states.items() if node in names}
        well = len(names) - len(sick)
        fact = f"{well} of {len(names)} nodes are in service"
        if sick:
            fact += f" (not: {', '.join(f'{node} {state}' for node, state in sorted(sick.items())[:4])})"
        if well < self._nodes:
            fact = f"{fact}; {self._nodes} are needed"
            return problem("nodes in service", fact, "Take fewer nodes, or another partition.")
        return ok("nodes in service", fact)

    def walltime(self) -> list[Finding]:
        """The walltime is within the limits, and no maintenance lies ahead."""
        most, asked = max_walltime_min(self._resolved(), self._site.config()), self._cluster.walltime_min
        if most is not None and asked > most:
            fact = f"jobs ask for {asked} minutes; the limit is {most}"
            return [problem("walltime", fact, f"Set cluster.walltime_min={most} or less, or another partition or QOS.")]
        found = [ok("walltime", f"{asked} minutes; the limit is {most or 'none'}{' minutes' if most else ''}")]
        maintenance = self._site.site().maintenance_at
        if maintenance is not None:
            when = time.strftime("%Y-%m-%d %H:%M", time.localtime(maintenance))
            mend = "Jobs whose walltime reaches into it wait until it is over; set a shorter cluster.walltime_min."
            found.append(warning("maintenance", f"begins at {when}", mend))
        return found

    def room(self) -> Finding:
        """More jobs may be submitted now."""
        tasks, free = max_array_tasks(self._site.config()), self._site.site().free_tasks
        if tasks is None:
            return not_checked("room for jobs", "scontrol does not give MaxArraySize")
        room = "no limit on submitted jobs" if free is None else f"{free} more jobs may be queued now"
        fact = f"arrays of up to {tasks} tasks; {room}"
        if free == 0:
            mend = "A sweep waits until some have ended; it then submits cells one by one."
            return warning("room for jobs", fact, mend)
        return ok("room for jobs", fact)
