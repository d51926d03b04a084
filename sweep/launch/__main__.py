"""``python -m sweep.launch --submission FILE``; options or SLURM_* variables give the task and the node."""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from sweep.core.attempts.error_text import STORAGE_ERRORS
from sweep.core.encoding.hostlist import expand_hostlist
from sweep.core.jobs.node_command import Node
from sweep.core.jobs.submission import Claim, Submission, claim_file
from sweep.core.records.layout import storage_mark
from sweep.files import read_text
from sweep.launch.check import EXIT_REFUSED
from sweep.launch.claim import take
from sweep.launch.launcher import Launcher
from sweep.launch.supervisor import Supervisor

EXIT_NOT_OURS = 4
"""The submission is another job's, or was given back: this one came too late, or was handed over twice."""


def parser() -> argparse.ArgumentParser:
    """The arguments; SLURM_* variables stand for those that are not given."""
    made = argparse.ArgumentParser(prog="sweep.launch", description=__doc__, allow_abbrev=False)
    made.add_argument("--submission", type=Path, required=True, metavar="FILE", help="the submission's file")
    made.add_argument("--index", type=int, help="array index: which task of the submission")
    made.add_argument("--node-rank", type=int, help="which node of the job this is")
    made.add_argument("--job-id", help="the scheduler's id of the job")
    made.add_argument("--hosts", help="the job's nodes, as Slurm writes them")
    made.add_argument("--restart", type=int, help="how often this job id has run before")
    made.add_argument("--meeting-dir", default="", help="folder in which the nodes of one machine meet by files")
    return made


def node_of(arguments: argparse.Namespace, environ: Mapping[str, str]) -> Node:
    """This node's place in its job.

    Raises:
        ValueError: If the submission is damaged, or has no such task or node.
        OSError: If the submission's file cannot be read.
    """
    options = {
        "index": _first(arguments.index, environ.get("SLURM_ARRAY_TASK_ID"), "0"),
        "node_rank": _first(arguments.node_rank, environ.get("SLURM_NODEID")),
        "job_id": _first(arguments.job_id, _slurm_job_id(environ)),
        "hosts": _first(arguments.hosts, environ.get("SLURM_JOB_NODELIST")),
        "restart": _first(arguments.restart, environ.get("SLURM_RESTART_COUNT"), "0"),
    }
    missing = [name for name, value in options.items() if not value]
    if missing:
        raise ValueError(f"neither an option nor a SLURM_* variable says {', '.join(missing)}.")
    return Node(
        submission=Submission.parse(read_text(arguments.submission)),
        index=int(options["index"]),
        node_rank=int(options["node_rank"]),
        job_id=options["job_id"],
        hosts=expand_hostlist(options["hosts"]),
        restart=int(options["restart"]),
        meeting_dir=arguments.meeting_dir,
    )


def _first(*values: object) -> str:
    return next((str(value) for value in values if value is not None), "")


def _slurm_job_id(environ: Mapping[str, str]) -> str | None:
    array, task = environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else environ.get("SLURM_JOB_ID")


def others_claim(node: Node) -> Claim | None:
    """The claim of another job on the submission; None where it is this job's.

    The first process of the job makes the claim.

    Raises:
        ValueError: If the claim is damaged.
        OSError: If it can be neither written nor read.
    """
    ours = Claim(job_id=node.shared_job_id, time=time.time(), host=socket.gethostname())
    held = take(Path(node.submission.run_dir) / claim_file(node.submission.name), ours)
    return None if held.job_id == ours.job_id else held


def _not_ours(node: Node, held: Claim) -> str:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(held.time))
    who = f"job {held.job_id} runs it since {when}" if held.job_id else f"it was given back at {when}, by {held.host}"
    return f"submission {node.submission.name} is not for job {node.job_id}: {who}. Nothing is run, nothing is written."


_MOST_FILES = 1 << 20


def _allow_open_files() -> None:
    """Raise the limit on open files to the node's hard one: NCCL needs more than the usual 1,024 from four nodes on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def main(argv: Sequence[str] | None = None) -> int:
    """Run one node's part; returns the exit code of its command, or 128 + signal if a signal stopped or killed it.

    A submission that another job has claimed is left alone (:data:`EXIT_NOT_OURS`). Where no record can be written an
    empty file tells of it if there can be one, and the exit code: the number of the error (:data:`STORAGE_ERRORS`).
    """
    arguments = parser().parse_args(argv)
    environ = dict(os.environ)
    _allow_open_files()
    node = None
    try:
        node = node_of(arguments, environ)
        supervisor = Supervisor(node.submission.launch.stop_grace_s)
        held = others_claim(node)
        if held is not None:
            print(f"launch: {_not_ours(node, held)}", file=sys.stderr, flush=True)
            return EXIT_NOT_OURS
        return Launcher(node, environ).run(supervisor)
    except (OSError, ValueError) as error:
        with contextlib.suppress(OSError):
            print(f"launch: {error}", file=sys.stderr, flush=True)
        number = int(getattr(error, "errno", None) or 0)
        if number not in STORAGE_ERRORS:
            return EXIT_REFUSED
        if node is not None:
            with contextlib.suppress(OSError):
                (Path(node.submission.run_dir) / node.folder / storage_mark(number, node.node_rank)).touch()
        return number


if __name__ == "__main__":
    sys.exit(main())
