"""Starts the launchers of local jobs, each of which plays one node, where there is room, and sees how they ended."""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from sweep.adapters.files.sources_snapshot import checked_command
from sweep.adapters.local.jobs import HOST, LOCAL_DIR, Launched, LocalJob, State
from sweep.adapters.local.processes import own_process, started_at
from sweep.core.attempts.attempt import JobReport
from sweep.core.encoding.record import RecordError
from sweep.core.jobs.node_command import MARKER, RUN_DIR
from sweep.core.jobs.set_up import failure_in, set_up_script
from sweep.core.jobs.submission import submission_file
from sweep.core.records.attempt_record import AttemptFile
from sweep.core.records.layout import ATTEMPT_FILE, SUBMISSION_LOGS_DIR
from sweep.files import make_folder, open_to_append, read_tail, read_text

_LOG_END_BYTES = 1 << 16


class Launchers:
    """Launchers of one run directory: children of this process, and those that an earlier process left.

    Args:
        run_dir: The run directory.
        environ: Their environment, apart from what depends on the job.
        setup: The site's set-up lines, which each runs first.
        now: Gives Unix time.
    """

    def __init__(
        self, run_dir: Path, environ: Mapping[str, str], setup: Sequence[str], now: Callable[[], float]
    ) -> None:
        self._run_dir, self._environ, self._setup, self._now = run_dir, environ, setup, now
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._watched: set[int] = set()

    def start(self, job: LocalJob, rank: int) -> Launched:
        """Start the launcher of one node, in a session of its own.

        Raises:
            OSError: If it cannot be started.
        """
        logs = make_folder(self._run_dir, SUBMISSION_LOGS_DIR, mode=0o1777)
        with os.fdopen(open_to_append(logs / f"{job.job_id}.{rank}.out"), "ab") as output:
            process = subprocess.Popen(
                launcher_command(job, rank, self._run_dir, self._setup),
                env=launcher_environment(job, rank, self._run_dir, self._environ),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._children[process.pid] = process
        self._watched.add(process.pid)
        return Launched(pid=process.pid, started_at=started_at(process.pid) or self._now())

    def failure_of_set_up(self, job_id: str, nodes: int) -> JobReport | None:
        """The end of a job by a set-up line that failed, as the logs of its launchers tell; None where none failed."""
        for rank in range(nodes):
            with contextlib.suppress(OSError):
                log = self._run_dir / SUBMISSION_LOGS_DIR / f"{job_id}.{rank}.out"
                found = failure_in(read_tail(log, _LOG_END_BYTES).decode(errors="replace"))
                if found is not None:
                    return replace(found, at_fault=(HOST,))
        return None

    def observe(self, job: LocalJob) -> LocalJob:
        """The job with its launchers as they are now."""
        launched = tuple(one if one.is_over else self._observe(job, rank) for rank, one in enumerate(job.launched))
        if launched == job.launched:
            return job
        return replace(job, launched=launched, first_end_at=job.first_end_at or self._now())

    def end_time(self, job: LocalJob) -> float:
        """Unix time at which a job's launchers ended: now, or the time by its files where nobody watched."""
        now = self._now()
        if job.started_at is None or any(one.pid in self._watched for one in job.launched):
            return now
        record = self._record(job)
        last = None if record is None else record.ended_at
        if last is None:
            logs = (self._run_dir / SUBMISSION_LOGS_DIR).glob(f"{job.job_id}.*.out")
            paths = (self._run_dir / LOCAL_DIR / f"{job.job_id}.json", *(self._run_dir / job.attempt).glob("*"), *logs)
            last = max((path.stat().st_mtime for path in paths if path.exists()), default=now)
        return min(now, max(last, job.started_at))

    def forget(self, job: LocalJob) -> None:
        """Forget the children of a job that has ended."""
        for one in job.launched:
            self._children.pop(one.pid, None)

    def _observe(self, job: LocalJob, rank: int) -> Launched:
        one = job.launched[rank]
        child = self._children.get(one.pid)
        if child is not None:
            code = child.poll()
            return one if code is None else replace(one, is_over=True, exit_code=code)
        if own_process(one.pid, start=one.started_at, marker=job.marker, run_dir=self._run_dir):
            self._watched.add(one.pid)
            return one
        # Only its parent can wait for a process. Of another's child the exit code is known where it wrote it: node 0.
        return replace(one, is_over=True, exit_code=self._recorded_exit_code(job) if rank == 0 else None)

    def _recorded_exit_code(self, job: LocalJob) -> int | None:
        """The exit code that the launcher of node 0 wrote at its end; None where it wrote none."""
        record = self._record(job)
        if record is None or record.exit_code is None:
            return None
        return record.exit_code if record.exit_code >= 0 else 128 - record.exit_code

    def _record(self, job: LocalJob) -> AttemptFile | None:
        """The record of node 0's launcher; None where it wrote none that can be read."""
        try:
            record = AttemptFile.parse(read_text(self._run_dir / job.attempt / ATTEMPT_FILE))
        except (OSError, RecordError):
            return None
        return record if record.job_id == job.job_id else None


def end_of(job: LocalJob) -> tuple[State, str]:
    """The state, with its reason, of a job of which at least one launcher ended by itself."""
    over = {rank: one.exit_code for rank, one in enumerate(job.launched) if one.is_over}
    # Of a job that was taken over, the launchers of other nodes than 0 may have ended in order, unseen.
    unseen = [rank for rank, code in over.items() if code is None and (rank == 0 or 0 not in over)]
    killed = [rank for rank, code in over.items() if code is not None and code < 0]
    if unseen or killed:
        return State.NODE_FAIL, f"the launcher of node {min(unseen + killed)} vanished"
    failed = {rank: code for rank, code in over.items() if code}
    if failed:
        rank, code = next(iter(failed.items()))
        return State.FAILED, f"node {rank} ended with exit code {code}"
    if len(over) < job.nodes:
        return State.FAILED, f"node {min(set(range(job.nodes)) - set(over))} went on after the others had ended"
    return State.COMPLETED, ""


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
