"""What the scheduler says of the jobs of attempts, and whether what has a job's id is still that job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sweep.core.attempts.attempt import Phase
from sweep.core.encoding.record import RecordError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sweep.core.attempts.attempt import JobReport
    from sweep.core.attempts.history import AttemptState, History
    from sweep.ports import RunDirectory, Scheduler


def names_of(attempts: Iterable[AttemptState]) -> dict[str, str]:
    """Job ids with the names of their submissions, of those attempts that have a job."""
    return {attempt.job_id: attempt.submission for attempt in attempts if attempt.job_id is not None}


def reports_of(
    flying: Sequence[AttemptState], *, history: History, scheduler: Scheduler, run_dir: RunDirectory
) -> Mapping[str, JobReport]:
    """The scheduler's word on the jobs of attempts, by job.

    A job whose id another one seems to have (its name was changed, and the scheduler cannot tell it otherwise) is asked
    about once more by its id alone, where it has claimed its submission and its launcher has not written its end.

    Raises:
        sweep.ports.SchedulerError: If it cannot be asked: then nothing is known.
    """
    since = min((attempt.reserved_at for attempt in flying), default=0.0)
    names = names_of(flying)
    reports = scheduler.poll(names.keys(), since=since, names=names)
    renamed = [
        str(attempt.job_id)
        for attempt in flying
        if seems_anothers(reports[str(attempt.job_id)])
        and (job := began(attempt, run_dir))
        and attempt.job_id == scheduler.jobs_of(job, len(history.submissions[attempt.submission]))[attempt.index]
    ]
    return {**reports, **scheduler.poll(renamed, since=since)} if renamed else reports


def seems_anothers(report: JobReport) -> bool:
    """Whether a job is absent because something else has its id: of nothing else that is absent a reason is known."""
    return report.phase is Phase.ABSENT and bool(report.reason)


def began(attempt: AttemptState, run_dir: RunDirectory) -> str:
    """The job that has claimed an attempt's submission; empty where there is none, or its launcher wrote its end."""
    launched = run_dir.attempt_file(attempt.key)
    if launched is not None and launched.ended_at is not None:
        return ""
    try:
        return run_dir.job_that_began(attempt.submission) or ""
    except (OSError, RecordError):
        return ""
