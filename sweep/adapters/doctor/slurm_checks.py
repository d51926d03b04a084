"""Checks of a Slurm cluster: its commands, controller and accounting, and the job scripts that it would accept."""

from __future__ import annotations

import os
import re
import shutil
import sys
from typing import TYPE_CHECKING

from sweep.adapters.doctor.slurm_request import RequestChecks
from sweep.ports import SchedulerError
from sweep.usecases.doctor.checks import Check, Finding, ok, problem, warning

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sweep.adapters.slurm.commands import SlurmCommands
    from sweep.core.jobs.submission import Submission
    from sweep.core.settings.spec import ClusterSpec

_NEEDED = ("sbatch", "squeue", "scancel", "srun")
_WANTED = ("scontrol", "sinfo", "sacctmgr")
_START = re.compile(r"to start at ([\dT:-]+)")


class SlurmChecks:
    """The checks of one cluster, none of which changes anything.

    Args:
        cluster: The cluster.
        commands: Runs Slurm's commands.
        environ: The environment in whose PATH they are looked for.
        trials: Submissions to try, one for each kind of job, the smallest last.
        user: Whose limits apply; by default the numeric id of this process's user.
    """

    def __init__(
        self,
        cluster: ClusterSpec,
        commands: SlurmCommands,
        environ: Mapping[str, str],
        *,
        trials: Sequence[Submission],
        user: str | None = None,
    ) -> None:
        self._spec, self._commands, self._environ = cluster.slurm, commands, environ
        self._trials = trials
        nodes = max((trial.nodes for trial in trials), default=1)
        self._request = RequestChecks(cluster, commands, user or str(os.getuid()), nodes=nodes)

    def checks(self) -> list[Check]:
        """All checks, in order."""
        request, alive = self._request, ("controller",)
        return [
            Check(name="commands", run=self.programs),
            Check(name="controller", run=self.controller, needs=("commands",)),
            Check(name="accounting", run=self.accounting, needs=("commands",)),
            Check(name="partition", run=request.partition, needs=alive),
            Check(name="account and QOS", run=request.account, needs=alive),
            Check(name="reservation", run=request.reservation, needs=alive),
            Check(name="nodes in service", run=request.nodes, needs=(*alive, "partition")),
            Check(name="walltime", run=request.walltime, needs=(*alive, "partition")),
            Check(name="room for jobs", run=request.room, needs=alive),
            Check(name="job script", run=lambda: self.scripts(self._trials[-1:]), needs=alive),
            *self._larger(),
        ]

    def _larger(self) -> list[Check]:
        """A check of the larger kinds of jobs; none where the smallest fails, since its finding holds for all."""
        rest = self._trials[:-1]
        needs = ("controller", "job script")
        return [Check(name="larger job scripts", run=lambda: self.scripts(rest), needs=needs)] if rest else []

    def programs(self) -> list[Finding]:
        """Slurm's commands are on PATH."""
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
            mend = "Run on a login node; where the cluster's slurm.conf is elsewhere, name it: export SLURM_CONF=FILE."
            return problem("commands", str(error), mend)

    def controller(self) -> Finding:
        """The controller answers."""
        try:
            queue = self._commands.ask(["squeue", "-h", "-u", str(os.getuid()), "-o", "%i"])
        except SchedulerError as error:
            mend = "Ask the cluster's administrators; `scontrol ping` shows the same."
            return problem("controller", str(error), mend)
        return ok("controller", f"answers; {len(queue.split())} of this user's jobs are in the queue")

    def accounting(self) -> Finding:
        """The command sacct answers, or is not used."""
        if not self._spec.sacct:
            return ok("accounting", "not used (slurm.sacct=false); a job's end is then known from its own files")
        try:
            self._commands.ask(["sacct", "-X", "-n", "-P", "-S", "now", "-o", "JobID"])
        except SchedulerError as error:
            mend = "Where the cluster keeps no accounting, set cluster.slurm.sacct=false; else ask its administrators."
            return problem("accounting", str(error), mend)
        return ok("accounting", "sacct answers")

    def scripts(self, trials: Iterable[Submission]) -> list[Finding]:
        """Slurm would accept each kind of job, by the very script that cells are submitted with."""
        return [self._script(trial) for trial in trials]

    def _script(self, trial: Submission) -> Finding:
        # Imported here: submitit takes a tenth of a second.
        from sweep.adapters.slurm.submitit_executor import LaunchExecutor

        name = f"job script ({trial.nodes} x {trial.gpus_per_node} GPUs)"
        answer = LaunchExecutor(trial, self._spec, python=sys.executable, commands=self._commands).test_launch()
        if answer.returncode == 0:
            start = _START.search(answer.stderr)
            return ok(name, f"accepted; it could start at {start[1]}" if start else "accepted by sbatch --test-only")
        return problem(
            name,
            f"refused: {answer.message}",
            "Change what cluster.slurm asks for (gpu_flag: gpus_per_node, gres or none; mem, cpus_per_task, "
            "constraint, partition, account, qos), or the grid's nodes and gpus_per_node.",
        )
