"""A scheduler over local processes: the same port as a cluster's, for a laptop or a test."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import psutil

from sweep.adapters.local.jobs import LOCAL_STATES, JobFiles, Launched, LocalJob, State, ended, job_ids, new_job
from sweep.adapters.local.processes import ask_to_stop, kill_marked, own_process, started_at
from sweep.adapters.local.start import has_room, launcher_command, launcher_environment
from sweep.core.attempts.attempt import ABSENT, Phase
from sweep.core.encoding.record import RecordError
from sweep.core.jobs.environment import scrubbed
from sweep.core.records.attempt_file import AttemptFile
from sweep.core.records.layout import ATTEMPT_FILE, SUBMISSION_LOGS_DIR
from sweep.ports import SchedulerError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from sweep.core.attempts.attempt import JobReport
    from sweep.core.jobs.submission import Submission
    from sweep.ports import Intent

LONGEST_GRACE_S = 7.0
"""Whatever grace a job was promised: Ctrl-C is to be over in ten seconds."""
STRAGGLER_GRACE_S = 10.0
"""How long a job's other nodes may go on once one has ended."""


class LocalScheduler:
    """Implements :class:`sweep.ports.Scheduler` over processes of this machine.

    A node is a ``sweep.launch`` process in a session of its own. :meth:`poll` drives everything: without it nothing
    starts, and nothing is noticed. Each job's state is a file, so that another process can take over after a kill.

    Args:
        run_dir: The run directory; one process at a time may drive it.
        max_concurrent_cells: Cells that may run at once; None: as many as cores and memory allow.
        environ: Environment of the jobs, None: this process's; what an enclosing job left in it is removed.
        cores: Cores to share out; None: those that this process may use.
        drives: Whether :meth:`poll` may change anything; False for commands that only look.
        starts: Whether it may start anything; False for a process that does not stay to watch it.
        now: Tells Unix time.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        max_concurrent_cells: int | None = None,
        environ: Mapping[str, str] | None = None,
        cores: int | None = None,
        drives: bool = True,
        starts: bool = True,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Touch nothing."""
        self._run_dir = run_dir.absolute()
        self._files = JobFiles(self._run_dir)
        self._environ = scrubbed(os.environ if environ is None else environ)
        self._max_concurrent = max_concurrent_cells
        self._cores = cores or len(os.sched_getaffinity(0))
        self._drives = drives
        self._starts = starts
        self._now = now
        self._jobs: dict[str, LocalJob] | None = None
        self._children: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def keeps_jobs(self) -> bool:
        """Nobody would end, or start, jobs once this process has left."""
        return False

    def submit(self, submission: Submission) -> tuple[str, ...]:
        """Queue a submission's jobs.

        Raises:
            SchedulerError: If they cannot be written down.
        """
        now = self._now()
        jobs = [new_job(submission, i, now=now, environ=self._environ) for i in range(len(submission.tasks))]
        try:
            for job in reversed(jobs):
                self._files.write(job)
        except OSError as error:
            raise SchedulerError(f"the jobs of {submission.name} cannot be written: {error}") from error
        self._known().update({job.job_id: job for job in jobs})
        return job_ids(submission.name, len(submission.tasks))

    def find(self, submission: Intent) -> tuple[str, ...] | None:
        """Job ids of a submission; what a crash left of one that was half written is removed."""
        ids = job_ids(submission.name, len(submission.tasks))
        if self._files.has(ids[0]):
            return ids
        for job_id in ids:
            self._files.remove(job_id)
        return None

    def jobs_of(self, shared_id: str, tasks: int) -> tuple[str, ...]:
        """Job ids of a submission of so many tasks; what they share is its name."""
        return job_ids(shared_id, tasks)

    def poll(
        self, job_ids: Collection[str], *, since: float, names: Mapping[str, str] | None = None
    ) -> Mapping[str, JobReport]:
        """Notice what has ended, start what there is room for, and tell.

        Raises:
            SchedulerError: If a job's state cannot be written.
        """
        try:
            if self._drives:
                self._check_running()
                if self._starts:
                    self._start_pending()
            else:
                self._jobs = {job.job_id: self._as_it_looks(job) for job in self._files.all()}
        except OSError as error:
            raise SchedulerError(f"the local cluster cannot write its state: {error}") from error
        known = self._known()
        return {job_id: known[job_id].report if job_id in known else ABSENT for job_id in job_ids}

    def cancel(self, jobs: Mapping[str, str], *, only_pending: bool = False) -> Sequence[str]:
        """End jobs, or of these only those that have not begun; on return none of their processes is left.

        No id is ever another's: it holds its submission's name.
        """
        wanted = [job for job_id in jobs if (job := self._known().get(job_id))]
        if only_pending:
            wanted = [job for job in wanted if job.state is State.PENDING]
        self._stop(wanted, State.CANCELLED, "cancelled")
        return ()

    def close(self) -> None:
        """End every job that is not over; on return none of their processes is left."""
        if self._drives:
            self._stop(self._known().values(), State.INTERRUPTED, "the sweep was interrupted")

    def _known(self) -> dict[str, LocalJob]:
        if self._jobs is None:
            self._jobs = {job.job_id: job for job in self._files.all()}
        return self._jobs

    def _save(self, job: LocalJob) -> LocalJob:
        self._files.write(job)
        self._known()[job.job_id] = job
        return job

    def _in_phase(self, phase: Phase) -> list[LocalJob]:
        jobs = self._known().values()
        return sorted((job for job in jobs if LOCAL_STATES[job.state].phase is phase), key=lambda job: job.order)

    # Starting

    def _start_pending(self) -> None:
        for job in self._in_phase(Phase.PENDING):
            if not self._has_room(job):
                # No one overtakes: a large cell would wait for ever behind small ones.
                return
            self._start(job)

    def _has_room(self, job: LocalJob) -> bool:
        return has_room(
            job,
            self._in_phase(Phase.RUNNING),
            max_concurrent=self._max_concurrent,
            cores=self._cores,
            available_bytes=psutil.virtual_memory().available,
        )

    def _start(self, job: LocalJob) -> None:
        # Written before the first process exists: who finds a running job without launchers knows that the start was
        # cut short, looks for its mark, and never starts it twice.
        job = self._save(replace(job, state=State.RUNNING, started_at=self._now()))
        launched: list[Launched] = []
        try:
            for rank in range(job.nodes):
                process = self._spawn(job, rank)
                self._children[process.pid] = process
                launched.append(Launched(pid=process.pid, started_at=started_at(process.pid) or self._now()))
        except OSError as error:
            self._end(replace(job, launched=tuple(launched)), State.FAILED, f"its launcher cannot be started: {error}")
            return
        self._save(replace(job, launched=tuple(launched)))

    def _spawn(self, job: LocalJob, rank: int) -> subprocess.Popen[bytes]:
        logs = self._run_dir / SUBMISSION_LOGS_DIR
        logs.mkdir(parents=True, exist_ok=True)
        with (logs / f"{job.job_id}.{rank}.out").open("ab") as output:
            return subprocess.Popen(
                launcher_command(job, rank, self._run_dir),
                env=launcher_environment(job, rank, self._environ),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    # Watching

    def _check_running(self) -> None:
        for job in self._in_phase(Phase.RUNNING):
            self._check(job)

    def _check(self, job: LocalJob) -> None:
        if len(job.launched) < job.nodes:
            self._end(job, State.INTERRUPTED, "the sweep died while it started the job")
            return
        seen = self._look(job)
        over = [one for one in seen.launched if one.is_over]
        if len(over) == job.nodes:
            self._end(seen, *(seen.ending, "") if seen.ending else self._how_it_ended(seen))
        elif seen.ending is not None:
            self._stop([seen], seen.ending, seen.reason)
        elif self._now() - (seen.started_at or 0.0) > 60 * job.walltime_min:
            self._stop([seen], State.TIMEOUT, f"over its walltime of {job.walltime_min} min")
        elif over and self._now() - (seen.first_end_at or self._now()) > STRAGGLER_GRACE_S:
            self._stop([seen], *self._how_it_ended(seen))

    def _look(self, job: LocalJob) -> LocalJob:
        """The job with its launchers as they are now."""
        seen = self._seen(job)
        return job if seen == job else self._save(seen)

    def _as_it_looks(self, job: LocalJob) -> LocalJob:
        """The job with what can be seen of its end, with nothing written or ended."""
        if LOCAL_STATES[job.state].phase is not Phase.RUNNING:
            return job
        seen = self._seen(job)
        if not all(one.is_over for one in seen.launched):
            return seen
        state, reason = self._how_it_ended(seen)
        return ended(seen, state, now=self._now(), reason=reason)

    def _seen(self, job: LocalJob) -> LocalJob:
        launched = tuple(one if one.is_over else self._look_at(job, rank) for rank, one in enumerate(job.launched))
        if launched == job.launched:
            return job
        return replace(job, launched=launched, first_end_at=job.first_end_at or self._now())

    def _look_at(self, job: LocalJob, rank: int) -> Launched:
        one = job.launched[rank]
        child = self._children.get(one.pid)
        if child is not None:
            code = child.poll()
            return one if code is None else replace(one, is_over=True, exit_code=code)
        if own_process(one.pid, start=one.started_at, marker=job.marker):
            return one
        # Nobody can wait for another's child: how it ended is known only of node 0, which wrote it down.
        return replace(one, is_over=True, exit_code=self._recorded_exit_code(job) if rank == 0 else None)

    def _how_it_ended(self, job: LocalJob) -> tuple[State, str]:
        """The state of a job that ended by itself, wholly or in part."""
        over = {rank: one.exit_code for rank, one in enumerate(job.launched) if one.is_over}
        # Of a job that was taken over, the other nodes' launchers may well have ended in order.
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

    def _recorded_exit_code(self, job: LocalJob) -> int | None:
        """What the launcher of node 0 wrote at its end; None where it did not get there."""
        try:
            record = AttemptFile.parse((self._run_dir / job.attempt / ATTEMPT_FILE).read_text())
        except (OSError, RecordError):
            return None
        if record.job_id != job.job_id or record.exit_code is None:
            return None
        return record.exit_code if record.exit_code >= 0 else 128 - record.exit_code

    # Ending

    def _stop(self, jobs: Iterable[LocalJob], state: State, reason: str) -> None:
        """End jobs together: ask, wait for the longest grace among them, kill, and see that nothing is left."""
        going = [job for job in jobs if LOCAL_STATES[job.state].phase in (Phase.PENDING, Phase.RUNNING)]
        running = [self._save(replace(job, ending=state, reason=reason)) for job in going if job.state is State.RUNNING]
        # Interrupted once more: no more waiting, but nothing is left behind either.
        with contextlib.suppress(KeyboardInterrupt):
            self._ask_and_wait(running)
        for job in going:
            self._end(self._known()[job.job_id], state, reason)

    def _ask_and_wait(self, jobs: Sequence[LocalJob]) -> None:
        for job in jobs:
            ask_to_stop(
                process
                for one in job.launched
                if (process := own_process(one.pid, start=one.started_at, marker=job.marker))
            )
        deadline = time.monotonic() + min([LONGEST_GRACE_S, *(job.stop_grace_s + 1 for job in jobs)])
        while any(not one.is_over for job in jobs for one in self._look(self._known()[job.job_id]).launched):
            if time.monotonic() > deadline:
                return
            time.sleep(0.05)

    def _end(self, job: LocalJob, state: State, reason: str) -> None:
        left = kill_marked(job.marker) if job.state is State.RUNNING else []
        if left:
            reason = f"{reason}; processes {left} could not be killed"
        self._save(ended(self._seen(job), state, now=self._now(), reason=reason))
        for one in job.launched:
            self._children.pop(one.pid, None)
