"""Asks Slurm which limits, partitions, reservations and nodes a cluster has."""

from __future__ import annotations

import pwd
import time
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from sweep.adapters.slurm.script import without_unknown
from sweep.adapters.slurm.site import read_config
from sweep.adapters.slurm.site.cluster_config import ClusterConfig, QueuedJob
from sweep.adapters.slurm.site.limits import count_against, size_limits, submit_limits
from sweep.adapters.slurm.site.request import (
    Request,
    maintenance_at,
    max_array_tasks,
    max_walltime_min,
    option,
    resolve_request,
    usable_nodes,
)
from sweep.core.settings.site import Site
from sweep.ports import SchedulerError, SchedulerUnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from sweep.adapters.slurm.commands import SlurmCommands
    from sweep.core.settings.spec import SlurmSpec

FRESH_S = 600.0
"""Seconds for which a complete configuration is not asked for again."""
ASK_AGAIN_S = 60.0
"""Seconds after which it is asked for again where a part could not be had."""


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
        self._config, self._good_until = ClusterConfig(), float("-inf")
        self._unreachable = ""

    def site(self) -> Site:
        """The cluster's limits and nodes; a value is None where Slurm does not give it.

        Raises:
            SchedulerUnreachableError: If the controller does not answer, and never has.
        """
        config = self.config()
        if config.settings is None and self._unreachable:
            raise SchedulerUnreachableError(
                f"asked what the cluster allows: {self._unreachable}. Nothing was submitted. Wait until "
                "`scontrol ping` shows that the controller is up, or let SLURM_CONF name the right cluster's file; "
                "then give the same command again."
            )
        request = resolve_request(self._spec, config)
        spec, unknown = self._fitting(config)
        return Site(
            max_array_tasks=max_array_tasks(config),
            free_tasks=self._free_tasks(request, config),
            max_walltime_min=max_walltime_min(request, config),
            nodes=request.nodes,
            usable=usable_nodes(request, config, spec) - self.out_of_service().keys(),
            size_limits=size_limits(request, config, spec),
            notes=tuple(
                f"slurm.exclude (or slurm.sbatch.exclude) names {node}, a node that this cluster does not know; it is "
                "left out"
                for node in unknown
            ),
            maintenance_at=maintenance_at(request, config, own=option(self._spec, "reservation"), now=self._now()),
        )

    def cluster_name(self) -> str | None:
        """Slurm's ClusterName; None where the controller does not answer."""
        return self.config().name

    def fitting_spec(self) -> SlurmSpec:
        """The site's settings without excluded nodes that the cluster, when last asked, did not know."""
        return self._fitting(self._config)[0]

    def _fitting(self, config: ClusterConfig) -> tuple[SlurmSpec, tuple[str, ...]]:
        return without_unknown(self._spec, config.nodes) if config.partitions else (self._spec, ())

    def unhealthy(self, nodes: Collection[str]) -> Mapping[str, str]:
        """Those of the nodes that are out of service, with state and reason, by one call."""
        return {node: state for node, state in self.out_of_service().items() if node in nodes} if nodes else {}

    def out_of_service(self) -> Mapping[str, str]:
        """Every node out of service, with state and reason; empty where sinfo fails."""
        return read_config.read_out_of_service(self._ask(["sinfo", "-N", "-h", "-o", read_config.NODE_FORMAT]) or "")

    def config(self) -> ClusterConfig:
        """The cluster's configuration, at most FRESH_S old; a part that cannot be asked for now stays as it was."""
        if self._now() < self._good_until:
            return self._config
        new = self._ask_config()
        known = {
            item.name: getattr(new, item.name) for item in fields(ClusterConfig) if getattr(new, item.name) is not None
        }
        is_complete = len(known) == len(fields(ClusterConfig))
        self._config = replace(self._config, **known)
        self._good_until = self._now() + (FRESH_S if is_complete else ASK_AGAIN_S)
        return self._config

    def _ask_config(self) -> ClusterConfig:
        """Ask part by part, and stop where the controller does not answer: each question would wait for a timeout."""
        config, self._unreachable = ClusterConfig(), ""
        try:
            config = replace(config, settings=self._read(read_config.read_settings, "scontrol", "show", "config"))
            if config.settings is None:
                return config
            partitions = self._read(read_config.read_partitions, "scontrol", "-o", "show", "partition")
            config = replace(config, partitions=partitions)
            reservations = self._read(read_config.read_reservations, "scontrol", "-o", "show", "reservation")
            config = replace(config, reservations=reservations)
            if not config.enforces_limits:
                # Then no limit of the accounting database applies, and there may be no database.
                return replace(config, associations=(), accounts=(), qos={})
            return self._with_limits(config)
        except SchedulerUnreachableError as error:
            self._unreachable = str(error)
            return config

    def _with_limits(self, config: ClusterConfig) -> ClusterConfig:
        name, show = _name_of(self._user), ("sacctmgr", "-n", "-P", "show")
        if name is None:
            return config
        of_user = (*show, "user", "where", f"name={name}", "withassoc", f"format={read_config.USER_FORMAT}")
        return replace(
            config,
            associations=self._read(read_config.read_associations, *of_user),
            # An empty user selects the accounts' own rows.
            accounts=self._read(
                read_config.read_accounts, *show, "assoc", "where", "user=", f"format={read_config.ACCOUNT_FORMAT}"
            ),
            qos=self._read(read_config.read_qos, *show, "qos", f"format={read_config.QOS_FORMAT}"),
        )

    def _free_tasks(self, request: Request, config: ClusterConfig) -> int | None:
        limits = submit_limits(request, config)
        own = self._queue("-u", self._user) if any(not limit.of_everyone for limit in limits) else None
        everyone = self._queue() if any(limit.of_everyone for limit in limits) else None
        free = []
        for limit in limits:
            queue = everyone if limit.of_everyone else own
            if queue is not None:
                free.append(max(0, limit.most - count_against(limit, queue, config.partitions or ())))
        return min(free, default=None)

    def _queue(self, *selection: str) -> list[QueuedJob] | None:
        text = self._ask(["squeue", "--array", "-h", *selection, "-o", read_config.QUEUE_FORMAT])
        return None if text is None else read_config.read_queue(text)

    def _read(self, read: Callable[[str], Any], *command: str) -> Any:
        """The command's answer as ``read`` reads it; None where the command fails.

        Raises:
            SchedulerUnreachableError: If the controller or the database does not answer.
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
    """The user's name, since sacctmgr takes no number; None where the number has no name."""
    if not user.isdecimal():
        return user
    try:
        return pwd.getpwuid(int(user)).pw_name
    except (KeyError, OverflowError):
        return None
