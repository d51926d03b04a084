"""The ports of a cluster over Slurm: submitit submits; squeue and sacct report on the jobs."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from sweep.adapters.slurm.commands import CommandTimeoutError, SlurmCommands, argument_chunks
from sweep.adapters.slurm.fields import array_of, task_ids
from sweep.adapters.slurm.job_log import reported_end
from sweep.adapters.slurm.job_queries import NO_SUCH_JOB, JobQueries, who_cancelled
from sweep.adapters.slurm.queue_text import Rows, best_report
from sweep.adapters.slurm.refusal import is_hopeless
from sweep.adapters.slurm.script import check_site, log_file
from sweep.adapters.slurm.site.cluster_site import SlurmSite
from sweep.core.attempts.attempt import ABSENT, JobReport, JobRun, Outcome, Phase, slurm_state
from sweep.core.jobs.submission import Submission
from sweep.core.settings.site import Site
from sweep.core.settings.spec import SlurmSpec
from sweep.files import open_regular, read_tail
from sweep.ports import Intent, SchedulerError, SubmissionUncertainError

_LOG_BEGIN_BYTES, _LOG_END_BYTES = 4_096, 65_536
_JOB_ID = re.compile(r"\d+(_\d+)?")
# Exit codes of a job that may have been killed for its memory: squeue gives none, and sacct writes 137 as 9:0.
_KILLED = (None, 9, 137)


class SlurmScheduler:
    """Runs submissions as Slurm jobs of one user.

    Args:
        spec: The site's settings.
        run_dir: The run directory; only jobs whose script lies in it are cancelled.
        user: Owner of the jobs; by default the numeric id of this process's user, which no variable can falsify.
        commands: Runs Slurm's commands; by default in this process's environment.
        python: Interpreter on the compute nodes where the submission names none.
        now: Gives Unix time.

    Raises:
        SchedulerError: If a setting cannot be put into a job script, or Slurm's commands are not installed.
    """

    def __init__(
        self,
        spec: SlurmSpec,
        run_dir: Path,
        *,
        user: str | None = None,
        commands: SlurmCommands | None = None,
        python: str = sys.executable,
        now: Callable[[], float] = time.time,
    ) -> None:
        check_site(spec)
        self._spec = spec
        self._run_dir = run_dir.absolute()
        self._user = user or str(os.getuid())
        self._commands = commands or SlurmCommands(os.environ)
        self._commands.require("sbatch", "squeue", "scancel", *(["sacct"] if spec.sacct else []))
        self._queries = JobQueries(self._commands, self._user)
        self._python = python
        self._site = SlurmSite(spec, self._commands, self._user, now=now)

    @property
    def keeps_jobs(self) -> bool:
        """True: Slurm's jobs go on without this process."""
        return True

    def own_name(self) -> str | None:
        """Slurm's ClusterName; None where the controller does not answer."""
        return self._site.cluster_name()

    def submit(self, submission: Submission) -> tuple[str, ...]:
        """Submit an array, or one job where there is one task, by one call of sbatch; returns ids by array index.

        Raises:
            SubmissionRejectedError: If Slurm refused it, with Slurm's message.
            SubmissionUncertainError: If no answer came, or none that is understood.
            SchedulerError: If sbatch is missing or never reached the controller.
        """
        # Imported here: submitit takes a tenth of a second, and status and plan submit nothing.
        from sweep.adapters.slurm.submitit_executor import LaunchExecutor

        spec = self._site.fitting_spec()
        executor = LaunchExecutor(submission, spec, python=self._python, commands=self._commands)
        try:
            return task_ids(executor.submit_launch(), len(submission.tasks))
        except CommandTimeoutError as error:
            raise SubmissionUncertainError(str(error)) from error

    def find(self, submission: Intent) -> tuple[str, ...] | None:
        """Find the ids of a submission's jobs by its name, in the queue or else in accounting.

        None means only that neither has the job now. Accounting lags behind a job's end, and without accounting
        (``slurm.sacct``) Slurm forgets a job MinJobAge seconds after its end. So the caller asks again for a while and
        looks for the job's own files before it concludes that nothing was submitted.

        Raises:
            SchedulerError: If one of them cannot be asked, or more than one job has the name.
        """
        found = self._queries.queued_arrays(submission.name)
        if not found and self._spec.sacct:
            found = self._queries.recorded_arrays(submission.name, since=submission.created_at)
        if len(found) > 1:
            raise SchedulerError(
                f"{len(found)} jobs have the name {submission.name}: {', '.join(found)}. At most one can be this "
                "submission; see which with `scontrol show job` or `sacct -j`, and cancel the other."
            )
        return task_ids(found[0], len(submission.tasks)) if found else None

    def jobs_of(self, shared_id: str, tasks: int) -> tuple[str, ...]:
        """Job ids of a submission: the array's tasks, or the plain job's own id."""
        return task_ids(shared_id, tasks)

    def poll(
        self, job_ids: Collection[str], *, since: float, names: Mapping[str, str] | None = None
    ) -> Mapping[str, JobReport]:
        """Report on each job, by one squeue for all and at most one sacct for the jobs that squeue does not list.

        A second sacct finds which of the FAILED jobs were killed for their memory. More than 100 KB of ids (some
        10,000 submissions) take several calls of sacct.

        Raises:
            SchedulerError: If a command that was needed failed: then nothing is known.
        """
        if not job_ids:
            return {}
        ours = {array_of(job_id): name for job_id, name in (names or {}).items()}
        queue = self._queries.queue(ours)
        # Accounting records a changed name, too, and no script: an array that the queue knows as ours is ours there.
        unproven = {array: name for array, name in ours.items() if array not in queue.arrays}
        accounting = self._accounting(job_ids, queue, since, unproven) if self._spec.sacct else Rows()
        reports = {job_id: self._report(job_id, queue, accounting) for job_id in job_ids}
        explained = self._with_memory(reports, since) if self._spec.sacct else reports
        return {job_id: _with_meaning(report) for job_id, report in explained.items()}

    def _accounting(self, job_ids: Collection[str], queue: Rows, since: float, names: Mapping[str, str]) -> Rows:
        """Accounting's rows of the jobs that the queue does not list, and of those that somebody cancelled."""
        missing = [job for job in job_ids if job not in queue.exact]
        cancelled = [job for job in job_ids if job in queue.exact and queue.exact[job].state == "CANCELLED"]
        try:
            return self._queries.recorded([*missing, *cancelled], names, since=since)
        except SchedulerError:
            if missing:
                raise
            return Rows()  # the states are known, only not who cancelled

    def _report(self, job_id: str, queue: Rows, accounting: Rows) -> JobReport:
        report = best_report(job_id, queue, accounting)
        if report is not None:
            who = who_cancelled(report.state, self._user)
            return replace(report, ended_by=who) if who else report
        other = queue.others.get(array_of(job_id)) or accounting.others.get(array_of(job_id))
        return ABSENT if other is None else replace(ABSENT, reason=f"{job_id} is now the id of another job, {other}")

    def _with_memory(self, reports: Mapping[str, JobReport], since: float) -> Mapping[str, JobReport]:
        """The reports, with OUT_OF_MEMORY where Slurm calls a job FAILED that it killed for its memory."""
        killed = [job for job, report in reports.items() if report.state == "FAILED" and report.exit_code in _KILLED]
        found = self._queries.over_memory(killed, since=since)
        explained = {
            job: replace(reports[job], state="OUT_OF_MEMORY", reason=f"Slurm says FAILED: {found[job]}")
            for job in killed
            if job in found
        }
        return {**reports, **explained}

    def runs_of(self, job_ids: Collection[str], *, since: float) -> Mapping[str, Sequence[JobRun]]:
        """All runs of jobs that may have been requeued, by accounting; empty where accounting is off.

        Raises:
            SchedulerError: If accounting cannot be asked.
        """
        if not job_ids or not self._spec.sacct:
            return {}
        runs = self._queries.runs(job_ids, since=since)
        return {job: runs[job] for job in job_ids if job in runs}

    def site(self) -> Site:
        """The cluster's limits now; its configuration is asked for every ten minutes."""
        return self._site.site()

    def unhealthy(self, nodes: Collection[str]) -> Mapping[str, str]:
        """Those of the nodes that are down, drained, failing or silent, with Slurm's state and reason."""
        return self._site.unhealthy(nodes)

    def logged_end(self, run_dir: str, submission: str, job_id: str, *, since: float) -> JobReport | None:
        """Read from the job's log how Slurm ended the job; None where the log does not tell, or is not there."""
        try:
            path = Path(run_dir, log_file(submission, job_id))
            text = read_tail(path, _LOG_END_BYTES)
            if len(text) == _LOG_END_BYTES:  # the zone of its times is said at its beginning
                with open_regular(path) as file:
                    text = file.read(_LOG_BEGIN_BYTES) + b"\n" + text
            report = reported_end(text.decode(errors="replace"), since=since)
        except OSError:
            return None
        return None if report is None else _with_meaning(report)

    def cancel(self, jobs: Mapping[str, str], *, only_pending: bool = False) -> Sequence[str]:
        """Cancel these jobs and array tasks, by one call of scancel; a job that has ended is no error.

        The queue is asked first for the owner, the job script and the state of each id: Slurm lets an administrator
        cancel any job, and a record that a stranger wrote may name any job of this user. scancel's own filters do not
        help: with one of them Slurm 22.05 takes ``42_1`` for all pending tasks of 42.

        Raises:
            SchedulerError: If Slurm cannot be asked, or an id is no job id.
        """
        wrong = [job_id for job_id in jobs if not _JOB_ID.fullmatch(job_id)]
        if wrong:
            raise SchedulerError(f"no ids of Slurm jobs, so nothing was cancelled: {', '.join(map(repr, wrong))}")
        owners = self._queries.owners(jobs)
        objections = {job: owners.objection(job, name, self._run_dir) for job, name in jobs.items()}
        ours = [job for job, objection in objections.items() if objection is None]
        for ids in argument_chunks([job for job in ours if job in owners.pending] if only_pending else ours):
            self._commands.ask(["scancel", *ids], unless=NO_SUCH_JOB)
        return [f"{objection}: it is left alone" for objection in objections.values() if objection]

    def close(self) -> None:
        """Do nothing: Slurm keeps the jobs."""


def outcome_of(report: JobReport) -> Outcome | None:
    """The outcome of a job's state; None where the state does not tell.

    A job that FAILED on no node was accepted and could not get what it asked for (BadConstraints).
    """
    state = slurm_state(report.state)
    if state.outcome is None and report.phase is Phase.ENDED and report.state == "FAILED" and not report.nodes:
        return Outcome.REJECTED_BY_SCHEDULER
    return state.outcome


def _with_meaning(report: JobReport) -> JobReport:
    outcome, hopeless = report.outcome or outcome_of(report), is_hopeless(report)
    return replace(report, outcome=outcome, is_hopeless=hopeless) if outcome or hopeless else report
