"""Decides if there is room for a job on this machine, and makes the command and environment of its launchers."""

from __future__ import annotations

import hashlib
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from sweep.adapters.files.sources_snapshot import checked_command
from sweep.adapters.local.jobs import HOST
from sweep.core.jobs.node_command import MARKER, RUN_DIR
from sweep.core.jobs.set_up import set_up_script
from sweep.core.jobs.submission import submission_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sweep.adapters.local.jobs import LocalJob

MEMORY_PER_RANK_BYTES = 2 * 1024**3
"""Free memory for each rank of a job that starts beside others; the real need of a cell is not known here."""


def has_room(
    job: LocalJob,
    running: Sequence[LocalJob],
    *,
    max_concurrent: int | None,
    cores: int,
    available_bytes: int,
) -> bool:
    """True if a job may start beside those that run; a job always may where none runs.

    Cells that share cores, memory or GPUs disturb each other's times. So unless the user sets a limit, a cell that uses
    GPUs runs alone, and so does a cell whose number of threads is not set, because its ranks use all cores.
    """
    if not running:
        return True
    if max_concurrent is not None:
        return len(running) < max_concurrent
    if any(one.device_type != "cpu" for one in (job, *running)):
        return False
    fits = sum(_cores_of(one, cores) for one in (job, *running)) <= cores
    return fits and available_bytes >= job.ranks * MEMORY_PER_RANK_BYTES


def _cores_of(job: LocalJob, cores: int) -> int:
    return cores if job.threads_per_rank is None else job.ranks * job.threads_per_rank


def launcher_command(job: LocalJob, rank: int, run_dir: Path, setup: Sequence[str] = ()) -> list[str]:
    """The command that plays one node, after a site's set-up lines."""
    return [
        *after_set_up(setup),
        *checked_command(job.python or sys.executable, job.sources_dir, job.sources_hash, "-m", "sweep.launch"),
        *("--submission", str(run_dir / submission_file(job.submission))),
        *("--index", str(job.index)),
        *("--node-rank", str(rank)),
        *("--job-id", job.job_id),
        *("--hosts", ",".join([HOST] * job.nodes)),
        *("--restart", "0"),
        *("--meeting-dir", str(meeting_dir(job, run_dir))),
    ]


def after_set_up(setup: Sequence[str]) -> list[str]:
    """Words before a command that make its process run set-up lines first; none where there are no lines."""
    return ["bash", "-c", "\n".join((*set_up_script(setup), 'exec "$@"')), "bash"] if setup else []


def meeting_dir(job: LocalJob, run_dir: Path) -> Path:
    """Folder in which the job's nodes and ranks meet; its name cannot be guessed before the job starts.

    A record that a stranger wrote names no folder of another run's job, whatever its marker is.
    """
    digest = hashlib.sha256(f"{run_dir.resolve()}\0{job.marker}".encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"sweep-{digest}"


def launcher_environment(job: LocalJob, rank: int, run_dir: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Its environment: the job's marker and run directory, and this node's share of the machine's GPUs."""
    made = {**environ, MARKER: job.marker, RUN_DIR: str(run_dir)}
    if job.device_type == "cuda":
        first, last = rank * job.gpus_per_node, (rank + 1) * job.gpus_per_node
        visible = environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        shares = visible if visible != [""] else [str(index) for index in range(last)]
        made["CUDA_VISIBLE_DEVICES"] = ",".join(shares[first:last])
    return made
