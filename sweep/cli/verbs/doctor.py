"""``doctor``: what the cluster and this installation lack, each with the mend; a small job looks at the nodes."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweep.adapters.clock import SystemClock
from sweep.adapters.doctor.machine import checks_here, interpreter
from sweep.adapters.files.run_directory import RunDir
from sweep.adapters.files.sources_snapshot import snapshot
from sweep.cli.common import RUNS, consoles, load_spec
from sweep.core.attempts.attempt import AttemptKey
from sweep.core.jobs.environment import scrubbed
from sweep.core.jobs.submission import Submission, safe_name
from sweep.core.records.layout import SUBMISSION_LOGS_DIR, attempt_dir
from sweep.core.settings.spec import Runner, SchedulerKind
from sweep.files import write_atomically
from sweep.launch.probe import TOKEN_FILE, ahead_of_files_s, report_name
from sweep.usecases.doctor.checks import Check, CheckStatus, exit_code, not_checked, problem, run_checks
from sweep.usecases.doctor.node_reports import Expected, judge
from sweep.usecases.doctor.probe_job import ProbeJob, ProbeResult

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rich.console import Console

    from sweep.adapters.slurm.commands import SlurmCommands
    from sweep.cli.args import Arguments
    from sweep.core.cells.device import Device
    from sweep.core.settings.spec import ClusterSpec
    from sweep.usecases.doctor.checks import Finding

_KEY = AttemptKey(cell_id="0" * 16, repeat=1, attempt=1)
_MOST_KINDS = 8
_COLOURS = {
    CheckStatus.OK: "green",
    CheckStatus.WARNING: "yellow",
    CheckStatus.PROBLEM: "red",
    CheckStatus.NOT_CHECKED: "dim",
}


def main(asked: Arguments) -> int:
    """Look, and say what is there and what is not."""
    cluster, device, kinds, folder = _asked(asked)
    out, err = consoles()
    shown = err if asked.as_json else out
    shown.print(f"cluster {cluster.name} ({cluster.scheduler})", highlight=False)
    with _scratch(folder) as (scratch, trouble):
        here = checks_here(cluster, scratch or folder)
        if scratch is None:
            checks = [*here, Check(name="scratch", run=lambda: not_checked("the cluster", trouble))]
        else:
            checks = [*here, *_Look(cluster, device, kinds, scratch, asked).checks()]
        findings = run_checks(checks, lambda finding: _print(shown, finding))
    code = exit_code(findings)
    _summary(shown, findings)
    if asked.as_json:
        body = {"cluster": cluster.name, "findings": [finding.to_json() for finding in findings], "exit_code": code}
        out.print_json(json.dumps(body))
    return code


def _asked(asked: Arguments) -> tuple[ClusterSpec, Device, list[tuple[int, int]], Path]:
    """The cluster, its device, the kinds of jobs (nodes, GPUs on each) to try, and where run directories lie."""
    from sweep.config import load_cluster

    if any(word.lstrip("+").startswith("grid=") for word in asked.overrides):
        from sweep.core.grids.grid import expand

        spec = load_spec(asked)
        cells = expand(spec.grid).cells.values()
        kinds = sorted({(cell.nodes, cell.gpus_per_node) for cell in cells}, reverse=True)[:_MOST_KINDS]
        _, device = load_cluster(_without_grid(asked.overrides), config_dir=asked.config_dir, environ=os.environ)
        return spec.cluster, device, kinds, Path(spec.run_dir).absolute().parent
    cluster, device = load_cluster(asked.overrides, config_dir=asked.config_dir, environ=os.environ)
    given = [word.partition("=")[2] for word in asked.overrides if word.startswith("run_dir=")]
    folder = Path(given[-1]).absolute().parent if given else RUNS.absolute()
    return cluster, device, [(1, cluster.gpus_per_node)], folder


def _without_grid(overrides: Sequence[str]) -> list[str]:
    return [word for word in overrides if word.startswith("cluster") and "=" in word]


@contextlib.contextmanager
def _scratch(folder: Path) -> Iterator[tuple[Path | None, str]]:
    """A run directory of doctor's own where the others are to be, gone afterwards; or why there can be none."""
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    run_dir = RunDir(folder / f".doctor-{uuid.uuid4().hex[:8]}")
    try:
        run_dir.create()
    except Exception as error:  # whatever it is, the other checks go on
        yield None, str(error)
        return
    try:
        yield Path(run_dir.path), ""
    finally:
        shutil.rmtree(run_dir.path, ignore_errors=True)
        with contextlib.suppress(OSError):
            for path in made:
                path.rmdir()


@dataclass(frozen=True)
class _Look:
    """Looks at one cluster from a scratch run directory."""

    cluster: ClusterSpec
    device: Device
    kinds: Sequence[tuple[int, int]]
    scratch: Path
    asked: Arguments

    def checks(self) -> list[Check]:
        """Checks of the cluster and its nodes."""
        if self.cluster.scheduler is SchedulerKind.LOCAL:
            return [Check(name="this machine", run=self._local)]
        from sweep.adapters.doctor.slurm_checks import SlurmChecks, test_only
        from sweep.adapters.slurm.commands import SlurmCommands

        commands = SlurmCommands(os.environ, attempts=1, timeout_s=20.0)
        slurm = SlurmChecks(
            self.cluster,
            commands,
            os.environ,
            test_only=lambda trial: test_only(trial, self.cluster, commands, sys.executable),
            trials=[self._submission(f"trial-{n}x{g}", nodes=n, gpus_per_node=g) for n, g in self.kinds],
        )
        probe = Check(name="nodes", run=lambda: self._probe(commands), needs=("controller", "partition", "job script"))
        return [*slurm.checks(), probe]

    def _local(self) -> Sequence[Finding]:
        """The probe as a child process of this one."""
        directory, _ = snapshot(self.scratch)
        path = os.pathsep.join(filter(None, [str(directory), os.environ.get("PYTHONPATH", "")]))
        launch = self.cluster.launch
        environ = {**scrubbed(os.environ), **launch.environment, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
        command = [interpreter(self.cluster), "-m", "sweep.launch.probe", "--out", str(self.scratch)]
        done = subprocess.run(
            command, env=environ, capture_output=True, text=True, check=False, timeout=self.asked.timeout_s
        )
        reports = _reports(self.scratch)
        if not reports:
            said = (done.stderr or done.stdout).strip()[-500:]
            return [
                problem("this machine", f"{command[0]} does not run the project: {said}", "Set cluster.launch.python.")
            ]
        return judge(ProbeResult(reports=reports), self._expected(None))

    def _probe(self, commands: SlurmCommands) -> Sequence[Finding]:
        """The probe as a job, on two nodes where there are two."""
        if not self.asked.with_job:
            return [not_checked("nodes", "--no-job: nothing was submitted")]
        from sweep.adapters.slurm.scheduler import SlurmScheduler

        scheduler = SlurmScheduler(self.cluster.slurm, commands=commands)
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
            timeout_s=self.asked.timeout_s,
            grace_s=self.cluster.result_grace_s,
        )
        probed = replace(job.run(), ahead_of_files_s=ahead_of_files_s(self.scratch))
        found = judge(probed, self._expected(token))
        if probed.trouble:
            fact = f"{probed.trouble}{self._logs(folder)}"
            return [problem("nodes", fact, probed.mend), *(found if probed.reports else [])]
        return found

    def _expected(self, token: str | None) -> Expected:
        return Expected(
            token=token,
            python=".".join(map(str, sys.version_info[:3])),
            gpus_per_node=self.cluster.gpus_per_node,
            uses_gpus=self.device.type == "cuda",
            needs_torch=self.cluster.launch.runner is Runner.TORCHRUN,
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

    def _logs(self, folder: Path) -> str:
        """The last lines that the job printed, which go with the scratch directory."""
        lines: list[str] = []
        for path in [*(self.scratch / SUBMISSION_LOGS_DIR).glob("*.log"), *folder.glob("*.log")]:
            with contextlib.suppress(OSError):
                lines.extend(path.read_text(errors="replace").splitlines()[-5:])
        return "".join(f"\n    | {line}" for line in lines)


def _reports(folder: Path) -> dict[int, Mapping[str, Any]]:
    found: dict[int, Mapping[str, Any]] = {}
    for path in folder.glob(report_name(0).replace("0", "*")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            report = json.loads(path.read_text())
            found[int(report["node_rank"])] = report
    return found


def _print(console: Console, finding: Finding) -> None:
    from rich.markup import escape

    word = f"[{_COLOURS[finding.status]}]{finding.status:<11}[/]"
    console.print(f"{word}  {escape(finding.name)}: {escape(finding.fact)}", highlight=False, soft_wrap=True)
    if finding.mend:
        console.print(f"{'':<13}mend: {escape(finding.mend)}", highlight=False, soft_wrap=True)


def _summary(console: Console, findings: Sequence[Finding]) -> None:
    counts = {status: sum(finding.status is status for finding in findings) for status in CheckStatus}
    said = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    console.print(said, highlight=False)
