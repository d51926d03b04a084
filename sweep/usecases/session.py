"""One process's hold on one run: what it works on, and the history that it and its predecessors wrote."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from sweep.core.attempts.attempt import Outcome
from sweep.core.attempts.history import History, fold
from sweep.core.attempts.ledger import Ended, Event, Released, Reserved, Submitted
from sweep.core.attempts.verdict import Verdict
from sweep.core.encoding.record import RecordError
from sweep.core.settings.policy import Policy
from sweep.usecases.contact import Contact

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sweep.core.attempts.attempt import AttemptKey
    from sweep.core.cells.cell import Cell
    from sweep.core.cells.device import Device
    from sweep.core.jobs.submission import Submission
    from sweep.core.settings.spec import ClusterSpec
    from sweep.ports import BlameBook, Clock, ClusterView, Ledger, RunDirectory, Scheduler, SchedulerError


class Reporter(Protocol):
    """Who is told what happens, as it happens."""

    def submitted(self, submission: Submission, jobs: tuple[str, ...]) -> None:
        """A submission has become jobs."""
        ...

    def ended(self, key: AttemptKey, verdict: Verdict) -> None:
        """An attempt is over."""
        ...

    def note(self, text: str) -> None:
        """Something that people should know and that changes nothing by itself."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Sources:
    """The snapshot of the code that jobs run."""

    directory: str
    digest: str


@dataclass(slots=True, kw_only=True)
class Session:
    """Everything the use cases work on.

    Attributes:
        cells: The cells of this command, by id, in grid order.
        known: Every cell that the run directory knows, by id; empty: those of this command.
        repeats: Independent runs of each.
        devices: Profiles by name.
        cluster: Where they run.
        run_name: Grid and cluster: the start of job names.
        scheduler: Runs them.
        view: What else the cluster can be asked.
        ledger: Remembers.
        run_dir: Holds the records.
        clock: Tells the time.
        reporter: Is told what happens.
        sources: The snapshot that new jobs run.
        provenance: Where new submissions come from.
        new_token: A fresh short random word for each submission's name.
        check_lease: Raises if this process no longer holds the run.
        blame: Evidence against the cluster's nodes.
        policy: What is retried, held back and allowed to cost.
        canary_helps: Whether a canary makes sense here (:class:`sweep.core.decisions.admission.Bounds`).
        barred: Cells that a preflight keeps from being tried (the same class).
        history: What the ledger adds up to; kept in step with it by :meth:`record`.
        contact: Whether the scheduler is there; kept by :meth:`reached` and :meth:`not_reached`.
    """

    cells: Mapping[str, Cell]
    repeats: int
    devices: Mapping[str, Device]
    cluster: ClusterSpec
    run_name: str
    scheduler: Scheduler
    view: ClusterView
    ledger: Ledger
    run_dir: RunDirectory
    clock: Clock
    reporter: Reporter
    sources: Sources
    provenance: Mapping[str, object]
    new_token: Callable[[], str]
    check_lease: Callable[[], None]
    blame: BlameBook
    policy: Policy = field(default_factory=Policy)
    canary_helps: bool = True
    barred: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    known: Mapping[str, Cell] = field(default_factory=dict)
    history: History = field(default_factory=History)
    contact: Contact = field(default_factory=Contact)

    def record(self, event: Event) -> None:
        """Write an event and take it in; on return it is on disk."""
        self.check_lease()
        self.ledger.append(event)
        self.history.apply(event)

    def has_result(self, key: AttemptKey) -> bool:
        """Whether there is a valid result of this very attempt."""
        return self.run_dir.result(key)[0] is not None

    def reached(self) -> None:
        """The scheduler answered."""
        contact = self.contact
        since, is_news = contact.away_since, not contact.was_reached or contact.away_since is not None
        contact.was_reached, contact.away_since, contact.words = True, None, ""
        if is_news:  # to a process before this one it may have been away
            self.run_dir.publish_away(None, "")
        if since is not None:
            self.reporter.note(f"the scheduler answers again, after {self.clock.now() - since:.0f} s")

    def not_reached(self, error: SchedulerError) -> None:
        """The scheduler did not answer."""
        if self.contact.away_since is None:
            self.contact.away_since, self.contact.words = self.clock.now(), str(error)
            self.run_dir.publish_away(self.contact.away_since, self.contact.words)

    def end_cancelled(self, name: str) -> bool:
        """Whether the user cancelled attempts of a submission that is taken never to have arrived.

        They are ended, and the others released; where a job of it has begun after all, it is taken up.
        """
        cancelled = [
            state.key for state in self.history.submissions[name] if state.in_flight and state.is_cancel_requested
        ]
        if cancelled and not self._is_withdrawn(name):
            return True
        verdict = Verdict(outcome=Outcome.CANCELLED, reason="cancelled by the user before it was submitted")
        for key in cancelled:
            now = self.clock.now()
            self.record(Ended(time=now, key=key, outcome=verdict.outcome, reason=verdict.reason, gpu_seconds=0.0))
            self.reporter.ended(key, verdict)
        if cancelled and any(state.in_flight for state in self.history.submissions[name]):
            reason = "cells beside it were cancelled before it was submitted"
            self.record(Released(time=self.clock.now(), submission=name, reason=reason))
        return bool(cancelled)

    def give_back(self, name: str, reason: str) -> bool:
        """Release a submission that is taken never to have arrived; False where its job is there and was taken up.

        It is claimed first: were it to arrive later, its job would find that, and not begin.
        """
        if not self._is_withdrawn(name):
            return False
        self.record(Released(time=self.clock.now(), submission=name, reason=reason))
        return True

    def _is_withdrawn(self, name: str) -> bool:
        self.check_lease()
        try:
            job = self.run_dir.withdraw(name)
        except RecordError as error:
            self.reporter.note(f"submission {name} is not given back: {error}")
            return False
        if job:
            self.adopt(name, self.scheduler.jobs_of(job, len(self.history.submissions[name])))
        return not job

    def adopt(self, name: str, jobs: tuple[str, ...]) -> None:
        """Take up jobs that are there; those that cannot read their submission's file end by themselves."""
        self.record(Submitted(time=self.clock.now(), submission=name, jobs=jobs))
        try:
            self.reporter.submitted(self.run_dir.submission(name), jobs)
        except (OSError, RecordError) as error:
            self.reporter.note(f"submission {name} is job {', '.join(jobs)}; its file is damaged: {error}")

    def load(self) -> None:
        """Read the ledger, and win back reservations whose line was lost from the submissions' own files."""
        events, problems = self.ledger.read()
        self.history = fold(events)
        for problem in (*problems, *self.history.problems):
            self.reporter.note(problem)
        for name in self.run_dir.submission_names():
            if name not in self.history.submissions:
                self._recover(name)

    def _recover(self, name: str) -> None:
        """A submission without a ledger line: written just before a crash, or its line was damaged since."""
        try:
            submission = self.run_dir.submission(name)
        except (OSError, RecordError) as error:
            self.reporter.note(f"submission {name} has no ledger line and its file cannot be read ({error})")
            return
        self.reporter.note(f"submission {name} has no ledger line; it is taken up again and looked for by its name")
        self.record(reservation(submission))


def reservation(submission: Submission) -> Reserved:
    """The event that reserves a submission's attempts."""
    return Reserved(
        time=submission.created_at,
        submission=submission.name,
        tasks=submission.tasks,
        gpu_hours=submission.gpu_hours,
        gpus=submission.gpus,
        is_cut=submission.is_cut,
    )
