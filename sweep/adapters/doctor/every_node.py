"""The job of ``doctor --all-nodes``: one allocation of every node that is free, and one step on each of its nodes.

Each node has a step of its own, so that a node on which nothing starts ends no other's. A step's output goes to a file
that the job's first node writes. The first node runs no set-up line and no Python before the steps.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
from pathlib import Path
from typing import Any

from sweep.adapters.files.sources_snapshot import check_text, checked_command
from sweep.adapters.slurm.fields import SAY_ZONE
from sweep.adapters.slurm.scheduler import SlurmScheduler
from sweep.adapters.slurm.site.read_config import is_out_of_service
from sweep.adapters.slurm.submitit_executor import LaunchExecutor
from sweep.core.jobs.set_up import failure_in, set_up_script
from sweep.core.jobs.submission import Submission
from sweep.core.settings.spec import SlurmSpec
from sweep.launch.node_check import REPORT
from sweep.launch.probe import TOKEN_FILE
from sweep.usecases.doctor.every_node import NodeAnswer, NodeInSlurm, Printed

HOSTS_FILE = "hosts"
"""Written by the job's first node: the nodes of the job."""
_BY_SRUN = re.compile(r"sweep: |srun: error: \S+: task 0: Exited with exit code ")
TOKEN_LINE, END_LINE = "sweep: node token ", "sweep: node step ended"


class EveryNodeScheduler(SlurmScheduler):
    """Submits that job for a submission whose number of nodes is the most that it can get.

    Args:
        patience_s: Seconds for which a node waits for the others.
        others: As for :class:`SlurmScheduler`.
    """

    def __init__(self, spec: SlurmSpec, run_dir: Path, *, patience_s: float, **others: Any) -> None:
        super().__init__(spec, run_dir, **others)
        self._patience_s = patience_s

    def submit(self, submission: Submission) -> tuple[str, ...]:
        """Submit the job; raises as :meth:`SlurmScheduler.submit` does."""
        spec = self._site.fitting_spec()
        executor = _Executor(submission, spec, python=self._python, commands=self._commands)
        executor.patience_s = self._patience_s
        # As many nodes as are free now, without waiting for those that other jobs use.
        executor.parameters |= {"nodes": f"1-{submission.nodes}", "ntasks_per_node": None, "setup": [SAY_ZONE]}
        return (executor.submit_launch(),)


class _Executor(LaunchExecutor):
    patience_s: float = 30.0

    @property
    def _submitit_command_str(self) -> str:
        return job_text(self._submission, self._spec, self._interpreter, self.patience_s)


def job_text(submission: Submission, spec: SlurmSpec, python: str, patience_s: float) -> str:
    """The commands of the job."""
    folder = shlex.quote(str(folder_of(submission)))
    cores = [] if spec.cpus_per_task is None else [f"--cpus-per-task={spec.cpus_per_task}"]
    srun = shlex.join(["srun", "--overlap", "--nodes=1", "--ntasks=1", "--export=ALL", *cores, *spec.srun_args])
    return "\n".join(
        [
            f"sweep_node={shlex.quote(node_text(submission, spec, python, patience_s))}",
            f"sweep_check={shlex.quote(check_text())}",
            "export sweep_check",
            'sweep_hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST")',
            f'printf "%s\\n" $sweep_hosts >{folder}/.{HOSTS_FILE}',
            f"mv {folder}/.{HOSTS_FILE} {folder}/{HOSTS_FILE}",
            "for sweep_host in $sweep_hosts; do",
            f'  {{ {srun} --nodelist="$sweep_host" bash -c "$sweep_node" </dev/null; echo "{END_LINE}"; }} \\',
            f'    >{folder}/node-"$sweep_host".out 2>&1 &',
            "done",
            "wait",
        ]
    )


def node_text(submission: Submission, spec: SlurmSpec, python: str, patience_s: float) -> str:
    """The commands of one node: what needs neither set-up lines nor Python, the set-up lines, the check in Python."""
    launch, token = submission.launch, shlex.quote(f"{submission.run_dir}/{TOKEN_FILE}")
    options = (
        *("-m", "sweep.launch.node_check", "--dir", submission.run_dir, f"--address={launch.rendezvous_host}"),
        *("--ports", *map(str, launch.port_range), "--patience-s", f"{patience_s:g}"),
    )
    checked = checked_command(python, submission.sources_dir, submission.sources_hash, *options, text="$sweep_check")
    words = ['"$sweep_check"' if word == "$sweep_check" else shlex.quote(word) for word in checked]
    return "\n".join(
        [
            f'echo "{TOKEN_LINE}$(cat {token} 2>&1)"',
            *set_up_script(spec.setup),
            " ".join([*spec.container, *words]),
        ]
    )


def folder_of(submission: Submission) -> Path:
    """Folder for what the job's nodes print."""
    return Path(submission.run_dir, submission.name)


def outputs(folder: Path) -> Printed:
    """The job's files as they are now."""
    try:
        hosts = tuple((folder / HOSTS_FILE).read_text().split())
    except OSError:
        return Printed()
    answers = {}
    for host in hosts:
        with contextlib.suppress(OSError):
            answers[host] = answer((folder / f"node-{host}.out").read_text(errors="replace"))
    return Printed(hosts=hosts, answers=answers)


def answer(text: str) -> NodeAnswer:
    """The lines that one node printed, sorted."""
    report: dict[str, Any] | None = None
    others = []
    for line in text.splitlines():
        if line.startswith(TOKEN_LINE):
            token = line.removeprefix(TOKEN_LINE)
            report = {**(report or {}), "token_of_shell": token}
        elif line.startswith(REPORT):
            with contextlib.suppress(ValueError):
                report = {**(report or {}), **json.loads(line.removeprefix(REPORT))}
        elif line.strip() and not _BY_SRUN.match(line):
            others.append(line.strip())
    is_over = f"\n{END_LINE}\n" in f"\n{text}"
    return NodeAnswer(report=report or {}, messages=tuple(others), failure=failure_in(text), is_over=is_over)


def read_nodes(text: str) -> dict[str, NodeInSlurm]:
    """Rows of ``sinfo -N -h`` in NODES_FORMAT."""
    found = {}
    for line in text.splitlines():
        name, state, gres, reason = (part.strip() for part in (*line.split("|", 3), "", "", "")[:4])
        why = f"{state}: {reason}" if reason.lower() not in ("", "none") else state
        gpus = [int(count) for count in _GPUS.findall(gres)]
        found[name] = NodeInSlurm(state=state, out_of_service=why if is_out_of_service(state) else "", gpus=sum(gpus))
    return found


NODES_FORMAT = "%N|%T|%G|%E"
_GPUS = re.compile(r"\bgpu(?::[^:,(]+)?:(\d+)")
