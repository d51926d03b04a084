"""Checks of a Slurm cluster through its commands, none of which changes anything."""

from __future__ import annotations

import os
import re
import shutil
import time
from typing import TYPE_CHECKING

from sweep.adapters.slurm.limits import asked_of, max_array_tasks, max_walltime_min, option
from sweep.adapters.slurm.site import SlurmSite
from sweep.adapters.slurm.site_text import NODE_FORMAT, read_unhealthy
from sweep.ports import SchedulerError
from sweep.usecases.doctor import Check, Finding, not_checked, ok, problem, warning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from sweep.adapters.slurm.commands import Answer, SlurmCommands
    from sweep.core.jobs.submission import Submission
    from sweep.core.settings.spec import ClusterSpec

_NEEDED = ("sbatch", "squeue", "scancel", "srun")
_WANTED = ("scontrol", "sinfo", "sacctmgr")
_START = re.compile(r"to start at ([\dT:-]+)")
_NAMES = {"partition": "cluster.slurm.partition", "account": "cluster.slurm.account", "qos": "cluster.slurm.qos"}


class SlurmChecks:
    """The checks of one cluster.

    Args:
        cluster: The cluster.
        commands: Runs Slurm's commands.
        environ: The environment in whose PATH they are looked for.
        test_only: Puts a submission's own job script to ``sbatch --test-only``.
        trials: Submissions to try, one for each kind of job, the smallest last.
        user: Whose limits are looked at.
    """

    def __init__(
        self,
        cluster: ClusterSpec,
        commands: SlurmCommands,
        environ: Mapping[str, str],
        *,
        test_only: Callable[[Submission], Answer],
        trials: Sequence[Submission],
        user: str | None = None,
    ) -> None:
        self._cluster, self._spec, self._commands, self._environ = cluster, cluster.slurm, commands, environ
        self._test_only, self._trials = test_only, trials
        self._site = SlurmSite(self._spec, commands, user or str(os.getuid()))

    def checks(self) -> list[Check]:
        """All of them, in order."""
        alive = ("controller",)
        return [
            Check(name="commands", look=self.programs),
            Check(name="controller", look=self.controller, needs=("commands",)),
            Check(name="accounting", look=self.accounting, needs=("commands",)),
            Check(name="partition", look=self.partition, needs=alive),
            Check(name="account and QOS", look=self.account, needs=alive),
            Check(name="reservation", look=self.reservation, needs=alive),
            Check(name="nodes in service", look=self.nodes, needs=(*alive, "partition")),
            Check(name="walltime", look=self.walltime, needs=(*alive, "partition")),
            Check(name="room for jobs", look=self.room, needs=alive),
            Check(name="job script", look=lambda: self.scripts(self._trials[-1:]), needs=alive),
            *self._larger(),
        ]

    def _larger(self) -> list[Check]:
        """The other kinds of jobs, where there are any: what holds for the smallest is not said again."""
        rest = self._trials[:-1]
        needs = ("controller", "job script")
        return [Check(name="larger job scripts", look=lambda: self.scripts(rest), needs=needs)] if rest else []

    def programs(self) -> list[Finding]:
        """Slurm's commands are here."""
        path = self._environ.get("PATH", os.defpath)
        needed = (*_NEEDED, *(["sacct"] if self._spec.sacct else []))
        missing = [name for name in needed if shutil.which(name, path=path) is None]
        found = []
        if missing:
            mend = "Run on a login node, or load the cluster's Slurm module."
            if missing == ["sacct"]:
                mend = "Where the cluster keeps no accounting, set cluster.slurm.sacct=false."
            found.append(problem("commands", f"not on PATH: {', '.join(missing)}", mend))
        lacking = [name for name in _WANTED if shutil.which(name, path=path) is None]
        if lacking:
            found.append(
                warning(
                    "commands",
                    f"not on PATH: {', '.join(lacking)}",
                    "Limits, maintenance and sick nodes cannot be seen without them; nothing else depends on them.",
                )
            )
        if not missing:
            found.append(self._version())
        return found

    def _version(self) -> Finding:
        try:
            return ok("commands", self._commands.ask(["sbatch", "--version"]).strip())
        except SchedulerError as error:
            mend = "Run on a login node; where the cluster's slurm.conf is elsewhere, say so: export SLURM_CONF=FILE."
            return problem("commands", str(error), mend)

    def controller(self) -> Finding:
        """The controller answers."""
        try:
            said = self._commands.ask(["squeue", "-h", "-u", str(os.getuid()), "-o", "%i"])
        except SchedulerError as error:
            return problem("controller", str(error), "Ask the cluster's administrators; `scontrol ping` says the same.")
        return ok("controller", f"answers; {len(said.split())} of this user's jobs are in the queue")

    def accounting(self) -> Finding:
        """Sacct answers, or is not asked."""
        if not self._spec.sacct:
            return ok(
                "accounting", "not asked (slurm.sacct=false); a job's end is then known from what it writes itself"
            )
        try:
            self._commands.ask(["sacct", "-X", "-n", "-P", "-S", "now", "-o", "JobID"])
        except SchedulerError as error:
            mend = "Where the cluster keeps no accounting, set cluster.slurm.sacct=false; else ask its administrators."
            return problem("accounting", str(error), mend)
        return ok("accounting", "sacct answers")

    def partition(self) -> Finding:
        """The partition exists and starts jobs."""
        facts = self._site.facts()
        if facts.partitions is None:
            return not_checked("partition", "scontrol does not say which there are")
        named, chosen = option(self._spec, "partition"), asked_of(self._spec, facts).partitions
        there = ", ".join(sorted(item.name for item in facts.partitions)) or "none"
        unknown = {*(named.split(",") if named else [])} - {item.name for item in chosen}
        if unknown:
            return problem(
                "partition",
                f"there is no partition {', '.join(sorted(unknown))}",
                f"Set {_NAMES['partition']} to one of: {there}.",
            )
        if not chosen:
            return problem("partition", "the cluster has no default", f"Set {_NAMES['partition']} to one of: {there}.")
        down = [item.name for item in chosen if not item.is_up]
        if down:
            return warning("partition", f"{', '.join(down)} is not up", f"Wait, or choose another of: {there}.")
        names = ", ".join(f"{item.name} ({len(item.nodes)} nodes)" for item in chosen)
        return ok("partition", names if named else f"{names}, the default")

    def account(self) -> Finding:
        """The account and the QOS are this user's."""
        facts = self._site.facts()
        if not facts.associations:
            return not_checked(
                "account and QOS", "sacctmgr does not say what this user may use; the job script's check may"
            )
        asked = asked_of(self._spec, facts)
        named, qos = option(self._spec, "account"), option(self._spec, "qos")
        mine = ", ".join(sorted({item.account for item in facts.associations}))
        if asked.association is None:
            what = f"the account {named} is not one of this user's" if named else "this user has no default account"
            return problem("account and QOS", what, f"Set {_NAMES['account']} to one of: {mine}.")
        allowed = asked.association.qos
        if qos is not None and qos not in allowed:
            fact = f"the QOS {qos} may not be used with the account {asked.association.account}"
            return problem("account and QOS", fact, f"Set {_NAMES['qos']} to one of: {', '.join(allowed) or 'none'}.")
        shown = qos or asked.association.default_qos or "the cluster's default"
        return ok("account and QOS", f"account {asked.association.account}, QOS {shown}")

    def reservation(self) -> list[Finding]:
        """A reservation that is asked for exists; nothing to say where none is."""
        named = option(self._spec, "reservation")
        facts = self._site.facts()
        if named is None:
            return []
        if facts.reservations is None:
            return [not_checked("reservation", "scontrol does not say which there are")]
        there = sorted(item.name for item in facts.reservations)
        if named not in there:
            mend = f"Set cluster.slurm.reservation to one of: {', '.join(there) or 'none, leave it out'}."
            return [problem("reservation", f"there is no reservation {named}", mend)]
        return [ok("reservation", named)]

    def nodes(self) -> Finding:
        """Enough of the partition's nodes are in service."""
        names = asked_of(self._spec, self._site.facts()).nodes
        sick = {
            node: said
            for node, said in read_unhealthy(self._commands.ask(["sinfo", "-N", "-h", "-o", NODE_FORMAT])).items()
            if node in names
        }
        need = max((trial.nodes for trial in self._trials), default=1)
        well = len(names) - len(sick)
        fact = f"{well} of {len(names)} nodes are in service"
        if sick:
            fact += f" (not: {', '.join(f'{node} {said}' for node, said in sorted(sick.items())[:4])})"
        if well < need:
            return problem("nodes in service", f"{fact}; {need} are needed", "Take fewer nodes, or another partition.")
        return ok("nodes in service", fact)

    def walltime(self) -> list[Finding]:
        """The walltime is allowed, and no maintenance is in its way."""
        facts = self._site.facts()
        most, asked = max_walltime_min(asked_of(self._spec, facts), facts), self._cluster.walltime_min
        if most is not None and asked > most:
            fact = f"jobs ask for {asked} minutes; the limit is {most}"
            return [problem("walltime", fact, f"Set cluster.walltime_min={most} or less, or another partition or QOS.")]
        found = [ok("walltime", f"{asked} minutes; the limit is {most or 'none'}{' minutes' if most else ''}")]
        maintenance = self._site.site().maintenance_at
        if maintenance is not None:
            when = _local(maintenance)
            mend = (
                "Jobs whose walltime reaches into it wait until it is over; a shorter cluster.walltime_min starts them."
            )
            found.append(warning("maintenance", f"begins at {when}", mend))
        return found

    def room(self) -> Finding:
        """How many jobs may be queued."""
        facts, site = self._site.facts(), self._site.site()
        array = max_array_tasks(facts)
        if array is None:
            return not_checked("room for jobs", "scontrol does not say")
        free = (
            "no limit on submitted jobs"
            if site.free_tasks is None
            else f"{site.free_tasks} more jobs may be queued now"
        )
        fact = f"arrays of up to {array} tasks; {free}"
        if site.free_tasks == 0:
            return warning(
                "room for jobs", fact, "A sweep waits until some have ended; cells are then fed in one by one."
            )
        return ok("room for jobs", fact)

    def scripts(self, trials: Sequence[Submission]) -> list[Finding]:
        """Slurm would take each kind of job, by the very script that cells are submitted with."""
        return list(self._scripts(trials))

    def _scripts(self, trials: Iterable[Submission]) -> Iterable[Finding]:
        for trial in trials:
            name = f"job script ({trial.nodes} x {trial.gpus_per_node} GPUs)"
            answer = self._test_only(trial)
            if answer.returncode == 0:
                start = _START.search(answer.stderr)
                yield ok(name, f"accepted; it could start at {start[1]}" if start else "accepted by sbatch --test-only")
            else:
                mend = (
                    "Change what cluster.slurm asks for (gpu_flag: gpus_per_node, gres or none; mem, cpus_per_task, "
                    "constraint, partition, account, qos), or the grid's nodes and gpus_per_node."
                )
                yield problem(name, f"refused: {answer.words}", mend)


def test_only(submission: Submission, cluster: ClusterSpec, commands: SlurmCommands, python: str) -> Answer:
    """The answer of ``sbatch --test-only`` to a submission's own job script; it submits nothing.

    Raises:
        SchedulerError: If sbatch cannot be run, or the script cannot be written.
    """
    # Imported here: submitit takes a tenth of a second.
    from sweep.adapters.slurm.submitit_executor import LaunchExecutor

    return LaunchExecutor(submission, cluster.slurm, python=python, commands=commands).test_launch()


def _local(unix_time: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(unix_time))
