"""Checks of ``doctor`` that need a scratch run directory: the site, trial job scripts, and a probe on the nodes."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import uuid
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, assert_never

from sweep.adapters.clock import SystemClock
from sweep.adapters.doctor.machine import interpreter
from sweep.adapters.files.sources_snapshot import checked_command, snapshot
from sweep.adapters.local.launchers import after_set_up
from sweep.core.attempts.attempt import AttemptKey
from sweep.core.encoding.frozen import dataclass
from sweep.core.jobs.environment import scrubbed
from sweep.core.jobs.set_up import failure_in
from sweep.core.jobs.submission import Submission, safe_name
from sweep.core.records.layout import SUBMISSION_LOGS_DIR, attempt_dir
from sweep.core.settings.spec import ClusterSpec, GpuFlag, Runner, SchedulerKind
from sweep.files import read_tail, read_text, write_atomically
from sweep.launch.probe import TOKEN_FILE, ahead_of_files_s, report_name
from sweep.usecases.doctor.checks import Check, Finding, not_checked, ok, problem
from sweep.usecases.doctor.node_reports import Expected, judge
from sweep.usecases.doctor.probe_job import ProbeJob, ProbeResult

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sweep.adapters.slurm.commands import SlurmCommands
    from sweep.core.cells.device import Device

_KEY = AttemptKey(cell_id="0" * 16, repeat=1, attempt=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterChecks:
    """Checks one cluster and its nodes from a scratch run directory.

    Attributes:
        cluster: The cluster.
        device: Profile of its device.
        kinds: Kinds of jobs to try: nodes and GPUs on each.
        scratch: The run directory.
        with_job: True if a small job may be submitted.
        timeout_s: Seconds to wait for it.
        all_nodes: True if it is to check every node of the partition.
    """

    cluster: ClusterSpec
    device: Device
    kinds: Sequence[tuple[int, int]]
    scratch: Path
    with_job: bool
    timeout_s: float
    all_nodes: bool = False

    def checks(self) -> list[Check]:
        """Checks of the cluster and its nodes."""
        if self.cluster.scheduler is SchedulerKind.LOCAL:
            return [Check(name="this machine", run=self._local)]
        if self.cluster.scheduler is not SchedulerKind.SLURM:
            assert_never(self.cluster.scheduler)
        from sweep.adapters.doctor.slurm_checks import SlurmChecks
        from sweep.adapters.slurm.commands import SlurmCommands

        commands = SlurmCommands(os.environ, attempts=1, timeout_s=20.0)
        slurm = SlurmChecks(
            self.cluster,
            commands,
            os.environ,
            trials=[self._submission(f"trial-{n}x{g}", nodes=n, gpus_per_node=g) for n, g in self.kinds],
        )
        run = self._every_node if self.all_nodes and self.with_job else self._probe
        probe = Check(name="nodes", run=lambda: run(commands), needs=("controller", "partition", "job script"))
        return [*slurm.checks(), probe]

    def _local(self) -> Sequence[Finding]:
        """Run the probe as a child process."""
        probe = ("-m", "sweep.launch.probe", "--out", str(self.scratch))
        setup = after_set_up(self.cluster.slurm.setup)
        command = [*setup, *checked_command(interpreter(self.cluster), *snapshot(self.scratch), *probe)]
        environ = {**scrubbed(os.environ), **self.cluster.launch.environment}
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=self.timeout_s)
        reports = _reports(self.scratch)
        if not reports:
            text, python = (done.stderr or done.stdout).strip()[-500:], command[len(setup)]
            missing = problem(
                "this machine", f"{python} does not run the project: {text}", "Set cluster.launch.python."
            )
            return self._set_up(done.stdout) if failure_in(done.stdout) else [missing]
        return [*self._set_up(done.stdout), *judge(ProbeResult(reports=reports), self._expected(None))]

    def _probe(self, commands: SlurmCommands) -> Sequence[Finding]:
        """Run the probe as a job, on two nodes where there are two."""
        if not self.with_job:
            return [not_checked("nodes", "--no-job: nothing was submitted")]
        from sweep.adapters.slurm.scheduler import SlurmScheduler

        scheduler = SlurmScheduler(self.cluster.slurm, self.scratch, commands=commands)
        submission = self._submission("probe", nodes=min(2, len(scheduler.site().nodes) or 1), is_probe=True)
        token = uuid.uuid4().hex
        write_atomically(self.scratch / TOKEN_FILE, token)
        write_atomically(self.scratch / submission.file, submission.render())
        folder = self.scratch / attempt_dir(_KEY)
        job = ProbeJob(
            scheduler=scheduler,
            submission=submission,
            clock=SystemClock(),
            read=lambda: _reports(folder),
            timeout_s=self.timeout_s,
            grace_s=self.cluster.result_grace_s,
        )
        probed = replace(job.run(), ahead_of_files_s=ahead_of_files_s(self.scratch))
        found = judge(probed, self._expected(token))
        log = "\n".join(lines := self._logs(folder))
        if probed.trouble:
            fact = "\n    | ".join([probed.trouble, *lines])
            found = [problem("nodes", fact, probed.mend), *(found if probed.reports else [])]
        return [*(self._set_up(log) if probed.reports or failure_in(log) else []), *found]

    def _every_node(self, commands: SlurmCommands) -> Sequence[Finding]:
        """Run one job over every node of the partition that is free, and judge each."""
        from sweep.adapters.doctor.every_node import NODES_FORMAT, EveryNodeScheduler, folder_of, outputs, read_nodes
        from sweep.adapters.slurm.script import own_exclude
        from sweep.usecases.doctor.every_node import Surveyor
        from sweep.usecases.doctor.node_table import node_table

        patience_s = max(2.0, self.timeout_s / 4)
        scheduler = EveryNodeScheduler(self.cluster.slurm, self.scratch, commands=commands, patience_s=patience_s)
        site, token = scheduler.site().nodes, uuid.uuid4().hex
        write_atomically(self.scratch / TOKEN_FILE, token)

        def submission(number: int, nodes: int, without: tuple[str, ...]) -> Submission:
            made = self._submission(f"every-node-{number}", nodes=nodes)
            folder_of(made).mkdir()
            minutes = min(made.walltime_min, 2 + int(self.timeout_s / 60))
            return replace(made, walltime_min=minutes, exclude=without)

        surveyor = Surveyor(
            scheduler=scheduler,
            submission=submission,
            read=lambda made: outputs(folder_of(made)),
            nodes=lambda: {
                name: node
                for name, node in read_nodes(commands.ask(["sinfo", "-N", "-h", "-o", NODES_FORMAT])).items()
                if name in site
            },
            gpus_per_node=self.cluster.gpus_per_node if self.cluster.slurm.gpu_flag is not GpuFlag.NONE else 0,
            clock=SystemClock(),
            timeout_s=self.timeout_s,
            grace_s=min(self.cluster.result_grace_s, 15.0),
        )
        excluded = own_exclude(self.cluster.slurm)
        survey = surveyor.run(dict.fromkeys(excluded, "excluded by cluster.slurm.exclude"))
        expected = replace(self._expected(token), ahead_of_files_s=ahead_of_files_s(self.scratch))
        return node_table(survey, expected, excluded=excluded, timeout_s=self.timeout_s)

    def _set_up(self, log: str) -> list[Finding]:
        """The set-up lines by the log of a probe that ran them; empty where the cluster has none."""
        setup, failed = self.cluster.slurm.setup, failure_in(log)
        if failed is not None:
            mend = "Mend it in cluster.slurm.setup. Let a line that may fail end in `|| true`."
            return [problem("set-up lines", f"{failed.reason} on {failed.at_fault[0]}", mend)]
        return [ok("set-up lines", f"{len(setup)} passed")] if setup else []

    def _expected(self, token: str | None) -> Expected:
        return Expected(
            token=token,
            python=".".join(map(str, sys.version_info[:3])),
            gpus_per_node=self.cluster.gpus_per_node,
            uses_gpus=self.device.type == "cuda",
            needs_torch=self.cluster.launch.runner is Runner.TORCHRUN,
            slurm_gives_gpus=self.cluster.slurm.gpu_flag is not GpuFlag.NONE,
        )

    def _submission(
        self, name: str, *, nodes: int, gpus_per_node: int | None = None, is_probe: bool = False
    ) -> Submission:
        directory, digest = snapshot(self.scratch)
        launch, walltime = self.cluster.launch, self.cluster.walltime_min
        full_name = safe_name(f"doctor-{name}-{self.scratch.name[-8:]}")
        if is_probe:
            file = str(self.scratch / "submissions" / f"{full_name}.json")
            entry = ("-m", "sweep.launch.probe", "--submission", file)
            launch, walltime = replace(launch, runner=Runner.DIRECT, entry=entry), min(walltime, 5)
        return Submission(
            name=full_name,
            run_dir=str(self.scratch),
            created_at=time.time(),
            tasks=(_KEY,),
            nodes=nodes,
            gpus_per_node=self.cluster.gpus_per_node if gpus_per_node is None else gpus_per_node,
            device_type=self.device.type,
            walltime_min=walltime,
            sources_dir=str(directory),
            sources_hash=digest,
            launch=launch,
        )

    def _logs(self, folder: Path) -> list[str]:
        """The last lines that the job printed; the scratch directory, and the logs in it, are about to be removed."""
        lines: list[str] = []
        for path in [*(self.scratch / SUBMISSION_LOGS_DIR).glob("*.log"), *folder.glob("*.log")]:
            with contextlib.suppress(OSError):
                lines.extend(read_tail(path, 1 << 16).decode(errors="replace").splitlines()[-5:])
        return lines


def _reports(folder: Path) -> dict[int, Mapping[str, Any]]:
    found: dict[int, Mapping[str, Any]] = {}
    for path in folder.glob(report_name(0).replace("0", "*")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            report = json.loads(read_text(path))
            found[int(report["node_rank"])] = report
    return found
