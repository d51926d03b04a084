"""What a job used in earlier runs under its id: by accounting, or else by the files that its runs have left."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sweep.core.attempts.attempt import Phase
from sweep.core.attempts.ledger import Requeued
from sweep.ports import SchedulerError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sweep.core.attempts.attempt import JobReport, JobRun
    from sweep.core.attempts.history import AttemptState
    from sweep.core.records.attempt_file import AttemptFile
    from sweep.usecases.session import Session

_CLOCKS_DIFFER_S = 1.0
"""Slurm's times are whole seconds."""


class Requeues:
    """Notices that jobs were put back into the queue, and what that has cost so far.

    Args:
        session: The run.
    """

    def __init__(self, session: Session) -> None:
        """Nothing has been seen yet."""
        self._session = session
        self._seen: dict[str, tuple[bool, float | None]] = {}

    def notice(self, flying: Iterable[AttemptState], reports: Mapping[str, JobReport]) -> None:
        """Record what requeued jobs have used, as soon as it is known; asks accounting once for all of them."""
        suspects = [
            (attempt, report)
            for attempt in flying
            if (report := reports.get(str(attempt.job_id))) is not None and self._may_have_run_before(attempt, report)
        ]
        runs = self._runs_of([attempt for attempt, _ in suspects])
        for attempt, report in suspects:
            job = str(attempt.job_id)
            told = _seconds_before(report, runs.get(job, ()))
            used = (self._seconds_by_files(attempt, report) if told is None else told) * attempt.gpus
            if used > attempt.earlier_gpu_seconds:
                self._session.record(Requeued(time=self._session.clock.now(), key=attempt.key, gpu_seconds=used))
            if not _is_behind(report, runs.get(job, ())):
                self._seen[job] = (report.phase is Phase.PENDING, report.started_at)

    def _may_have_run_before(self, attempt: AttemptState, report: JobReport) -> bool:
        """Whether there is a new sign of an earlier run: what has not changed since it was looked at is none."""
        job, now = str(attempt.job_id), (report.phase is Phase.PENDING, report.started_at)
        _, began = self._seen.get(job, (True, None))
        if self._seen.get(job) == now or report.phase not in (Phase.PENDING, Phase.RUNNING):
            return False
        has_sign = began is not None or bool(self._files_of_earlier(attempt, report))
        if not has_sign:
            self._seen[job] = now
        return has_sign

    def settled_seconds(self, over: Iterable[tuple[AttemptState, JobReport]]) -> Mapping[str, float]:
        """Seconds that ended jobs held their nodes in runs before their last one, by job; asks accounting once.

        A job that was not requeued is left out.
        """
        requeued = [
            (attempt, report)
            for attempt, report in over
            if attempt.earlier_gpu_seconds
            or self._began_again(attempt, report)
            or self._files_of_earlier(attempt, report)
        ]
        runs = self._runs_of([attempt for attempt, _ in requeued])
        return {
            str(attempt.job_id): self._settled(attempt, report, runs.get(str(attempt.job_id), ()))
            for attempt, report in requeued
        }

    def _began_again(self, attempt: AttemptState, report: JobReport) -> bool:
        """Whether a job that is over may have been requeued since the last look: another run of it was seen, or wrote.

        Where it is only that clocks differ, accounting says so.
        """
        _, began = self._seen.get(str(attempt.job_id), (True, None))
        if report.started_at is None:
            return False
        latest = self._session.run_dir.attempt_file(attempt.key)
        return (began or report.started_at) != report.started_at or (
            latest is not None and latest.started_at < report.started_at
        )

    def _settled(self, attempt: AttemptState, report: JobReport, runs: Sequence[JobRun]) -> float:
        told = _seconds_before(report, runs)
        if told is not None:
            return told
        noticed = attempt.earlier_gpu_seconds / attempt.gpus if attempt.gpus else 0.0
        return max(noticed, self._seconds_by_files(attempt, report))

    def is_counted(self, attempt: AttemptState, latest: AttemptFile, report: JobReport) -> bool:
        """Whether the run of a job's latest launcher is among those before a requeue that were noticed already."""
        files = [*self._session.run_dir.earlier_runs(attempt.key), latest]
        return 0 < self._seconds_of(files, report) * attempt.gpus <= attempt.earlier_gpu_seconds

    def _seconds_by_files(self, attempt: AttemptState, report: JobReport) -> float:
        return self._seconds_of(self._files_of_earlier(attempt, report), report)

    def _seconds_of(self, files: Sequence[AttemptFile], report: JobReport) -> float:
        return sum(max(0.0, self._end_of(run, files[n + 1 :], report) - run.started_at) for n, run in enumerate(files))

    def _end_of(self, run: AttemptFile, later: Sequence[AttemptFile], report: JobReport) -> float:
        """When a run ended: a launcher that was killed did not write it, but the files of its trainer tell."""
        if run.ended_at is not None:
            return run.ended_at
        sign = self._session.run_dir.last_sign_of_life(run.key, run.restart)
        at_most = later[0].started_at if later else report.started_at
        return min(run.started_at if sign is None else sign, at_most or float("inf"))

    def _files_of_earlier(self, attempt: AttemptState, report: JobReport) -> Sequence[AttemptFile]:
        """What launchers of earlier runs wrote: of a job that waits (again), all of them."""
        run_dir, latest = self._session.run_dir, self._session.run_dir.attempt_file(attempt.key)
        # A submission that is in the queue twice may be run by the other job.
        earlier = [run for run in run_dir.earlier_runs(attempt.key) if run.job_id == attempt.job_id]
        if latest is None or latest.job_id != attempt.job_id or not self._is_of_earlier(latest, report):
            return earlier
        return [*earlier, latest]

    def _is_of_earlier(self, latest: AttemptFile, report: JobReport) -> bool:
        if _waits(report):
            return True
        # The clocks of nodes differ: only a launcher that has ended can be of an earlier run. One that began and ended
        # within the second in which the job began is of this run.
        began, ended = report.started_at, latest.ended_at
        if began is None or ended is None:
            return False
        return latest.started_at < began and ended < began + _CLOCKS_DIFFER_S

    def _runs_of(self, attempts: Sequence[AttemptState]) -> Mapping[str, Sequence[JobRun]]:
        if not attempts or self._session.view.accounting is None:
            return {}
        since = min(attempt.reserved_at for attempt in attempts)
        try:
            return self._session.view.accounting.runs_of([str(attempt.job_id) for attempt in attempts], since=since)
        except SchedulerError:
            return {}  # its files tell


def waited_when_it_ended(report: JobReport) -> bool:
    """Whether a job was cancelled while it waited, be it for its first run or for another."""
    is_cancelled = report.phase is Phase.ENDED and report.state.startswith("CANCELLED")
    return is_cancelled and report.started_at is None and not report.nodes


def _waits(report: JobReport) -> bool:
    return report.phase is Phase.PENDING or waited_when_it_ended(report)


def _seconds_before(report: JobReport, runs: Sequence[JobRun]) -> float | None:
    """Seconds of the runs before the one that a report is about; None where accounting does not know them (yet).

    Accounting hears of runs in their order: where it knows that one, it knows all before it.
    """
    began = report.started_at
    before = [run for run in runs if _waits(report) or (began is not None and run.started_at < began)]
    spans = [run.ended_at - run.started_at for run in before if run.ended_at is not None]
    is_known = bool(before) or any(run.started_at == began for run in runs)
    return sum(spans) if is_known and len(spans) == len(before) else None


def _is_behind(report: JobReport, runs: Sequence[JobRun]) -> bool:
    """Whether accounting has not taken in yet that a run has ended which the queue has forgotten."""
    return any(run.ended_at is None and run.started_at != report.started_at for run in runs)
