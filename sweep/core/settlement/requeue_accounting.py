"""Accounts for earlier runs of a job under its id: by accounting, or else by the files that its runs have left."""

from __future__ import annotations

from collections.abc import Sequence

from sweep.core.attempts.attempt import JobReport, JobRun, Phase
from sweep.core.attempts.ledger import Requeued
from sweep.core.records.attempt_record import AttemptFile
from sweep.core.settlement.case import Case
from sweep.core.settlement.facts import LastSignOf, LaunchesOf, RunsOf

_CLOCKS_DIFFER_S = 1.0
"""Slurm's times are whole seconds."""


def notice_requeue(case: Case) -> None:
    """Record what a job that waits or runs has used in earlier runs, as soon as it is known.

    A run that was looked at for signs of earlier ones is looked at again only once accounting may know more.
    """
    attempt, report = case.attempt, case.report
    run = (report.phase is Phase.PENDING, report.started_at)
    if case.memory.run == run:
        return
    has_begun_before = case.memory.run is not None and case.memory.run[1] is not None
    if not has_begun_before and not _earlier_launches(case):
        case.remember(run=run)
        return
    runs = _runs_of(case)
    seconds = _seconds_before(report, runs)
    used = (_seconds_by_files(case) if seconds is None else seconds) * attempt.gpus
    if used > attempt.earlier_gpu_seconds:
        case.do(Requeued(time=case.basis.now.unix, key=attempt.key, gpu_seconds=used))
    # Accounting may not have heard yet that a run has ended which the queue has forgotten.
    if not any(one.ended_at is None and one.started_at != report.started_at for one in runs):
        case.remember(run=run)


def gpu_seconds(case: Case) -> float | None:
    """GPU-seconds that an attempt held, runs before a requeue included; None where they are not known.

    The times of the last run are the scheduler's, or else the launcher's.
    """
    attempt, report, launched = case.attempt, case.report, case.launched
    earlier_s = _earlier_seconds(case)
    if report.phase is Phase.ABSENT and launched is not None and _is_counted(case, launched):
        return earlier_s * attempt.gpus  # it was forgotten before it began again
    started, ended = report.started_at, report.ended_at
    was_taken_back = attempt.stop is not None and attempt.stop.kind.is_while_pending
    if started is None and launched is None and (report.phase is Phase.ENDED or was_taken_back):
        return 0.0  # it ended before it began
    if _waited_when_it_ended(report):
        return earlier_s * attempt.gpus
    if (started is None or ended is None) and launched is not None:
        started, ended = launched.started_at, launched.ended_at or ended
    if started is None or ended is None:
        return None
    return (earlier_s + max(0.0, ended - started)) * attempt.gpus


def _earlier_seconds(case: Case) -> float:
    """Seconds that an ended job held its nodes in runs before its last one."""
    attempt, files = case.attempt, _earlier_launches(case)
    if not (attempt.earlier_gpu_seconds or files or _began_again(case)):
        return 0.0
    seconds = _seconds_before(case.report, _runs_of(case))
    if seconds is not None:
        return seconds
    noticed = attempt.earlier_gpu_seconds / attempt.gpus if attempt.gpus else 0.0
    return max(noticed, _seconds_by_files(case))


def _began_again(case: Case) -> bool:
    """True if another run of a job that is over was seen, or wrote: it may have been requeued since the last look.

    Where it is only that clocks differ, accounting says so.
    """
    began, report, latest = None if case.memory.run is None else case.memory.run[1], case.report, case.launched
    if report.started_at is None:
        return False
    return (began or report.started_at) != report.started_at or (
        latest is not None and latest.started_at < report.started_at
    )


def _runs_of(case: Case) -> Sequence[JobRun]:
    return case.ask(RunsOf(str(case.attempt.job_id), case.attempt.reserved_at))


def _is_counted(case: Case, latest: AttemptFile) -> bool:
    """True if the latest launcher's run is in ``earlier_gpu_seconds`` already, as a run before a requeue."""
    files = [*case.ask(LaunchesOf(case.attempt.key))[1], latest]
    return 0 < _seconds_of(case, files) * case.attempt.gpus <= case.attempt.earlier_gpu_seconds


def _seconds_by_files(case: Case) -> float:
    return _seconds_of(case, _earlier_launches(case))


def _seconds_of(case: Case, files: Sequence[AttemptFile]) -> float:
    return sum(max(0.0, _end_of(case, run, files[n + 1 :]) - run.started_at) for n, run in enumerate(files))


def _end_of(case: Case, run: AttemptFile, later: Sequence[AttemptFile]) -> float:
    """When a run ended: a launcher that was killed did not write it, but the files of its trainer tell."""
    if run.ended_at is not None:
        return run.ended_at
    sign = case.ask(LastSignOf(run.key, run.restart))
    at_most = later[0].started_at if later else case.report.started_at
    return min(run.started_at if sign is None else sign, at_most or float("inf"))


def _earlier_launches(case: Case) -> Sequence[AttemptFile]:
    """The launchers' files of earlier runs: of a job that waits (again), of all runs."""
    latest, others = case.ask(LaunchesOf(case.attempt.key))
    # A submission that is in the queue twice may be run by the other job.
    earlier = [run for run in others if run.job_id == case.attempt.job_id]
    if latest is None or latest.job_id != case.attempt.job_id or not _is_of_earlier(latest, case.report):
        return earlier
    return [*earlier, latest]


def _is_of_earlier(latest: AttemptFile, report: JobReport) -> bool:
    if _waits(report):
        return True
    # The clocks of nodes differ: only a launcher that has ended can be of an earlier run. One that began and ended
    # within the second in which the job began is of this run.
    began, ended = report.started_at, latest.ended_at
    if began is None or ended is None:
        return False
    return latest.started_at < began and ended < began + _CLOCKS_DIFFER_S


def _waited_when_it_ended(report: JobReport) -> bool:
    """True if a job was cancelled while it waited, be it for its first run or for another."""
    is_cancelled = report.phase is Phase.ENDED and report.state.startswith("CANCELLED")
    return is_cancelled and report.started_at is None and not report.nodes


def _waits(report: JobReport) -> bool:
    return report.phase is Phase.PENDING or _waited_when_it_ended(report)


def _seconds_before(report: JobReport, runs: Sequence[JobRun]) -> float | None:
    """Seconds of the runs before the one that a report is about; None where accounting does not know them (yet).

    Accounting hears of runs in their order: where it knows that one, it knows all before it.
    """
    began = report.started_at
    before = [run for run in runs if _waits(report) or (began is not None and run.started_at < began)]
    spans = [run.ended_at - run.started_at for run in before if run.ended_at is not None]
    is_known = bool(before) or any(run.started_at == began for run in runs)
    return sum(spans) if is_known and len(spans) == len(before) else None
