"""Submits the probe as a job, waits for the reports of its nodes, and leaves no job behind."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from sweep.core.attempts.attempt import JobReport, Phase
from sweep.core.encoding.frozen import dataclass
from sweep.core.jobs.submission import Submission
from sweep.ports import Clock, Scheduler, SchedulerError, SubmissionRejectedError, SubmissionUncertainError


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeResult:
    """The reports of the probe's nodes."""

    reports: Mapping[int, Mapping[str, Any]]
    """By node rank."""
    trouble: str = ""
    """Why a node's report is missing; empty where none is."""
    mend: str = ""
    """How to mend it."""
    began_at: float = 0.0
    """Unix time of the submission, by this machine's clock."""
    seen_at: float = 0.0
    """Unix time at which the last report was seen, by this machine's clock."""
    ahead_of_files_s: float | None = None
    """Seconds by which this machine's clock is ahead of the time stamps of new files; None where unknown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeJob:
    """One run of the probe on a cluster."""

    scheduler: Scheduler
    submission: Submission
    """The probe's; its files are on disk."""
    clock: Clock
    read: Callable[[], Mapping[int, Mapping[str, Any]]]
    """Reads the reports that are there."""
    timeout_s: float
    """Seconds to wait in all, in the queue and while the job runs."""
    grace_s: float = 15.0
    """Seconds for which a report may be missing after the job's end, and for which a cancelled job may take to end:
    what it still writes would stay in the folder that its caller removes."""
    poll_s: float = 0.5
    """Seconds between two polls."""

    def run(self) -> ProbeResult:
        """Submit the probe, wait for its reports, and cancel the job if it has not ended."""
        began = self.clock.now()
        try:
            jobs = self.scheduler.submit(self.submission)
        except SubmissionRejectedError as error:
            mend = "See the check of the job script."
            return ProbeResult(reports={}, trouble=f"sbatch refused the job: {error}", mend=mend)
        except (SubmissionUncertainError, SchedulerError) as error:
            return ProbeResult(reports={}, trouble=f"the job could not be submitted: {error}", mend="Try again later.")
        try:
            return self._wait(jobs[0], began)
        finally:
            # The findings are worth more than the certainty that a job of five minutes is gone.
            with contextlib.suppress(SchedulerError):
                self.scheduler.cancel(dict.fromkeys(jobs, self.submission.name))
                self._await_end(jobs[0], began)

    def _wait(self, job: str, began: float) -> ProbeResult:
        start, ended_at = self.clock.monotonic(), None
        while True:
            reports = self.read()
            now = self.clock.monotonic()
            if len(reports) >= self.submission.nodes:
                return ProbeResult(reports=reports, began_at=began, seen_at=self.clock.now())
            report = self.scheduler.poll([job], since=began)[job]
            if report.phase is Phase.ENDED:
                ended_at = now if ended_at is None else ended_at
            if now - start > self.timeout_s or (ended_at is not None and now - ended_at > self.grace_s):
                trouble, mend = self._trouble(job, report, len(reports))
                return ProbeResult(
                    reports=reports, trouble=trouble, mend=mend, began_at=began, seen_at=self.clock.now()
                )
            self.clock.sleep(self.poll_s)

    def _await_end(self, job: str, began: float) -> None:
        deadline = self.clock.monotonic() + self.grace_s
        over = (Phase.ENDED, Phase.ABSENT)
        while self.scheduler.poll([job], since=began)[job].phase not in over and self.clock.monotonic() < deadline:
            self.clock.sleep(self.poll_s)

    def _trouble(self, job: str, report: JobReport, have: int) -> tuple[str, str]:
        need, after = self.submission.nodes, f"after {self.timeout_s:g} s"
        reason = f" ({report.reason})" if report.reason else ""
        if report.phase is Phase.PENDING:
            return (
                f"job {job} still waited {after}{reason}; it was cancelled",
                "Wait longer with --timeout SECONDS, or ask for what the cluster has free.",
            )
        if report.phase is Phase.ENDED:
            where = f" on {','.join(report.nodes)}" if report.nodes else ""
            return (
                f"job {job} ended as {report.state}{reason}{where}, and {need - have} of {need} nodes wrote no report",
                "The last lines of its log are above. Either Python or the run directory is not the same there: set "
                "cluster.launch.python and cluster.slurm.setup, and a run_dir on a shared file system.",
            )
        return (
            f"job {job} is {report.state or 'unknown'} {after}; {have} of {need} nodes have reported",
            "Wait longer with --timeout SECONDS; see whether importing torch there takes minutes.",
        )
