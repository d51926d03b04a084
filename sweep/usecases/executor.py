"""The executor: answers a settlement's questions and carries its effects out; nothing else acts on jobs in flight."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from sweep.core.attempts.blame import blames_of
from sweep.core.attempts.history import History, fold
from sweep.core.attempts.ledger import Ended, Event, Reserved, Submitted
from sweep.core.attempts.verdict import Verdict
from sweep.core.encoding.record import RecordError
from sweep.core.settlement.case import Now, SettlementPolicy
from sweep.core.settlement.effects import Cancel, DropRequest, Effect, Memory, Note, Withdraw
from sweep.core.settlement.facts import CancelRequests, ClaimOf, Facts, Failure, JobsNamed, Question, Reports
from sweep.core.settlement.record_outcomes import take_late_results
from sweep.core.settlement.settle import cancel, hear_cancels, job_reports, release_one, settle
from sweep.ports import Clock, RunDirectory, SchedulerError, SchedulerUnreachableError
from sweep.usecases.answers import Answers, Reader, settle_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from sweep.core.attempts.attempt import JobReport
    from sweep.core.jobs.submission import Submission
    from sweep.usecases.session import RunPorts

    Decision = Callable[[Facts, Memory, Now, SettlementPolicy], tuple[Memory, tuple[Effect, ...]]]
    from sweep.usecases.session import Reporter


class Executor:
    """Settles one run, and records what becomes of it.

    Args:
        ports: The run's ports.
        policy: How long a settlement waits.
        run_name: Grid and cluster.

    Attributes:
        history: What the ledger adds up to; kept in step with it by :meth:`record`.
        contact: With the scheduler.
        waiting: Submissions that certainly were not taken (it was away, or full), by name: they are handed over again.
        reports: The scheduler's latest report on each job in flight.
        check_lease: Raises if this process no longer holds the run.
    """

    def __init__(self, ports: RunPorts, policy: SettlementPolicy, run_name: str) -> None:
        """Load the history, and win back reservations whose line was lost from the submissions' own files."""
        self._ports, self._policy, self._run_name = ports, policy, run_name
        self._reader = Reader(ports.view, ports.run_dir)
        self._memory = Memory()
        self.contact = Contact(ports.run_dir, ports.reporter, ports.clock)
        self.waiting: dict[str, Submission] = {}
        self.reports: Mapping[str, JobReport] = {}
        self.check_lease = ports.check_lease
        events, problems = ports.ledger.read()
        self.history: History = fold(events)
        self._facts = Facts(history=self.history)
        for problem in (*problems, *self.history.problems):
            ports.reporter.note(problem)
        for name in ports.run_dir.submission_names():
            if name not in self.history.submissions:
                self._recover(name)

    def _recover(self, name: str) -> None:
        """A submission without a ledger line: written just before a crash, or its line was damaged since."""
        note = self._ports.reporter.note
        try:
            submission = self._ports.run_dir.submission(name)
        except (OSError, RecordError) as error:
            note(f"submission {name} has no ledger line and its file cannot be read ({error})")
            return
        note(f"submission {name} has no ledger line; it is taken up again and looked for by its name")
        self.record(reservation(submission))

    # -------------------------------------------------------------------------------------------------------- settling

    def settle(self) -> None:
        """Take up cancel requests, look for lost submissions, and end every attempt that is over."""
        self._facts = self._run(settle, self._new_facts())
        self._keep_reports()

    def take_back(self, reason: str) -> None:
        """End jobs that have not begun, because the run is paused; those that have begun go on."""
        self._facts = self._run(settle, replace(self._facts, pause=reason))

    def cancel(self, cells: Iterable[str]) -> None:
        """Cancel cells: end their attempts in flight, and hold the others back; nobody else's are touched."""
        facts = self._run(partial(cancel, cells=tuple(cells)), self._new_facts(), is_once=True)
        self._run(hear_cancels, facts)

    @property
    def cancel_failure(self) -> str:
        """Why the scheduler did not hear the last cancel; empty where it did."""
        return self._memory.cancel_failure

    def release(self, name: str, reason: str) -> None:
        """Release a submission that is taken never to have arrived; a job of it that is there is adopted."""
        self._run(partial(release_one, name=name, reason=reason), self._new_facts(), is_once=True)

    def take_late_results(self) -> bool:
        """True if results have appeared of attempts that were judged without them: they count now."""
        before = self.history.changes
        self._run(take_late_results, self._new_facts())
        return self.history.changes != before

    def _new_facts(self) -> Facts:
        return Facts(history=self.history, waiting=self.waiting.keys())

    def _keep_reports(self) -> None:
        reports = job_reports(self._facts, self._facts.in_flight())
        if not isinstance(reports, Failure):
            self.reports = reports

    def _run(self, decision: Decision, facts: Facts, *, is_once: bool = False) -> Facts:
        clock = self._ports.clock

        def decide(facts: Facts, memory: Memory) -> tuple[Memory, tuple[Effect, ...]]:
            return decision(facts, memory, Now(unix=clock.now(), monotonic=clock.monotonic()), self._policy)

        facts, self._memory = settle_all(facts, self._memory, decide, self._answer, self._carry_out, is_once=is_once)
        return facts

    def _answer(self, questions: Sequence[Question[Any]]) -> Answers:
        named = [one for one in questions if isinstance(one, JobsNamed)]
        answers = self._reader.answer([one for one in questions if not isinstance(one, JobsNamed)])
        for question, answer in answers.items():
            if isinstance(question, Reports) and isinstance(answer, Failure):
                self.contact.not_reached(answer.message)
            elif isinstance(question, Reports):
                self.contact.reached()
        return answers | {one: self._jobs_named(one) for one in named}

    def _jobs_named(self, asked: JobsNamed) -> tuple[str, ...] | Failure | None:
        try:
            found = self._ports.scheduler.find(asked)
        except SchedulerError as error:
            if isinstance(error, SchedulerUnreachableError):
                self.contact.not_reached(str(error))
            return Failure(str(error))
        self.contact.reached()
        return found

    # ---------------------------------------------------------------------------------------------------------- acting

    def record(self, event: Event) -> None:
        """Write an event, on disk on return, and take it in; people are told of jobs and ends, and nodes are blamed."""
        ports = self._ports
        self.check_lease()
        ports.ledger.append(event)
        self.history.apply(event)
        if isinstance(event, Submitted):
            self._report_submitted(event)
        if isinstance(event, Ended):
            ports.blame.add(blames_of(event, self._run_name))
            ports.reporter.ended(event.key, Verdict(outcome=event.outcome, reason=event.reason))

    def _report_submitted(self, event: Submitted) -> None:
        name, reporter = event.submission, self._ports.reporter
        try:
            reporter.submitted(self._ports.run_dir.submission(name), event.jobs)
        except (OSError, RecordError) as error:  # its jobs, which cannot read it either, end by themselves
            reporter.note(f"submission {name} is job {', '.join(event.jobs)}; its file is damaged: {error}")

    def _carry_out(self, effects: Iterable[Effect], facts: Facts) -> Facts:
        answers: Answers = {}
        cancels: dict[bool, dict[str, str]] = {True: {}, False: {}}
        for effect in effects:
            if isinstance(effect, Event):
                self.record(effect)
            elif isinstance(effect, Note):
                self._ports.reporter.note(effect.text)
            elif isinstance(effect, Cancel):
                cancels[effect.only_pending][effect.job_id] = effect.submission
            elif isinstance(effect, Withdraw):
                tasks = len(self.history.submissions[effect.submission])
                answers[ClaimOf(effect.submission, tasks)] = self._withdraw(effect.submission, tasks)
            elif isinstance(effect, DropRequest):
                self._ports.run_dir.drop_cancel_request(effect.name)
                answers[CancelRequests()] = tuple(
                    one for one in facts.answer(CancelRequests()) if one[0] != effect.name
                )
                facts = facts.without_reports()  # the cancel is told now, and may have ended jobs
        answered = dict(facts.cancel_answers)
        for only_pending, jobs in cancels.items():
            answered |= dict.fromkeys(jobs, self._cancel(jobs, only_pending=only_pending)) if jobs else {}
        return replace(facts.with_answers(answers), cancel_answers=answered)

    def _withdraw(self, name: str, tasks: int) -> tuple[str, ...] | Failure:
        self.check_lease()
        try:
            return self._reader.jobs_of(self._ports.run_dir.withdraw(name), tasks)
        except RecordError as error:
            return Failure(str(error), is_damaged=True)

    def _cancel(self, jobs: Mapping[str, str], *, only_pending: bool) -> str:
        """Tell the scheduler; gives why it did not hear it."""
        try:
            for left_alone in self._ports.scheduler.cancel(jobs, only_pending=only_pending):
                self._ports.reporter.note(left_alone)
        except SchedulerError as error:
            return str(error)
        return ""


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


class Contact:
    """Knows whether the scheduler is reached, and says so to people and to ``status``.

    Args:
        run_dir: Where ``status`` finds it.
        reporter: Who is told.
        clock: Tells the time.

    Attributes:
        away_since: Unix time of the first question in a row that was not answered; None: the last one was.
        was_reached: True if it ever answered this process.
    """

    def __init__(self, run_dir: RunDirectory, reporter: Reporter, clock: Clock) -> None:
        """Nothing was asked yet."""
        self._run_dir, self._reporter, self._clock = run_dir, reporter, clock
        self.away_since: float | None = None
        self.was_reached = False
        self._message = ""

    def reached(self) -> None:
        """The scheduler answered."""
        since, is_news = self.away_since, not self.was_reached or self.away_since is not None
        self.away_since, self._message, self.was_reached = None, "", True
        if is_news:
            self._run_dir.publish_away(None, "")
        if since is not None:
            self._reporter.note(f"the scheduler answers again, after {self._clock.now() - since:.0f} s")

    def not_reached(self, message: str) -> None:
        """The scheduler did not answer."""
        if self.away_since is None:
            self.away_since, self._message = self._clock.now(), message
            self._run_dir.publish_away(self.away_since, message)

    def describe(self) -> str:
        """A sentence for people; empty while the scheduler is there."""
        return "" if self.away_since is None else away_text(self.away_since, self._message)


def away_text(since: float, message: str) -> str:
    """The sentence that live lines and ``status`` have for a scheduler that is away."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(since))
    return f"the scheduler has not been reached since {when} ({message})"
