"""What a new user's cluster lacks: checks as data, each with what is true and what to change; a check never crashes."""

from __future__ import annotations

import contextlib
from dataclasses import asdict, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from sweep.core.attempts.attempt import Phase
from sweep.core.encoding.frozen import dataclass
from sweep.ports import SchedulerError, SubmissionRejectedError, SubmissionUncertainError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from sweep.core.attempts.attempt import JobReport
    from sweep.core.jobs.submission import Submission
    from sweep.ports import Clock, Scheduler


class Verdict(StrEnum):
    """What a check came to."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"
    NOT_CHECKED = "not checked"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What one check found.

    Attributes:
        name: What was looked at.
        verdict: What it came to.
        fact: What is true.
        mend: What to change; empty where nothing need be.
    """

    name: str
    verdict: Verdict
    fact: str
    mend: str = ""

    def to_json(self) -> dict[str, str]:
        """Plain values."""
        return {name: str(value) for name, value in asdict(self).items()}


def ok(name: str, fact: str) -> Finding:
    """All is well."""
    return Finding(name=name, verdict=Verdict.OK, fact=fact)


def warning(name: str, fact: str, mend: str) -> Finding:
    """It works, but may not always, or not as fast."""
    return Finding(name=name, verdict=Verdict.WARNING, fact=fact, mend=mend)


def problem(name: str, fact: str, mend: str) -> Finding:
    """A sweep would fail."""
    return Finding(name=name, verdict=Verdict.PROBLEM, fact=fact, mend=mend)


def not_checked(name: str, why: str) -> Finding:
    """Nobody knows."""
    return Finding(name=name, verdict=Verdict.NOT_CHECKED, fact=why)


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One thing to look at.

    Attributes:
        name: What is looked at.
        look: Looks; may raise anything, may find several things.
        needs: Names of earlier checks without which this one means nothing.
    """

    name: str
    look: Callable[[], Finding | Sequence[Finding]]
    needs: tuple[str, ...] = field(default=())


def examine(checks: Iterable[Check], say: Callable[[Finding], None] = lambda _: None) -> list[Finding]:
    """Run the checks in their order; one that cannot be run, or that needs what is not there, is ``not checked``."""
    findings: list[Finding] = []
    failed: set[str] = set()
    for check in checks:
        missing = [name for name in check.needs if name in failed]
        if missing:
            found: Sequence[Finding] = [not_checked(check.name, f"needs: {', '.join(missing)}")]
        else:
            found = _look(check)
        if any(finding.verdict in (Verdict.PROBLEM, Verdict.NOT_CHECKED) for finding in found):
            failed.add(check.name)
        for finding in found:
            findings.append(finding)
            say(finding)
    return findings


def _look(check: Check) -> Sequence[Finding]:
    try:
        found = check.look()
    except Exception as error:  # a check that breaks must not hide what the others find
        what = str(error) if isinstance(error, SchedulerError) else f"{type(error).__name__}: {error}"
        return [not_checked(check.name, f"the check failed: {what}")]
    return [found] if isinstance(found, Finding) else found


def exit_code(findings: Iterable[Finding]) -> int:
    """0 where there is no problem, else 1."""
    return int(any(finding.verdict is Verdict.PROBLEM for finding in findings))


# ---------------------------------------------------------------------------------------------------- the probe's job


@dataclass(frozen=True, kw_only=True, slots=True)
class Probed:
    """What became of the probe.

    Attributes:
        reports: What the nodes wrote, by node rank.
        trouble: Why there is not a report of every node; empty where there is.
        mend: What to do about it.
        began_at: When the job was submitted, by this machine's clock.
        seen_at: When the last report was seen, by this machine's clock.
        ahead_of_files_s: This machine's clock less the stamps that new files get; None where it is not known.
    """

    reports: Mapping[int, Mapping[str, Any]]
    trouble: str = ""
    mend: str = ""
    began_at: float = 0.0
    seen_at: float = 0.0
    ahead_of_files_s: float | None = None


def run_probe(
    scheduler: Scheduler,
    submission: Submission,
    clock: Clock,
    read: Callable[[], Mapping[int, Mapping[str, Any]]],
    *,
    timeout_s: float,
    grace_s: float = 15.0,
    poll_s: float = 0.5,
) -> Probed:
    """Submit the probe, wait for what its nodes write, and leave no job behind.

    Args:
        scheduler: Where to submit.
        submission: The probe's; its files are written.
        clock: Time.
        read: Reads the reports that are there.
        timeout_s: Seconds to wait, in the queue and while it runs.
        grace_s: Seconds after the job's end for which a report may be missing, and at most until it has ended when it
            is cancelled: what it still writes would be left in the folder that its caller removes.
        poll_s: Seconds between two looks.
    """
    began = clock.now()
    try:
        jobs = scheduler.submit(submission)
    except SubmissionRejectedError as error:
        return Probed(reports={}, trouble=f"sbatch refused the job: {error}", mend="See the check of the job script.")
    except (SubmissionUncertainError, SchedulerError) as error:
        return Probed(reports={}, trouble=f"the job could not be submitted: {error}", mend="Try again later.")
    try:
        return _wait(scheduler, submission, jobs, clock, read, began, timeout_s, grace_s, poll_s)
    finally:
        # What was found is worth more than a job of five minutes that stays.
        with contextlib.suppress(SchedulerError):
            scheduler.cancel(dict.fromkeys(jobs, submission.name))
            _await_end(scheduler, jobs, clock, began, grace_s, poll_s)


def _wait(
    scheduler: Scheduler,
    submission: Submission,
    jobs: tuple[str, ...],
    clock: Clock,
    read: Callable[[], Mapping[int, Mapping[str, Any]]],
    began: float,
    timeout_s: float,
    grace_s: float,
    poll_s: float,
) -> Probed:
    start, ended_at = clock.monotonic(), None
    while True:
        reports = read()
        now = clock.monotonic()
        if len(reports) >= submission.nodes:
            return Probed(reports=reports, began_at=began, seen_at=clock.now())
        state = scheduler.poll(jobs, since=began)[jobs[0]]
        if state.phase is Phase.ENDED:
            ended_at = now if ended_at is None else ended_at
        if now - start > timeout_s or (ended_at is not None and now - ended_at > grace_s):
            trouble, mend = _trouble(state, len(reports), submission.nodes, timeout_s, jobs[0])
            return Probed(reports=reports, trouble=trouble, mend=mend, began_at=began, seen_at=clock.now())
        clock.sleep(poll_s)


def _await_end(
    scheduler: Scheduler, jobs: tuple[str, ...], clock: Clock, began: float, grace_s: float, poll_s: float
) -> None:
    deadline = clock.monotonic() + grace_s
    over = (Phase.ENDED, Phase.ABSENT)
    while scheduler.poll(jobs, since=began)[jobs[0]].phase not in over and clock.monotonic() < deadline:
        clock.sleep(poll_s)


def _trouble(state: JobReport, have: int, need: int, timeout_s: float, job: str) -> tuple[str, str]:
    said = f" ({state.reason})" if state.reason else ""
    if state.phase is Phase.PENDING:
        return (
            f"job {job} still waited after {timeout_s:g} s{said}; it was cancelled",
            "Wait longer with --timeout SECONDS, or ask for what the cluster has free.",
        )
    if state.phase is Phase.ENDED:
        where = f" on {','.join(state.nodes)}" if state.nodes else ""
        return (
            f"job {job} ended as {state.state}{said}{where}, and {need - have} of {need} nodes wrote no report",
            "Its last words are above. Either Python or the run directory is not the same there: set "
            "cluster.launch.python and cluster.slurm.setup, and a run_dir on a shared file system.",
        )
    return (
        f"job {job} is {state.state or 'unknown'} after {timeout_s:g} s; {have} of {need} nodes have reported",
        "Wait longer with --timeout SECONDS; see whether importing torch there takes minutes.",
    )
