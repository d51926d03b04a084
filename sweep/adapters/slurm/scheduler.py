"""The ports of a cluster over Slurm: submitit submits; squeue and sacct tell the truth."""

from __future__ import annotations

import os
import re
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sweep.adapters.slurm.commands import CommandTimeoutError, SlurmCommands, argument_chunks
from sweep.adapters.slurm.host_memory import MEMORY_FORMAT, over_memory
from sweep.adapters.slurm.job_ids import array_of, arrays_in, task_ids
from sweep.adapters.slurm.job_log import last_words
from sweep.adapters.slurm.job_ownership import OWNER_FORMAT, Owners, read_owners, who_cancelled
from sweep.adapters.slurm.pending_reasons import is_hopeless
from sweep.adapters.slurm.queue_text import (
    NO_NAMES,
    RUNS_FORMAT,
    SACCT_FORMAT,
    SQUEUE_FORMAT,
    Rows,
    best_report,
    read_runs,
    read_sacct,
    read_squeue,
)
from sweep.adapters.slurm.script import check_site, log_file
from sweep.adapters.slurm.site.cluster_site import SlurmSite
from sweep.core.attempts.attempt import ABSENT, Outcome, Phase, slurm_state
from sweep.ports import SchedulerError, SubmissionUncertainError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from sweep.core.attempts.attempt import JobReport, JobRun
    from sweep.core.jobs.submission import Submission
    from sweep.core.settings.site import Site
    from sweep.core.settings.spec import SlurmSpec
    from sweep.ports import Intent

_LOG_END_BYTES = 65_536
_JOB_ID = re.compile(r"\d+(_\d+)?")
# FAILED by squeue, which has no exit code, or by SIGKILL: 9:0 is sacct's way to write 137.
_KILLED = (None, 9, 137)
_OVER_ALREADY = re.compile(r"invalid job id specified|already completing or completed", re.IGNORECASE)
# Clocks of the login node and of the controller may differ, and sacct takes a day at its midnight.
_MARGIN_S = 86_400.0
# Without both of these, sacct keeps silent about what was cancelled before it could ever run, unless asked by id.
_EVERY_STATE = ("-s", "BF,CA,CD,DL,F,NF,OOM,PD,PR,R,RQ,RS,RV,S,TO", "-E", "now+1days")


class SlurmScheduler:
    """Runs submissions as Slurm jobs of one user.

    Args:
        spec: The site's settings.
        user: Whose jobs are looked at; by default the numeric id of who runs this, which no variable can falsify.
        commands: Runs Slurm's commands; by default in this process's environment.
        python: Interpreter on the compute nodes where the submission names none.
        now: Gives Unix time.

    Raises:
        SchedulerError: If a setting cannot be put into a job script, or Slurm's commands are not here.
    """

    def __init__(
        self,
        spec: SlurmSpec,
        *,
        user: str | None = None,
        commands: SlurmCommands | None = None,
        python: str = sys.executable,
        now: Callable[[], float] = time.time,
    ) -> None:
        check_site(spec)
        self._spec = spec
        self._user = user or str(os.getuid())
        self._commands = commands or SlurmCommands(os.environ)
        self._commands.require("sbatch", "squeue", "scancel", *(["sacct"] if spec.sacct else []))
        self._python = python
        self._site = SlurmSite(spec, self._commands, self._user, now=now)

    @property
    def keeps_jobs(self) -> bool:
        """Slurm's jobs go on without this process."""
        return True

    def own_name(self) -> str | None:
        """Slurm's ClusterName; None where the controller cannot be asked."""
        return self._site.cluster_name()

    def submit(self, submission: Submission) -> tuple[str, ...]:
        """Submit an array (one job where there is one task) in one sbatch call; its ids by array index.

        Raises:
            SubmissionRejectedError: If Slurm refused it, with Slurm's words.
            SubmissionUncertainError: If no answer came, or none that is understood.
            SchedulerError: If sbatch is missing or never reached the controller.
        """
        # Imported here: submitit takes a tenth of a second, which status and plan need not wait for.
        from sweep.adapters.slurm.submitit_executor import LaunchExecutor

        spec = self._site.fitting_spec()
        executor = LaunchExecutor(submission, spec, python=self._python, commands=self._commands)
        try:
            return task_ids(executor.submit_launch(), len(submission.tasks))
        except CommandTimeoutError as error:
            raise SubmissionUncertainError(str(error)) from error

    def find(self, submission: Intent) -> tuple[str, ...] | None:
        """Ids of a submission's jobs by its name, from the queue or else from accounting.

        None only says that neither knows it now: accounting lags behind the end of a job, and without accounting
        (``slurm.sacct``) a job is forgotten MinJobAge seconds after its end. So the caller asks again for a while, and
        looks for what the job itself has written, before it takes the job for never submitted.

        Raises:
            SchedulerError: If one of them cannot be asked, or there is more than one such job.
        """
        found = arrays_in(self._squeue("%i", f"--name={submission.name}"))
        if not found and self._spec.sacct:
            by_name = [f"--name={submission.name}", *_EVERY_STATE]
            found = arrays_in(self._sacct("JobID", since=submission.created_at, more=by_name))
        if len(found) > 1:
            raise SchedulerError(
                f"{len(found)} jobs have the name {submission.name}: {', '.join(found)}. At most one can be this "
                "submission; see which with `scontrol show job` or `sacct -j`, and cancel the other."
            )
        return task_ids(found[0], len(submission.tasks)) if found else None

    def jobs_of(self, shared_id: str, tasks: int) -> tuple[str, ...]:
        """Job ids of a submission of so many tasks: those of an array, or the plain job's own."""
        return task_ids(shared_id, tasks)

    def poll(
        self, job_ids: Collection[str], *, since: float, names: Mapping[str, str] | None = None
    ) -> Mapping[str, JobReport]:
        """What is known of each job, by one squeue for all and at most one sacct for those that it does not name.

        A second sacct tells which of those that FAILED were killed for their memory (:mod:`~.slurm_memory`).
        More than 100 KB of ids (some 10,000 submissions) are put to sacct in several calls.

        Raises:
            SchedulerError: If one of the commands that were needed failed: then nothing is known.
        """
        if not job_ids:
            return {}
        ours = {array_of(job_id): name for job_id, name in (names or {}).items()}
        queue = read_squeue(self._squeue(SQUEUE_FORMAT), ours)
        # Accounting has a changed name, too, but no script: what the queue knows for ours is ours there.
        unproven = {base: name for base, name in ours.items() if base not in queue.arrays}
        accounting = self._told(job_ids, queue, since, unproven) if self._spec.sacct else Rows()
        reports = {job_id: self._report(job_id, queue, accounting) for job_id in job_ids}
        told = self._with_memory(reports, since) if self._spec.sacct else reports
        return {job_id: _with_meaning(report) for job_id, report in told.items()}

    def _report(self, job_id: str, queue: Rows, accounting: Rows) -> JobReport:
        report = best_report(job_id, queue, accounting)
        if report is not None:
            who = who_cancelled(report.state, self._user)
            return replace(report, ended_by=who) if who else report
        other = queue.others.get(array_of(job_id)) or accounting.others.get(array_of(job_id))
        return ABSENT if other is None else replace(ABSENT, reason=f"{job_id} is now the id of another one, {other}")

    def runs_of(self, job_ids: Collection[str], *, since: float) -> Mapping[str, Sequence[JobRun]]:
        """All runs of jobs that may have been requeued under their ids, by accounting; none where it is off.

        Raises:
            SchedulerError: If accounting cannot be asked.
        """
        if not job_ids or not self._spec.sacct:
            return {}
        asked = list(dict.fromkeys(map(array_of, job_ids)))
        # Without -D only the last run is shown.
        more = [["-D", "-j", ",".join(ids)] for ids in argument_chunks(asked)]
        runs = read_runs("\n".join(self._sacct(RUNS_FORMAT, since=since, more=words) for words in more))
        return {job: runs[job] for job in job_ids if job in runs}

    def _with_memory(self, reports: Mapping[str, JobReport], since: float) -> Mapping[str, JobReport]:
        """Jobs that may have been killed for their memory are looked at more closely, by one more sacct for all."""
        killed = [job for job, report in reports.items() if report.state == "FAILED" and report.exit_code in _KILLED]
        found: dict[str, str] = {}
        for ids in argument_chunks(list(dict.fromkeys(map(array_of, killed)))):
            with suppress(SchedulerError):  # then it stays FAILED
                found |= over_memory(self._sacct(MEMORY_FORMAT, since=since, more=["-j", ",".join(ids)], steps=True))
        words = {job: f"Slurm says FAILED: {found[job]}" for job in killed if job in found}
        return {
            **reports,
            **{job: replace(reports[job], state="OUT_OF_MEMORY", reason=why) for job, why in words.items()},
        }

    def _told(self, job_ids: Collection[str], queue: Rows, since: float, ours: Mapping[str, str]) -> Rows:
        """What accounting knows of jobs that the queue does not name, or does not say who cancelled them."""
        missing = [job for job in job_ids if job not in queue.exact]
        cancelled = [job for job in job_ids if job in queue.exact and queue.exact[job].state == "CANCELLED"]
        try:
            return self._accounting([*missing, *cancelled], since, ours)
        except SchedulerError:
            if missing:
                raise
            return Rows()  # the state is known; by whom, is not

    def _accounting(self, job_ids: Collection[str], since: float, ours: Mapping[str, str] = NO_NAMES) -> Rows:
        """Whole arrays are asked for: task by task would take a huge amount of time."""
        asked = list(dict.fromkeys(array_of(job_id) for job_id in job_ids))
        lines = [self._sacct(SACCT_FORMAT, since=since, more=["-j", ",".join(ids)]) for ids in argument_chunks(asked)]
        return read_sacct("\n".join(lines), ours)

    def _squeue(self, columns: str, *more: str) -> str:
        # All states: for MinJobAge seconds after its end a job is here with its end state, before sacct knows.
        return self._commands.ask(["squeue", "--array", "-h", "-t", "all", "-u", self._user, "-o", columns, *more])

    def _sacct(self, columns: str, *, since: float, more: list[str], steps: bool = False) -> str:
        # A start day keeps sacct from jobs of the same number before a reset of the counter.
        day = time.strftime("%Y-%m-%d", time.localtime(since - _MARGIN_S))
        try:
            which = ["sacct", *([] if steps else ["-X"]), "-P", "-n", "-u", self._user, "-S", day]
            return self._commands.ask([*which, "-o", columns, *more])
        except SchedulerError as error:
            if "accounting storage is disabled" in str(error).lower():
                raise SchedulerError(f"{error}. This cluster keeps no accounting: set slurm.sacct=false.") from error
            raise

    def site(self) -> Site:
        """What the cluster allows just now, as far as it says; what it is set to is asked for every ten minutes."""
        return self._site.site()

    def unhealthy(self, nodes: Collection[str]) -> Mapping[str, str]:
        """Of these nodes, those that are down, drained, failing or silent, with Slurm's state and reason."""
        return self._site.unhealthy(nodes)

    def last_words(self, run_dir: str, submission: str, job_id: str, *, since: float) -> JobReport | None:
        """How Slurm says in the job's log that it ended the job; None where it does not, or the log is not there."""
        try:
            with Path(run_dir, log_file(submission, job_id)).open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_END_BYTES))
                said = last_words(file.read().decode(errors="replace"), since=since)
        except OSError:
            return None
        return None if said is None else _with_meaning(said)

    def cancel(self, jobs: Mapping[str, str], *, only_pending: bool = False) -> Sequence[str]:
        """End these jobs and array tasks, in one scancel call; those that are over already are no error.

        The queue is asked first whose the ids are, since to an administrator Slurm gives any job, and which have begun.
        (scancel's own filters are no way: with one of them Slurm 22.05 takes ``42_1`` for all waiting tasks of 42.)

        Raises:
            SchedulerError: If Slurm cannot be asked, or one of the ids is none.
        """
        wrong = [job_id for job_id in jobs if not _JOB_ID.fullmatch(job_id)]
        if wrong:
            raise SchedulerError(f"no ids of Slurm jobs, so nothing was cancelled: {', '.join(map(repr, wrong))}")
        owners = self._owners(jobs)
        ours = [job for job, name in jobs.items() if owners.has(job, name)]
        for ids in argument_chunks([job for job in ours if job in owners.pending] if only_pending else ours):
            self._commands.ask(["scancel", *ids], unless=_OVER_ALREADY)
        others = {job: owners.names[array_of(job)] for job in jobs if job not in ours and array_of(job) in owners.names}
        return [f"{job} is now the id of another job, {whose}: it is left alone" for job, whose in others.items()]

    def _owners(self, job_ids: Iterable[str]) -> Owners:
        lines: list[str] = []
        for ids in argument_chunks(list(dict.fromkeys(map(array_of, job_ids)))):
            asked = ["squeue", "--array", "-h", "-t", "all", "-j", ",".join(ids), "-o", OWNER_FORMAT]
            lines.append(self._commands.ask(asked, unless=_OVER_ALREADY))
        return read_owners("\n".join(lines), self._user)

    def close(self) -> None:
        """Nothing to end: Slurm keeps the jobs."""


def outcome_of(report: JobReport) -> Outcome | None:
    """The outcome that a state's word means, where it is specific.

    FAILED on no node at all is a job that Slurm took and then could not give what it asked for (BadConstraints).
    """
    state = slurm_state(report.state)
    if state.outcome is None and report.phase is Phase.ENDED and report.state == "FAILED" and not report.nodes:
        return Outcome.REJECTED_BY_SCHEDULER
    return state.outcome


def _with_meaning(report: JobReport) -> JobReport:
    outcome, hopeless = outcome_of(report), is_hopeless(report)
    return replace(report, outcome=outcome, is_hopeless=hopeless) if outcome or hopeless else report
