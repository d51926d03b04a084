"""Looking up submissions whose job ids were never recorded, by their names and by what their jobs have written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sweep.core.attempts.attempt import Phase
from sweep.core.encoding.frozen import dataclass
from sweep.core.encoding.record import RecordError
from sweep.ports import SchedulerError, SchedulerUnreachableError
from sweep.usecases.queue import began, seems_anothers

if TYPE_CHECKING:
    from sweep.core.attempts.attempt import AttemptKey, JobReport
    from sweep.core.attempts.history import AttemptState
    from sweep.usecases.session import Session
    from sweep.usecases.sightings import Gone

_LOOK_UP_GRACE_S = 60.0
"""An sbatch that outlived a killed orchestrator may still be under way; its name is looked for that long."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Intent:
    """A submission as the ledger has it (:class:`sweep.ports.Intent`)."""

    name: str
    created_at: float
    tasks: tuple[AttemptKey, ...]


class LookUp:
    """Finds out what became of submissions that are reserved and have no job yet.

    Args:
        session: The run.
        gone: Since when it has been so that nobody knows them.
    """

    def __init__(self, session: Session, gone: Gone) -> None:
        """Nothing has been looked for yet."""
        self._session = session
        self._gone = gone
        self._failures: dict[str, str] = {}

    def look(self) -> None:
        """Submissions whose job ids were never recorded: a crash, or sbatch timed out after it was heard.

        They are looked for by what the ledger has of them: a damaged file is then no reason to wait for ever. A job
        that began wrote that itself: a scheduler without accounting soon forgets it. One that was withdrawn by a
        process that died before it could record that is given back at once, and its late job, which would not begin,
        is ended.
        """
        session = self._session
        unknown = {a.submission: None for a in session.history.in_flight() if a.job_id is None}
        for name in sorted(unknown.keys() - session.contact.waiting.keys()):
            states = session.history.submissions[name]
            tasks = tuple(state.key for state in states)
            intent = _Intent(name=name, created_at=states[0].reserved_at, tasks=tasks)
            try:
                job = session.run_dir.job_that_began(name)
                jobs = session.scheduler.jobs_of(job, len(tasks)) if job else self._in_queue(intent)
                if jobs is not None and job == "":
                    session.scheduler.cancel(dict.fromkeys(jobs, name))
                    jobs = None
            except (SchedulerError, RecordError) as error:
                if self._failures.get(name) != str(error):
                    session.reporter.note(f"submission {name} cannot be looked up yet: {error}")
                self._failures[name] = str(error)
                if isinstance(error, SchedulerUnreachableError):
                    session.not_reached(error)
                continue
            self._failures.pop(name, None)
            if jobs is not None:
                session.adopt(name, jobs)
            elif (job == "" or self._never_arrived(name)) and not session.end_cancelled(name):
                reason = "it was withdrawn before its job began" if job == "" else "it never reached the scheduler"
                if session.give_back(name, reason):
                    session.reporter.note(f"submission {name}: {reason}; its attempts did not happen")

    def _in_queue(self, intent: _Intent) -> tuple[str, ...] | None:
        """A submission's jobs by its name."""
        found = self._session.scheduler.find(intent)
        self._session.reached()
        return found

    def follow(self, attempt: AttemptState) -> bool:
        """Whether another job runs an attempt's submission, which is in the queue twice: then that one is watched."""
        session, name = self._session, attempt.submission
        try:
            job = session.run_dir.job_that_began(name)
        except (OSError, RecordError):
            return False
        jobs = session.scheduler.jobs_of(job, len(session.history.submissions[name])) if job else ()
        if not jobs or jobs[attempt.index] == attempt.job_id:
            return False
        session.reporter.note(f"submission {name} was not begun by job {attempt.job_id} but by {jobs[attempt.index]}")
        session.adopt(name, jobs)
        return True

    def is_barred(self, attempt: AttemptState, report: JobReport) -> bool:
        """Whether an absent job cannot run (on): its submission is withdrawn now, unless a job of it began before."""
        session = self._session
        session.check_lease()
        try:
            job = session.run_dir.withdraw(attempt.submission)
        except RecordError:
            return True  # a claim that is damaged lets nothing begin
        if not job:
            return True
        return not self.follow(attempt) and not (seems_anothers(report) and began(attempt, session.run_dir))

    def _never_arrived(self, name: str) -> bool:
        flying = [attempt for attempt in self._session.history.submissions[name] if attempt.in_flight]
        unknown_s = [self._gone.lasting(attempt, Phase.ABSENT) for attempt in flying]
        grace_s = min(_LOOK_UP_GRACE_S, self._session.cluster.lost_after_s) if self._session.scheduler.keeps_jobs else 0
        return min(unknown_s) >= grace_s
