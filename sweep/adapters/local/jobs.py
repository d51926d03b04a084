"""Jobs of the local cluster as files: what each is, what became of it, and what its state's word means."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from sweep.core.attempts.attempt import JobReport, Outcome, Phase, SchedulerState
from sweep.core.encoding.codec import build
from sweep.core.encoding.frozen import dataclass
from sweep.core.encoding.record import RecordError, parse_object, render
from sweep.core.records.layout import attempt_dir
from sweep.files import write_atomically

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from sweep.core.jobs.submission import Submission

LOCAL_DIR = "local"
HOST = "127.0.0.1"
_KIND = "local_job"


class State(StrEnum):
    """The local cluster's words for a job's state."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    INTERRUPTED = "INTERRUPTED"
    TIMEOUT = "TIMEOUT"
    NODE_FAIL = "NODE_FAIL"


LOCAL_STATES: Mapping[State, SchedulerState] = {
    State.PENDING: SchedulerState(phase=Phase.PENDING),
    State.RUNNING: SchedulerState(phase=Phase.RUNNING),
    State.COMPLETED: SchedulerState(phase=Phase.ENDED),
    State.FAILED: SchedulerState(phase=Phase.ENDED),
    State.CANCELLED: SchedulerState(phase=Phase.ENDED, outcome=Outcome.CANCELLED),
    # The sweep left (Ctrl-C) or died; nothing is wrong with the cell, and the next run of the sweep tries it again.
    State.INTERRUPTED: SchedulerState(phase=Phase.ENDED, outcome=Outcome.PREEMPTED),
    State.TIMEOUT: SchedulerState(phase=Phase.ENDED, outcome=Outcome.TIMEOUT),
    # A launcher is gone without a word: the machine went down, or someone killed it.
    State.NODE_FAIL: SchedulerState(phase=Phase.ENDED, outcome=Outcome.NODE_FAIL),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Launched:
    """A launcher: the process that plays one node.

    Attributes:
        pid: Process id, which the kernel gives to others once it is free.
        started_at: Unix time of the process's start: with the pid, it is this process or none.
        exit_code: Exit code; None while it runs, and where its end was seen by nobody.
        is_over: Whether it has ended.
    """

    pid: int
    started_at: float
    exit_code: int | None = None
    is_over: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalJob:
    """One job (``local/<job_id>.json``).

    Attributes:
        job_id: Name of its submission and its index in it.
        submission: The submission's name.
        index: Array index.
        attempt: The attempt's folder, relative to the run directory.
        nodes: Launchers.
        gpus_per_node: Ranks of each.
        device_type: ``cuda`` or ``cpu``.
        threads_per_rank: Threads that its environment sets; None: unset, and its ranks share all cores.
        walltime_min: Minutes that it may take.
        stop_grace_s: Seconds that its ranks get to stop.
        python: Interpreter of the launchers; empty: the one that runs this.
        sources_dir: Snapshot that it runs.
        marker: What all its processes have in their environment.
        submitted_at: Unix time.
        state: Where it is.
        ending: The state in which it is being ended; None where it is left alone.
        reason: Why it ended so, for people.
        launched: Its launchers by node rank; none before they are known to have started.
        started_at: Unix time; None before.
        first_end_at: Unix time at which the first launcher was seen to have ended.
        ended_at: Unix time; None before.
    """

    job_id: str
    submission: str
    index: int
    attempt: str
    nodes: int
    gpus_per_node: int
    device_type: str
    threads_per_rank: int | None
    walltime_min: int
    stop_grace_s: float
    python: str
    sources_dir: str
    marker: str
    submitted_at: float
    state: State = State.PENDING
    ending: State | None = None
    reason: str = ""
    launched: tuple[Launched, ...] = ()
    started_at: float | None = None
    first_end_at: float | None = None
    ended_at: float | None = None

    @property
    def ranks(self) -> int:
        """Processes that compute."""
        return self.nodes * self.gpus_per_node

    @property
    def order(self) -> tuple[float, str, int]:
        """First come, first served."""
        return self.submitted_at, self.submission, self.index

    @property
    def report(self) -> JobReport:
        """What the port says of it."""
        codes = [one.exit_code for one in self.launched if one.exit_code is not None]
        return JobReport(
            state=self.state.value,
            phase=LOCAL_STATES[self.state].phase,
            reason=self.reason,
            nodes=(HOST,) if self.launched else (),
            exit_code=next((code for code in codes if code != 0), codes[0] if codes else None),
            started_at=self.started_at,
            ended_at=self.ended_at,
            outcome=LOCAL_STATES[self.state].outcome,
        )


def job_ids(submission_name: str, tasks: int) -> tuple[str, ...]:
    """Ids of a submission's jobs."""
    return tuple(f"{submission_name}.{index}" for index in range(tasks))


def new_job(submission: Submission, index: int, *, now: float, environ: Mapping[str, str]) -> LocalJob:
    """A job as it is submitted."""
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
        marker=hashlib.sha256(f"{submission.run_dir}\0{job_id}\0{now}".encode()).hexdigest()[:16],
        submitted_at=now,
    )


class JobFiles:
    """The jobs on disk.

    The job of index 0 is written last: while its file is missing, the submission does not exist.

    Args:
        run_dir: The run directory.
    """

    def __init__(self, run_dir: Path) -> None:
        """Touch nothing."""
        self._folder = run_dir / LOCAL_DIR

    def write(self, job: LocalJob) -> None:
        """Replace a job's file; on return it is on disk.

        Raises:
            OSError: If it cannot be written.
        """
        self._folder.mkdir(exist_ok=True)
        write_atomically(self._folder / f"{job.job_id}.json", render(_KIND, asdict(job)))

    def read(self, job_id: str) -> LocalJob | None:
        """One job; None where there is none, or its file is damaged."""
        try:
            data = parse_object((self._folder / f"{job_id}.json").read_text(), _KIND)
            return build(LocalJob, {name: data[name] for name in data if name not in ("schema", "kind")}, job_id)
        except (OSError, RecordError, ValueError):
            return None

    def all(self) -> list[LocalJob]:
        """All jobs of submissions that exist, in their order."""
        jobs = [job for path in self._folder.glob("*.json") if (job := self.read(path.stem))]
        return sorted((job for job in jobs if self.has(f"{job.submission}.0")), key=lambda job: job.order)

    def has(self, job_id: str) -> bool:
        """Whether there is such a job."""
        return (self._folder / f"{job_id}.json").exists()

    def remove(self, job_id: str) -> None:
        """Forget a job that was never started."""
        (self._folder / f"{job_id}.json").unlink(missing_ok=True)


def ended(job: LocalJob, state: State, *, now: float, reason: str = "") -> LocalJob:
    """The job at its end."""
    return replace(job, state=state, ending=None, reason=reason or job.reason, ended_at=now)
