"""Runs submissions as processes of this machine, behind the same port as a cluster's."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import psutil

from sweep.adapters.local.jobs import LOCAL_STATES, JobFiles, Launched, LocalJob, State, ended, job_ids, new_job
from sweep.adapters.local.launchers import Launchers, end_of, has_room, meeting_dir
from sweep.adapters.local.processes import kill_marked, own_process, terminate
from sweep.core.attempts.attempt import ABSENT, JobReport, Phase
from sweep.core.attempts.error_text import STORAGE_ERRORS
from sweep.core.encoding.record import RecordError
from sweep.core.jobs.environment import scrubbed
from sweep.core.jobs.submission import Submission, submission_file
from sweep.files import read_text
from sweep.ports import Intent

LONGEST_GRACE_S = 7.0
"""The longest time that a job gets to stop, whatever its own grace: Ctrl-C should take less than ten seconds."""
STRAGGLER_GRACE_S = 10.0
"""Seconds for which a job's other nodes may go on once one has ended."""


class LocalScheduler:
    """Implements :class:`sweep.ports.Scheduler` over processes of this machine.

    A ``sweep.launch`` process in a session of its own plays a node. :meth:`poll` drives everything: without it no job
    starts, and no end is noticed. Each job's state is a file, so that another process can take over after a kill. An
    OSError means that these files cannot be written: the run directory's disk is full, or read-only.

    Args:
        run_dir: The run directory; one process at a time may drive it.
        max_concurrent_cells: Cells that may run at once; None: as many as cores and memory allow.
        environ: Environment of the jobs, None: this process's; variables of an enclosing job are removed.
        cores: Cores to share out; None: those that this process may use.
        drives: True if :meth:`poll` may change anything; False for commands that only read.
        starts: True if it may start jobs; False for a process that does not stay to watch them.
        setup: The site's set-up lines, which each node of a job runs first.
        is_ours: True if a submission that an earlier process left waiting is what this command would start: a record
            in the run directory does not decide which program runs.
        now: Gives Unix time.
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
        setup: Sequence[str] = (),
        is_ours: Callable[[Submission], bool] = lambda submission: True,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Touch nothing."""
        self._run_dir = run_dir.absolute()
        self._files = JobFiles(self._run_dir)
        self._environ = scrubbed(os.environ if environ is None else environ)
        self._launchers = Launchers(self._run_dir, self._environ, setup, now)
        self._max_concurrent = max_concurrent_cells
        self._cores = cores or len(os.sched_getaffinity(0))
        self._drives = drives
        self._starts = starts
        self._is_ours = is_ours
        self._submitted: set[str] = set()
        self._now = now
        self._jobs: dict[str, LocalJob] | None = None

    @property
    def keeps_jobs(self) -> bool:
        """False: without this process nobody would start or end the jobs."""
        return False

    def submit(self, submission: Submission) -> tuple[str, ...]:
        """Queue a submission's jobs.

        Raises:
            OSError: If their files cannot be written.
        """
        now = self._now()
        jobs = [new_job(submission, i, now=now, environ=self._environ) for i in range(len(submission.tasks))]
        for job in reversed(jobs):
            self._files.write(job)
        self._known().update({job.job_id: job for job in jobs})
        self._submitted.update(job.job_id for job in jobs)
        return job_ids(submission.name, len(submission.tasks))

    def find(self, submission: Intent) -> tuple[str, ...] | None:
        """Find the job ids of a submission; remove the files of one that a crash left half written."""
        ids = job_ids(submission.name, len(submission.tasks))
        if self._files.has(ids[0]):
            return ids
        for job_id in ids:
            self._files.remove(job_id)
        return None

    def jobs_of(self, shared_id: str, tasks: int) -> tuple[str, ...]:
        """Job ids of a submission; the id that they share is its name."""
        return job_ids(shared_id, tasks)

    def poll(
        self, job_ids: Collection[str], *, since: float, names: Mapping[str, str] | None = None
    ) -> Mapping[str, JobReport]:
        """Notice which jobs have ended, start those that there is room for, and report on all.

        Raises:
            OSError: If a job's state cannot be written.
        """
        if self._drives:
            for job in self._in_phase(Phase.RUNNING):
                self._check(job)
            if self._starts:
                self._start_pending()
        else:
            self._jobs = {job.job_id: self._observed(job) for job in self._files.all()}
        known = self._known()
        return {job_id: known[job_id].report if job_id in known else ABSENT for job_id in job_ids}

    def logged_end(self, run_dir: str, submission: str, job_id: str, *, since: float) -> JobReport | None:
        """The end of a job by a set-up line that failed; None where the logs of its nodes tell of none."""
        job = self._known().get(job_id)
        return None if job is None else self._launchers.failure_of_set_up(job_id, job.nodes)

    def cancel(self, jobs: Mapping[str, str], *, only_pending: bool = False) -> Sequence[str]:
        """End jobs, or only those of them that have not begun; on return none of their processes is left.

        No id belongs to another submission's job, since it contains the submission's name.
        """
        wanted = [job for job_id in jobs if (job := self._known().get(job_id))]
        if only_pending:
            wanted = [job for job in wanted if job.state is State.PENDING]
        self._stop(wanted, State.CANCELLED, "cancelled")
        return ()

    def close(self) -> None:
        """End every job that has not ended; on return none of their processes is left.

        The next process finds out which have ended where that cannot be written.
        """
        if self._drives:
            with contextlib.suppress(OSError):
                self._stop(self._known().values(), State.INTERRUPTED, "the sweep was interrupted")

    def _known(self) -> dict[str, LocalJob]:
        if self._jobs is None:
            self._jobs = {job.job_id: job for job in self._files.all()}
        return self._jobs

    def _save(self, job: LocalJob) -> LocalJob:
        self._known()[job.job_id] = job
        self._files.write(job)
        return job

    def _in_phase(self, phase: Phase) -> list[LocalJob]:
        jobs = self._known().values()
        return sorted((job for job in jobs if LOCAL_STATES[job.state].phase is phase), key=lambda job: job.order)

    # Starting

    def _start_pending(self) -> None:
        for job in self._in_phase(Phase.PENDING):
            running, free_bytes = self._in_phase(Phase.RUNNING), psutil.virtual_memory().available
            limit, cores = self._max_concurrent, self._cores
            if not has_room(job, running, max_concurrent=limit, cores=cores, available_bytes=free_bytes):
                # No job overtakes another: behind a stream of small jobs a large one would wait for ever.
                return
            self._start(job)

    def _start(self, job: LocalJob) -> None:
        if job.job_id not in self._submitted and not self._is_as_ordered(job):
            reason = "it was left waiting with other settings or sources than this command has; it is tried again"
            self._end(job, State.INTERRUPTED, reason)
            return
        # Written before the first process exists: a process that finds a running job without launchers knows that the
        # start was cut short, ends what has the job's marker, and never starts the job twice.
        job = replace(job, state=State.RUNNING, started_at=self._now())
        reason = "the run directory could not be written"
        self._files.write_spare(replace(job, state=State.STORAGE_ERROR, reason=reason))
        self._save(job)
        launched: list[Launched] = []
        try:
            meeting_dir(job, self._run_dir).mkdir(mode=0o700)
            for rank in range(job.nodes):
                launched.append(self._launchers.start(job, rank))
        except (OSError, ValueError) as error:
            state = State.STORAGE_ERROR if getattr(error, "errno", None) in STORAGE_ERRORS else State.FAILED
            self._end(replace(job, launched=tuple(launched)), state, f"its launcher cannot be started: {error}")
            return
        self._save(replace(job, launched=tuple(launched)))

    def _is_as_ordered(self, job: LocalJob) -> bool:
        """True if a job that another process left is what its submission makes of it, and that is this command's."""
        try:
            submission = Submission.parse(read_text(self._run_dir / submission_file(job.submission)))
        except (OSError, RecordError):
            return False
        if submission.run_dir != str(self._run_dir) or job.index not in range(len(submission.tasks)):
            return False
        made = new_job(submission, job.index, now=job.submitted_at, environ=self._environ)
        return replace(made, marker=job.marker) == job and self._is_ours(submission)

    # Watching

    def _check(self, job: LocalJob) -> None:
        if len(job.launched) < job.nodes:
            self._end(job, State.INTERRUPTED, "the sweep died while it started the job")
            return
        ended_at = self._launchers.end_time(job)  # before its file is written anew
        job = self._observe(job)
        over = [one for one in job.launched if one.is_over]
        if len(over) == job.nodes:
            state, reason = (job.ending, "") if job.ending else end_of(job)
            self._end(job, state, reason, at=ended_at)
        elif job.ending is not None:
            self._stop([job], job.ending, job.reason)
        elif self._now() - (job.started_at or 0.0) > 60 * job.walltime_min:
            self._stop([job], State.TIMEOUT, f"over its walltime of {job.walltime_min} min")
        elif over and self._now() - (job.first_end_at or self._now()) > STRAGGLER_GRACE_S:
            self._stop([job], *end_of(job))

    def _observe(self, job: LocalJob) -> LocalJob:
        """The job with its launchers as they are now, saved where they changed."""
        observed = self._launchers.observe(job)
        return job if observed == job else self._save(observed)

    def _observed(self, job: LocalJob) -> LocalJob:
        """The job as it is now, with its end where its launchers have ended; nothing is written or ended."""
        if LOCAL_STATES[job.state].phase is not Phase.RUNNING:
            return job
        observed = self._launchers.observe(job)
        if not all(one.is_over for one in observed.launched):
            return observed
        state, reason = end_of(observed)
        return ended(observed, state, now=self._launchers.end_time(observed), reason=reason)

    # Ending

    def _stop(self, jobs: Iterable[LocalJob], state: State, reason: str) -> None:
        """End jobs together: terminate them, wait for the longest grace among them, then kill what is left."""
        live = [job for job in jobs if LOCAL_STATES[job.state].phase in (Phase.PENDING, Phase.RUNNING)]
        running = [replace(job, ending=state, reason=reason) for job in live if job.state is State.RUNNING]
        # Where the state of one cannot be written, all are ended all the same.
        with contextlib.ExitStack() as ends:
            for job in live:
                ends.callback(lambda job_id: self._end(self._known()[job_id], state, reason), job.job_id)
            with contextlib.suppress(OSError):
                for job in running:
                    self._save(job)
            # A second Ctrl-C ends the wait; the processes are killed all the same.
            with contextlib.suppress(KeyboardInterrupt):
                self._terminate_and_wait(running)

    def _terminate_and_wait(self, jobs: Sequence[LocalJob]) -> None:
        for job in jobs:
            terminate(
                process
                for one in job.launched
                if (process := own_process(one.pid, start=one.started_at, marker=job.marker, run_dir=self._run_dir))
            )
        deadline = time.monotonic() + min([LONGEST_GRACE_S, *(job.stop_grace_s + 1 for job in jobs)])
        while any(not one.is_over for job in jobs for one in self._launchers.observe(job).launched):
            if time.monotonic() > deadline:
                return
            time.sleep(0.05)

    def _end(self, job: LocalJob, state: State, reason: str, *, at: float | None = None) -> None:
        left = kill_marked(job.marker, self._run_dir) if job.state is State.RUNNING else []
        if job.state is State.RUNNING:
            shutil.rmtree(meeting_dir(job, self._run_dir), ignore_errors=True)
        if left:
            reason = f"{reason}; processes {left} could not be killed"
        over = ended(self._launchers.observe(job), state, now=self._now() if at is None else at, reason=reason)
        self._launchers.forget(job)
        try:
            self._save(over)
        except OSError:
            self._files.put_spare(job.job_id)
            raise
        self._files.remove_spare(job.job_id)
