"""Defines the jobs of the local cluster, their states, and their files."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from pathlib import Path

from sweep.core.attempts.attempt import JobReport, Outcome, Phase, SchedulerState
from sweep.core.encoding.frozen import dataclass
from sweep.core.encoding.names import JobId, Marker, RelativePath, SubmissionName, UnixTime
from sweep.core.encoding.record import Record, RecordError
from sweep.core.jobs.submission import Submission
from sweep.core.records.layout import attempt_dir
from sweep.files import make_folder, read_text, write_atomically

LOCAL_DIR = "local"
HOST = "127.0.0.1"


class State(StrEnum):
    """The states of a local job."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    INTERRUPTED = "INTERRUPTED"
    TIMEOUT = "TIMEOUT"
    NODE_FAIL = "NODE_FAIL"
    STORAGE_ERROR = "STORAGE_ERROR"


LOCAL_STATES: Mapping[State, SchedulerState] = {
    State.PENDING: SchedulerState(phase=Phase.PENDING),
    State.RUNNING: SchedulerState(phase=Phase.RUNNING),
    State.COMPLETED: SchedulerState(phase=Phase.ENDED),
    State.FAILED: SchedulerState(phase=Phase.ENDED),
    State.CANCELLED: SchedulerState(phase=Phase.ENDED, outcome=Outcome.CANCELLED),
    # The sweep was interrupted or died. The cell is not at fault; the next run of the sweep tries it again.
    State.INTERRUPTED: SchedulerState(phase=Phase.ENDED, outcome=Outcome.PREEMPTED),
    State.TIMEOUT: SchedulerState(phase=Phase.ENDED, outcome=Outcome.TIMEOUT),
    # A launcher vanished: the machine went down, or somebody killed the launcher.
    State.NODE_FAIL: SchedulerState(phase=Phase.ENDED, outcome=Outcome.NODE_FAIL),
    State.STORAGE_ERROR: SchedulerState(phase=Phase.ENDED, outcome=Outcome.STORAGE_ERROR),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Launched:
    """A launcher that was started: the process that plays one node."""

    pid: int
    """The kernel gives it to another process once this one is gone."""
    started_at: UnixTime
    """Unix time of the process's start; pid and start time together identify the process."""
    exit_code: int | None = None
    """None while it runs, and where nobody saw its end."""
    is_over: bool = False
    """True if it has ended."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalJob(Record):
    """One job (``local/<job_id>.json``)."""

    KIND = "local_job"
    FILE = "a local job's file"

    job_id: JobId
    """Its submission's name and its index there: ``weak-3f2a.0``."""
    submission: SubmissionName
    index: int
    attempt: RelativePath
    """The attempt's folder, relative to the run directory."""
    nodes: int
    """Number of launchers."""
    gpus_per_node: int
    """Ranks of each launcher."""
    device_type: str
    """``cuda`` or ``cpu``."""
    threads_per_rank: int | None
    """Threads that its environment sets; None: unset, and its ranks share all cores."""
    walltime_min: int
    stop_grace_s: float
    """Seconds that its ranks get to stop."""
    python: str
    """Interpreter of the launchers; empty: this process's."""
    sources_dir: str
    """The snapshot that it runs."""
    sources_hash: str = ""
    """Hash that the snapshot must have."""
    marker: Marker
    """A variable in the environment of all its processes has this value."""
    submitted_at: UnixTime
    """Unix time, as are all times here."""
    state: State = State.PENDING
    ending: State | None = None
    """The state that it gets once it has been stopped; None where nobody stops it."""
    reason: str = ""
    """Why it ended in its state."""
    launched: tuple[Launched, ...] = ()
    """Its launchers by node rank; empty until all were started."""
    started_at: UnixTime | None = None
    first_end_at: UnixTime | None = None
    """When its first launcher was seen to have ended."""
    ended_at: UnixTime | None = None

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.nodes * self.gpus_per_node

    @property
    def order(self) -> tuple[float, str, int]:
        """The sort key of jobs: the earliest submission first."""
        return self.submitted_at, self.submission, self.index

    @property
    def report(self) -> JobReport:
        """The report of the port."""
        codes = [one.exit_code for one in self.launched if one.exit_code is not None]
        return JobReport(
            state=self.state.value,
            phase=LOCAL_STATES[self.state].phase,
            reason=self.reason,
            # Nobody is to blame the only machine for launchers that vanished.
            nodes=(HOST,) if self.launched and self.state is not State.NODE_FAIL else (),
            exit_code=next((code for code in codes if code != 0), codes[0] if codes else None),
            started_at=self.started_at,
            ended_at=self.ended_at,
            outcome=LOCAL_STATES[self.state].outcome,
        )


def job_ids(submission_name: str, tasks: int) -> tuple[str, ...]:
    """Ids of a submission's jobs."""
    return tuple(f"{submission_name}.{index}" for index in range(tasks))


def new_job(submission: Submission, index: int, *, now: float, environ: Mapping[str, str]) -> LocalJob:
    """A job that has just been submitted."""
    job_id = job_ids(submission.name, len(submission.tasks))[index]
    threads = submission.launch.environment.get("OMP_NUM_THREADS", environ.get("OMP_NUM_THREADS", ""))
    return LocalJob(
        job_id=job_id,
        submission=submission.name,
        index=index,
        attempt=str(attempt_dir(submission.tasks[index])),
        nodes=submission.nodes,
        gpus_per_node=submission.gpus_per_node,
        device_type=submission.device_type,
        threads_per_rank=int(threads) if threads.isdecimal() else None,
        walltime_min=submission.walltime_min,
        stop_grace_s=submission.launch.stop_grace_s,
        python=submission.launch.python,
        sources_dir=submission.sources_dir,
        sources_hash=submission.sources_hash,
        marker=hashlib.sha256(f"{submission.run_dir}\0{job_id}\0{now}".encode()).hexdigest()[:16],
        submitted_at=now,
    )


class JobFiles:
    """Reads and writes the jobs of a run directory.

    A submission exists once the job of index 0 does; its file is written last.

    Args:
        run_dir: The run directory.
    """

    def __init__(self, run_dir: Path) -> None:
        """Touch nothing."""
        self._folder = run_dir / LOCAL_DIR

    def write(self, job: LocalJob) -> None:
        """Write a job's file; on return it is on disk.

        Raises:
            OSError: If it cannot be written.
        """
        make_folder(self._folder.parent, LOCAL_DIR)
        write_atomically(self._folder / f"{job.job_id}.json", job.render())

    def write_spare(self, job: LocalJob) -> None:
        """Write beside a job's file the end that it gets where there is no room to write another.

        Raises:
            OSError: If it cannot be written.
        """
        write_atomically(self._spare(job.job_id), job.render())

    def put_spare(self, job_id: str) -> None:
        """Put a job's spare end in its place, as of now; that needs no room."""
        with contextlib.suppress(OSError):
            os.utime(self._spare(job_id))
            self._spare(job_id).replace(self._folder / f"{job_id}.json")

    def remove_spare(self, job_id: str) -> None:
        """Remove a job's spare end; another was written."""
        with contextlib.suppress(OSError):
            self._spare(job_id).unlink()

    def _spare(self, job_id: str) -> Path:
        return self._folder / f"{job_id}.spare"

    def read(self, job_id: str) -> LocalJob | None:
        """One job; None where it has no file, or its file is damaged or another job's."""
        path = self._folder / f"{job_id}.json"
        try:
            job = LocalJob.parse(read_text(path))
            if job.ended_at is None and LOCAL_STATES[job.state].phase is Phase.ENDED:
                job = replace(job, ended_at=path.stat().st_mtime)  # a spare end that was put in its place
        except (OSError, RecordError):
            return None
        return job if job.job_id == job_id == f"{job.submission}.{job.index}" else None

    def all(self) -> list[LocalJob]:
        """All jobs of submissions that exist, sorted by :attr:`LocalJob.order`."""
        jobs = [job for path in self._folder.glob("*.json") if (job := self.read(path.stem))]
        return sorted((job for job in jobs if self.has(f"{job.submission}.0")), key=lambda job: job.order)

    def has(self, job_id: str) -> bool:
        """True if the job has a file."""
        return (self._folder / f"{job_id}.json").exists()

    def remove(self, job_id: str) -> None:
        """Remove the file of a job that was never started."""
        (self._folder / f"{job_id}.json").unlink(missing_ok=True)


def ended(job: LocalJob, state: State, *, now: float, reason: str = "") -> LocalJob:
    """The job after its end."""
    return replace(job, state=state, ending=None, reason=reason or job.reason, ended_at=now)
