"""A cluster that is not there: its jobs, nodes and clock, and what really happened on it.

It knows nothing of the ledger, of outcomes or of policies. Its jobs do what the real launcher and trainer do with the
same files; Slurm's commands over it are in :mod:`tests.sweep.usecases.simulated_slurm`.
"""

from __future__ import annotations

import heapq
import itertools
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from pathlib import Path

from sweep.adapters.files.run_directory import RunDir
from sweep.core.attempts.attempt import AttemptKey, ErrorClass, RankError
from sweep.core.cells.cell import Cell
from sweep.core.jobs.node_command import Node
from sweep.core.jobs.set_up import PASSED
from sweep.core.jobs.submission import Claim, Submission, claim_file
from sweep.core.records.attempt_record import AttemptFile, CellFile, render_error
from sweep.core.records.layout import (
    ATTEMPT_FILE,
    CELL_FILE,
    PROGRESS_FILE,
    RESULT_FILE,
    node_error,
    rank_error,
    storage_mark,
)
from sweep.core.records.progress import Progress
from sweep.launch.claim import take
from tests.fakes import result_of

OURS, OTHERS, ADMIN = 1000, 1001, 0
NODES = tuple(f"node{number}" for number in range(1, 6))
BEGAN = 1_700_000_000.0
"""Unix time at which a simulation begins."""
_BOOT_S = 2.0
_SET_UP = "0123abcd"
_LIVE = ("PENDING", "RUNNING", "COMPLETING", "SUSPENDED")


class End(StrEnum):
    """How one run of a job ends, or what else becomes of it."""

    MEASURED = "measured"
    MEASURED_LATE = "measured, but the file system shows it late"
    MEASURED_AND_LINGERS = "measured, and goes on"
    CUT_RESULT = "half a result, exit code 0"
    NO_RESULT = "no result, exit code 0"
    EXCEPTION = "exception"
    OOM_DEVICE = "out of device memory"
    OOM_HOST = "out of host memory, in Slurm's word"
    OOM_POLLED = "out of host memory, which Slurm calls FAILED"
    COMMUNICATION = "lost a peer"
    DEVICE = "device error"
    KILLED = "killed, and nobody says why"
    NODE_FAIL = "a node fails"
    PREEMPTED = "preempted"
    REQUEUED = "requeued under its id"
    TOO_LONG = "makes steps until its walltime is over"
    HANG = "makes no step until its walltime is over"
    BY_HAND = "scancel by the user"
    BY_ADMIN = "scancel by an administrator"
    NO_LAUNCHER = "a set-up line fails"
    STORAGE = "nothing can be written any more"
    NODE_FAIL_AT_START = "a node fails before the launcher begins"
    FORGOTTEN = "killed, and the scheduler forgets it"
    NEVER_STARTS = "waits for what will never come"


class Deed(StrEnum):
    """What somebody does to a job that is there, or to all."""

    RENAME = "renames it"
    HOLD = "holds it for a while"
    SUSPEND = "suspends it for a while"
    CANCEL = "cancels it by hand"
    RESET = "the controller loses its state and gives ids anew"


@dataclass(frozen=True, kw_only=True)
class Happening:
    """An event, seconds after the beginning, and which job (by number) it befalls."""

    deed: Deed
    at_s: int = 0
    which: int = 0


@dataclass(frozen=True, kw_only=True)
class Fate:
    """What becomes of one run of a job: its end, after how long in the queue and at work, and what it leaves.

    ``is_silent``: its launcher is killed, and writes no end. ``late_s``: seconds until its result can be seen.
    """

    end: End = End.MEASURED
    wait_s: int = 5
    run_s: int = 30
    late_s: int = 0
    is_silent: bool = False


@dataclass(kw_only=True)
class Run:
    """One run of one job of ours, as it really was."""

    job: Job
    key: AttemptKey
    fate: Fate
    started_at: float
    ended_at: float | None = None
    has_begun: bool = False
    """Its launcher held the claim, and started the trainer."""
    last_file_at: float = 0.0
    measured_at: float | None = None
    """When its valid result could be seen."""

    @property
    def gpu_seconds(self) -> float:
        assert self.ended_at is not None
        return (self.ended_at - self.started_at) * self.job.gpus


@dataclass(frozen=True, kw_only=True)
class Row:
    """What accounting has been told of a job."""

    time: float
    state: str
    nodes: tuple[str, ...]
    started_at: float | None
    ended_at: float | None
    exit_code: str
    reason: str
    runs: tuple[tuple[float, float | None], ...]


@dataclass(kw_only=True, eq=False)
class Job:
    """A job, or one task of an array."""

    base: int
    index: int | None
    name: str
    script: str
    user: int = OURS
    key: AttemptKey | None = None
    """None: somebody else's."""
    submission: Path | None = None
    log: Path | None = None
    n_nodes: int = 1
    gpus: int = 1
    walltime_s: int = 600
    exclude: frozenset[str] = frozenset()
    submitted_at: float = 0.0
    state: str = "PENDING"
    reason: str = "Priority"
    nodes: tuple[str, ...] = ()
    eligible_at: float = 0.0
    started_at: float | None = None
    ended_at: float | None = None
    exit_code: str = "0:0"
    restart: int = 0
    runs: list[Run] = field(default_factory=list)
    fate: Fate | None = None
    """Of its present or next run."""
    number: int = 0
    """Goes up with every run, so that what was planned for an earlier one does not happen."""
    killed_by: int | None = None
    cancelled_in: str | None = None
    """The state in which this tool's scancel first met it."""
    recorded: list[Row] = field(default_factory=list)
    is_forgotten: bool = False
    """The queue does not know it (any more)."""

    @property
    def id(self) -> str:
        return str(self.base) if self.index is None else f"{self.base}_{self.index}"

    @property
    def is_live(self) -> bool:
        return self.state in _LIVE and not self.is_forgotten


@dataclass(kw_only=True)
class Cluster:
    """Nodes and jobs. Time passes in :meth:`advance` only.

    Attributes:
        run_dir: Where its jobs write.
        fates: What becomes of the runs of our jobs, in the order in which they are submitted or requeued; then all
            is well.
    """

    run_dir: RunDir
    fates: list[Fate]
    kill_wait_s: int = 5
    now: float = BEGAN
    jobs: list[Job] = field(default_factory=list)
    down: dict[str, float] = field(default_factory=dict)
    """Nodes out of service, until when."""
    next_id: int = 101
    suspended_s: float = 0.0
    """GPU-seconds that jobs held while they were suspended, which no walltime counts."""
    wrongs: list[str] = field(default_factory=list)
    """What must never happen, and did."""
    _plans: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _count: itertools.count[int] = field(default_factory=itertools.count)

    # ---------------------------------------------------------------------------------------------------------- time

    def at(self, time: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._plans, (max(time, self.now), next(self._count), what))

    def advance(self, until: float) -> None:
        self._start_jobs()
        while self._plans and self._plans[0][0] <= until:
            time, _, what = heapq.heappop(self._plans)
            self.now = max(self.now, time)
            what()
            self._start_jobs()
        self.now = max(self.now, until)
        for job in self.jobs:
            self._make_steps(job)

    # ---------------------------------------------------------------------------------------------------------- jobs

    def accept(self, script: Path, *, run_dir_file: Path, options: dict[str, str]) -> int:
        """Take a job script of ours; gives the id that its tasks share."""
        submission = Submission.parse(run_dir_file.read_text())
        base, self.next_id = self.next_id, self.next_id + 1
        many = "array" in options
        for index, key in enumerate(submission.tasks):
            fate = self.fates.pop(0) if self.fates else Fate()
            job = Job(
                base=base,
                index=index if many else None,
                name=options["job-name"],
                script=str(script),
                key=key,
                submission=run_dir_file,
                log=Path(options["output"].replace("%A_%a", f"{base}_{index}").replace("%j", str(base))),
                n_nodes=int(options["nodes"]),
                gpus=submission.gpus,
                walltime_s=int(options["time"]) * 60,
                exclude=frozenset(filter(None, options.get("exclude", "").split(","))),
                submitted_at=self.now,
                eligible_at=self.now + fate.wait_s,
                fate=fate,
                reason="PartitionTimeLimit" if fate.end is End.NEVER_STARTS else "Priority",
            )
            self.jobs.append(job)
            self.tell(job)
            self.at(job.eligible_at, lambda: None)
        return base

    def add_foreign(self, *, user: int = OTHERS, name: str = "theirs") -> None:
        """Somebody else's job, or another one of this user; it waits, and is cancelled by who has it."""
        base, self.next_id = self.next_id, self.next_id + 1
        job = Job(base=base, index=None, name=name, script=f"/home/{name}.sh", user=user, submitted_at=self.now)
        job.reason, job.eligible_at = "Licenses", float("inf")
        self.jobs.append(job)
        self.tell(job)
        self.at(self.now + 900, lambda: self.kill([job], user))

    def tell(self, job: Job) -> None:
        """Accounting hears of a job's state."""
        runs = tuple((run.started_at, run.ended_at) for run in job.runs)
        job.recorded.append(
            Row(
                time=self.now,
                state=job.state if job.state in ("PENDING", "SUSPENDED") or not job.is_live else "RUNNING",
                nodes=job.nodes,
                started_at=job.started_at,
                ended_at=job.ended_at,
                exit_code=job.exit_code,
                reason=job.reason,
                runs=runs,
            )
        )

    def _start_jobs(self) -> None:
        for job in self.jobs:
            if (
                job.state != "PENDING"
                or job.eligible_at > self.now
                or job.is_forgotten
                or job.reason in _WAITS_FOR_EVER
            ):
                continue
            used = {node for other in self.jobs if other.is_live for node in other.nodes}
            free = [node for node in NODES if node not in used | job.exclude | self.down.keys()]
            if len(free) >= job.n_nodes:
                self._start(job, tuple(free[: job.n_nodes]))

    def _start(self, job: Job, nodes: tuple[str, ...]) -> None:
        assert job.key is not None
        assert job.fate is not None
        job.state, job.reason, job.nodes, job.started_at = "RUNNING", "None", nodes, self.now
        job.number += 1
        job.runs.append(Run(job=job, key=job.key, fate=job.fate, started_at=self.now, last_file_at=self.now))
        self.tell(job)
        number = job.number
        self.at(self.now + _BOOT_S, lambda: self._if_still(job, number, self._launch))
        self.at(self.now + job.walltime_s, lambda: self._if_still(job, number, self._out_of_time))

    def _if_still(self, job: Job, number: int, what: Callable[[Job], None]) -> None:
        if job.state == "SUSPENDED":
            self.at(self.now + 10, partial(self._if_still, job, number, what))
        elif job.number == number and job.is_live and job.state != "PENDING":
            what(job)

    def _launch(self, job: Job) -> None:
        """What the launcher does: claim the submission, and write that it began."""
        assert job.submission is not None
        assert job.fate is not None
        if job.fate.end is End.NODE_FAIL_AT_START:
            self._node_fails(job)
            return
        if job.fate.end is End.NO_LAUNCHER:
            self._log(job, f"sweep: set-up {_SET_UP} failed on {job.nodes[0]}: `false` ended with exit code 1", "")
            self._finish(job, "FAILED", exit_code="1:0")
            return
        node = self._node(job)
        claim = Claim(job_id=node.shared_job_id, time=self.now, host=job.nodes[0])
        if take(Path(self.run_dir.path) / claim_file(node.submission.name), claim).job_id != node.shared_job_id:
            self._finish(job, "FAILED", exit_code="4:0")
            return
        job.runs[-1].has_begun = True
        self._write_attempt(job)
        number = job.number
        runs_on = (End.TOO_LONG, End.HANG)
        if job.fate.end not in runs_on:
            self.at(self.now + job.fate.run_s, lambda: self._if_still(job, number, self._end))

    def _node(self, job: Job) -> Node:
        assert job.submission is not None
        submission = Submission.parse(job.submission.read_text())
        return Node(
            submission=submission,
            index=job.index or 0,
            node_rank=0,
            job_id=job.id,
            hosts=job.nodes,
            restart=job.restart,
        )

    def _end(self, job: Job) -> None:
        """The run comes to the end that was meant for it, unless it is being killed."""
        assert job.fate is not None
        fate = job.fate
        if fate.end in _MEASURED:
            late_s = fate.late_s if fate.end is End.MEASURED_LATE else 0
            self.at(self.now + late_s, self._result_writer(job, job.runs[-1]))
        if job.killed_by is not None or fate.end is End.MEASURED_AND_LINGERS:
            return
        if fate.end is End.CUT_RESULT:
            self._write(job, RESULT_FILE, self._result(job)[:200])
        if fate.end in _ERRORS:
            self._write_error(job, _ERRORS[fate.end], rank=0)
        _ENDS.get(fate.end, Cluster._end_by_itself)(self, job)

    def _end_by_itself(self, job: Job) -> None:
        assert job.fate is not None
        is_well = job.fate.end in (*_MEASURED, End.CUT_RESULT, End.NO_RESULT)
        self._write_attempt(job, exit_code=0 if is_well else 1)
        self._finish(job, "COMPLETED" if is_well else "FAILED", exit_code="0:0" if is_well else "1:0")

    def _oom_host(self, job: Job) -> None:
        self._log(job, "error: Detected 1 oom_kill event in StepId=1.0. Some of the step tasks have been OOM Killed.")
        self._finish(job, "OUT_OF_MEMORY", exit_code="0:125")

    def _oom_polled(self, job: Job) -> None:
        self._log(job, "error: StepId=1.0 exceeded memory limit (550735872 > 209715200), being killed")
        self._finish(job, "FAILED", exit_code="9:0")

    def _die_silently(self, job: Job) -> None:
        self._finish(job, "FAILED", exit_code="0:9")

    def _write_nothing(self, job: Job) -> None:
        self._write(job, storage_mark(28, 0), "")  # a full disk takes names; squeue gives no exit code
        self._finish(job, "FAILED", exit_code="28:0")

    def _node_fails(self, job: Job) -> None:
        self.down[job.nodes[0]] = self.now + 300
        self.at(self.now + 300, lambda: self._mend(job.nodes[0]))
        self._finish(job, "NODE_FAIL", reason="NodeDown")

    def _mend(self, node: str) -> None:
        if self.down.get(node, self.now + 1) <= self.now:
            del self.down[node]

    def _preempted(self, job: Job) -> None:
        self._stopped(job, "PREEMPTION")
        self._finish(job, "PREEMPTED")

    def _requeued(self, job: Job) -> None:
        """The job goes back into the queue, and its next run is another one."""
        self._stopped(job, "JOB REQUEUE")
        job.runs[-1].ended_at = self.now
        job.fate = self.fates.pop(0) if self.fates else Fate()
        is_lost = job.fate.end is End.NEVER_STARTS
        job.state, job.nodes, job.started_at = "PENDING", (), None
        job.reason = "PartitionTimeLimit" if is_lost else "BeginTime"
        job.eligible_at, job.restart, job.number = self.now + 10 + job.fate.wait_s, job.restart + 1, job.number + 1
        self.at(job.eligible_at, lambda: None)
        self.tell(job)

    def _by_hand(self, job: Job) -> None:
        self.kill([job], OURS)

    def _by_admin(self, job: Job) -> None:
        self.kill([job], ADMIN)

    def _forgotten(self, job: Job) -> None:
        """A controller that lost its state: what runs is killed, and accounting never hears of an end."""
        job.is_forgotten = True
        if job.runs and job.runs[-1].ended_at is None:
            job.runs[-1].ended_at = self.now

    def _out_of_time(self, job: Job) -> None:
        self._stopped(job, "TIME LIMIT")
        self._finish(job, "TIMEOUT")

    def kill(self, jobs: Iterable[Job], user: int) -> None:
        """What scancel does to live jobs: those that wait are over at once, those that run get KillWait."""
        chosen = [job for job in jobs if job.is_live and job.killed_by is None]
        left = {job.base for job in self.jobs if job.state == "PENDING" and job.is_live and job not in chosen}
        for job in chosen:
            job.killed_by = user
            if job.state != "PENDING":
                job.state, number = "COMPLETING", job.number
                self.at(self.now + self.kill_wait_s, partial(self._if_still, job, number, self._killed))
            elif job.index is not None and job.base in left and not job.runs:
                # Slurm 22.05 keeps no record of a waiting task that is cancelled while others of its array wait.
                job.is_forgotten, job.recorded, job.state, job.ended_at = True, [], "CANCELLED", self.now
            else:
                self._finish(job, f"CANCELLED by {user}")

    def _killed(self, job: Job) -> None:
        self._stopped(job, None)
        self._finish(job, f"CANCELLED by {job.killed_by}")

    def _stopped(self, job: Job, why: str | None) -> None:
        """slurmstepd says why it ends the job, and the launcher, if it lives, that a signal stopped it."""
        assert job.fate is not None
        at = datetime.fromtimestamp(self.now, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        due = "" if why is None else f" DUE TO {why}"
        self._log(job, f"error: *** JOB {job.base} ON {job.nodes[0]} CANCELLED AT {at}{due} ***")
        if job.runs[-1].has_begun and not job.fate.is_silent:
            self._write_error(job, ErrorClass.STOPPED, rank=None)
            self._write_attempt(job, exit_code=-15, stopped_by="SIGTERM")

    def _finish(self, job: Job, state: str, *, exit_code: str = "0:0", reason: str = "None") -> None:
        if job.runs and job.runs[-1].ended_at is None:
            job.runs[-1].ended_at = self.now
        if job.state != "PENDING":
            job.reason = reason
        job.state, job.ended_at, job.exit_code = state, self.now, exit_code
        job.number += 1
        self.tell(job)

    # ----------------------------------------------------------------------------------------------------- happenings

    def happens(self, happening: Happening) -> None:
        """Somebody does something, if there is a job that it can befall."""
        live = [job for job in self.jobs if job.is_live and job.key is not None]
        if happening.deed is Deed.RESET:
            self._reset()
        elif live:
            job = live[happening.which % len(live)]
            {
                Deed.RENAME: self._rename,
                Deed.HOLD: self._hold,
                Deed.SUSPEND: self._suspend,
                Deed.CANCEL: self._by_hand,
            }[happening.deed](job)

    def _rename(self, job: Job) -> None:
        for other in self.jobs:
            if other.base == job.base:
                other.name = "mine"

    def _hold(self, job: Job) -> None:
        if job.state == "PENDING" and job.reason not in _WAITS_FOR_EVER:
            job.reason, number = "JobHeldUser", job.number
            self.at(self.now + 500, lambda: self._release(job, number))

    def _release(self, job: Job, number: int) -> None:
        if job.number == number and job.state == "PENDING":
            job.reason = "Priority"

    def _suspend(self, job: Job) -> None:
        if job.state == "RUNNING" and job.killed_by is None:
            job.state, number = "SUSPENDED", job.number
            self.suspended_s += 200 * job.gpus
            self.at(self.now + 200, lambda: self._resume(job, number))

    def _resume(self, job: Job, number: int) -> None:
        if job.number == number and job.state == "SUSPENDED":
            job.state = "RUNNING"

    def _reset(self) -> None:
        for job in self.jobs:
            if job.is_live or job.state not in _LIVE:
                self._forgotten(job)
        self.next_id = 101
        for user in (OURS, OTHERS, OURS):
            self.add_foreign(user=user)

    # --------------------------------------------------------------------------------------------------------- files

    def _folder(self, job: Job) -> Path:
        return Path(self.run_dir.path) / self._node(job).folder

    def _write(self, job: Job, name: str, text: str) -> None:
        path = self._folder(job) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        os.utime(path, (self.now, self.now))
        job.runs[-1].last_file_at = self.now

    def _write_attempt(self, job: Job, *, exit_code: int | None = None, stopped_by: str = "") -> None:
        assert job.fate is not None
        if exit_code is not None and job.fate.is_silent:
            return
        run = job.runs[-1]
        record = AttemptFile(
            key=run.key,
            job_id=job.id,
            restart=job.restart,
            hosts=job.nodes,
            pid=1,
            started_at=run.started_at + _BOOT_S,
            ended_at=None if exit_code is None else self.now,
            exit_code=exit_code,
            stopped_by=stopped_by,
            environment={PASSED: _SET_UP},
        )
        self._write(job, ATTEMPT_FILE, record.render())

    def _write_error(self, job: Job, error_class: ErrorClass, *, rank: int | None) -> None:
        error = RankError(rank=rank, node_rank=0, time=self.now, error_class=error_class, message=str(error_class))
        self._write(job, node_error(0) if rank is None else rank_error(rank), render_error(error))

    def cell(self, job: Job) -> Cell:
        return CellFile.parse((Path(self.run_dir.path) / self._node(job).attempt / CELL_FILE).read_text()).cell

    def _result(self, job: Job) -> str:
        assert job.key is not None
        cell = self.cell(job)
        return result_of(
            job.key,
            restart=job.restart,
            world_size=cell.gpus,
            n_params=cell.model.n_params,
            window_tokens=5 * cell.tokens_per_step,
        ).render()

    def _result_writer(self, job: Job, run: Run) -> Callable[[], None]:
        path, text = self._folder(job) / RESULT_FILE, self._result(job)

        def write() -> None:
            path.write_text(text)
            os.utime(path, (self.now, self.now))
            run.measured_at = self.now

        return write

    def _make_steps(self, job: Job) -> None:
        assert job.key is None or job.fate is not None
        if job.state != "RUNNING" or not job.is_live or not job.runs or not job.runs[-1].has_begun:
            return
        run = job.runs[-1]
        if run.fate.end is not End.HANG and self.now > run.last_file_at:
            steps = Progress(step=int(self.now - run.started_at), steps=10_000, time=self.now, tokens_per_s=1.0)
            self._write(job, PROGRESS_FILE, steps.render())

    def _log(self, job: Job, line: str, by: str = "slurmstepd-{}: ") -> None:
        assert job.log is not None
        with job.log.open("a") as file:
            file.write("sweep: zone +0000\n")
            file.write(f"{by.format(job.nodes[0])}{line}\n")


_WAITS_FOR_EVER = ("PartitionTimeLimit", "JobHeldUser")
_MEASURED = (End.MEASURED, End.MEASURED_LATE, End.MEASURED_AND_LINGERS)
_ERRORS: Mapping[End, ErrorClass] = {
    End.EXCEPTION: ErrorClass.EXCEPTION,
    End.OOM_DEVICE: ErrorClass.OOM_DEVICE,
    End.COMMUNICATION: ErrorClass.COMMUNICATION,
    End.DEVICE: ErrorClass.DEVICE,
}
_ENDS: Mapping[End, Callable[[Cluster, Job], None]] = {
    End.OOM_HOST: Cluster._oom_host,
    End.OOM_POLLED: Cluster._oom_polled,
    End.KILLED: Cluster._die_silently,
    End.NODE_FAIL: Cluster._node_fails,
    End.STORAGE: Cluster._write_nothing,
    End.PREEMPTED: Cluster._preempted,
    End.REQUEUED: Cluster._requeued,
    End.BY_HAND: Cluster._by_hand,
    End.BY_ADMIN: Cluster._by_admin,
    End.FORGOTTEN: Cluster._forgotten,
}
