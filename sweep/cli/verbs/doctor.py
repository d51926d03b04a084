"""``doctor``: says what the cluster and this installation lack, each with its remedy; trains nothing."""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from sweep.adapters.doctor.machine import checks_here
from sweep.adapters.files.run_directory import RunDir
from sweep.cli.common import RUNS, CommandError, consoles, load_spec
from sweep.cli.console import print_json
from sweep.cli.verbs.doctor_cluster import ClusterChecks
from sweep.core.settings.spec import ClusterSpec, SchedulerKind
from sweep.usecases.doctor.checks import Check, CheckStatus, Finding, exit_code, not_checked, run_checks
from sweep.usecases.doctor.node_table import EXCLUDE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console

    from sweep.cli.args import Arguments
    from sweep.core.cells.device import Device

_MOST_KINDS = 8
_COLOURS = {
    CheckStatus.OK: "green",
    CheckStatus.WARNING: "yellow",
    CheckStatus.PROBLEM: "red",
    CheckStatus.NOT_CHECKED: "dim",
}


def main(asked: Arguments) -> int:
    """Run all checks and print their findings."""
    cluster, device, kinds, folder = _asked(asked)
    if asked.all_nodes and cluster.scheduler is not SchedulerKind.SLURM:
        raise CommandError(f"--all-nodes asks for a Slurm cluster; {cluster.name} is one machine. Leave it out there.")
    out, err = consoles()
    shown = err if asked.as_json else out
    shown.print(f"cluster {cluster.name} ({cluster.scheduler})", highlight=False, markup=False)
    with _scratch(folder) as (scratch, trouble):
        here = checks_here(cluster, scratch or folder)
        if scratch is None:
            checks = [*here, Check(name="scratch", run=lambda: not_checked("the cluster", trouble))]
        else:
            cluster_checks = ClusterChecks(
                cluster=cluster,
                device=device,
                kinds=kinds,
                scratch=scratch,
                with_job=asked.with_job,
                timeout_s=asked.timeout_s,
                all_nodes=asked.all_nodes,
            )
            checks = [*here, *cluster_checks.checks()]
        findings = run_checks(checks, lambda finding: _print(shown, finding))
    code = exit_code(findings)
    _summary(shown, findings)
    for finding in findings:
        if finding.name == EXCLUDE:
            shown.print(finding.mend, highlight=False, markup=False, soft_wrap=True)
    if asked.as_json:
        body = {"cluster": cluster.name, "findings": [finding.to_json() for finding in findings], "exit_code": code}
        print_json(body, indent=2)
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
    """A temporary run directory beside the real ones; None and the reason where it cannot be made."""
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


def _print(console: Console, finding: Finding) -> None:
    from rich.markup import escape

    word = f"[{_COLOURS[finding.status]}]{finding.status:<11}[/]"
    console.print(f"{word}  {escape(finding.name)}: {escape(finding.fact)}", highlight=False, soft_wrap=True)
    if finding.mend and finding.name != EXCLUDE:  # that stands by itself, at the end
        console.print(f"{'':<13}mend: {escape(finding.mend)}", highlight=False, soft_wrap=True)


def _summary(console: Console, findings: Sequence[Finding]) -> None:
    counts = {status: sum(finding.status is status for finding in findings) for status in CheckStatus}
    summary = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    console.print(summary, highlight=False)
