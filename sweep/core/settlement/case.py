"""A settlement under way: one attempt as a case, and the draft in which all cases come together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from sweep.core.attempts.attempt import ABSENT, JobReport, Phase
from sweep.core.attempts.history import AttemptState
from sweep.core.attempts.ledger import Submitted
from sweep.core.records.attempt_record import AttemptFile
from sweep.core.settings.policy import Policy
from sweep.core.settlement.effects import AbsenceTimer, Effect, JobMemory, Memory, Withdraw
from sweep.core.settlement.facts import Facts, Failure, Question, ResultOf, UnansweredError

_T = TypeVar("_T")
MOST_SKEW_S = 300.0
"""No two hosts of a Slurm cluster differ by more: munge refuses what was signed more than five minutes off."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Now:
    """The clocks: Unix time, and seconds that never go back."""

    unix: float
    monotonic: float


@dataclass(frozen=True, kw_only=True, slots=True)
class SettlementPolicy:
    """How long a settlement waits, and what jobs may do.

    Attributes:
        policy: The user's: watchdog, hopeless jobs, longest wait, budget.
        repeats: Independent runs of each cell.
        result_grace_s: Seconds for which a result may be missing after its job has ended (file systems lag).
        lost_after_s: Seconds of unbroken absence after which a job counts as lost.
        hang_grace_s: Seconds that a job may go on after its result is there.
        arrival_grace_s: Seconds for which a submission may be unknown: an sbatch that outlived a killed orchestrator.
    """

    policy: Policy
    repeats: int
    result_grace_s: float
    lost_after_s: float
    hang_grace_s: float
    arrival_grace_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Basis:
    """The basis of every case: the facts, the clocks, the policy, and the known reports on all jobs."""

    facts: Facts
    now: Now
    policy: SettlementPolicy
    in_flight: Sequence[AttemptState]
    """Attempts in flight that have a job."""
    reports: Mapping[str, JobReport] = field(default_factory=dict)

    @classmethod
    def of(cls, facts: Facts, now: Now, policy: SettlementPolicy) -> Basis:
        """Before the reports on jobs are known."""
        return cls(facts=facts, now=now, policy=policy, in_flight=facts.in_flight())

    def phases_beside(self, attempt: AttemptState) -> list[Phase]:
        """Phases of the jobs of other attempts in flight of the same submission."""
        beside = self.facts.history.submissions[attempt.submission]
        return [self.phase_of(one) for one in beside if one.in_flight and one is not attempt]

    def phase_of(self, attempt: AttemptState) -> Phase:
        """The phase of an attempt's job."""
        return self.reports.get(str(attempt.job_id), ABSENT).phase


@dataclass(slots=True)
class Case:
    """One attempt while it is being settled: collects what is done about it and what is remembered of it."""

    basis: Basis
    attempt: AttemptState
    report: JobReport
    memory: JobMemory
    effects: list[Effect] = field(default_factory=list)

    def ask(self, question: Question[_T]) -> _T:
        """The answer to a question."""
        return self.basis.facts.answer(question)

    def do(self, *effects: Effect) -> None:
        """Have something done."""
        self.effects += effects

    def remember(self, **changes: Any) -> None:
        """Change the memory of its job."""
        self.memory = replace(self.memory, **changes)

    def lasting(self, since: str) -> float:
        """Seconds for which something has been so; 0 where it is so for the first time. ``since`` names the memory."""
        now = self.basis.now.monotonic
        if getattr(self.memory, since) is None:
            self.remember(**{since: now})
        return now - float(getattr(self.memory, since))

    def forget(self, since: str) -> None:
        """Something is not so any more."""
        if getattr(self.memory, since) is not None:
            self.remember(**{since: None})

    @property
    def launched(self) -> AttemptFile | None:
        """The launcher's file of its latest run."""
        return self.basis.facts.launched(self.attempt)

    @property
    def has_result(self) -> bool:
        """True if there is a valid result of this very attempt."""
        return self.ask(ResultOf(self.attempt.key))[0]

    @property
    def never_began(self) -> bool:
        """True if neither the scheduler nor the run directory knows of a beginning of its job."""
        return self.report.started_at is None and self.launched is None

    @property
    def claim(self) -> tuple[str, ...] | Failure | None:
        """Jobs that claimed its submission (:class:`ClaimOf`)."""
        return self.basis.facts.claim_of(self.attempt.submission)

    def gone_for(self, phase: Phase, *, ended_at: float | None = None) -> float:
        """Seconds for which its job has been in this phase, at least; its submission, where no job is known.

        A process measures by its own clock. Time before it began, by the ledger or the scheduler, counts too, less
        :data:`MOST_SKEW_S`, by which two hosts' clocks may differ.

        Args:
            phase: Ended or absent.
            ended_at: When the job ended (Unix time), by the scheduler.
        """
        now, absence = self.basis.now, self.memory.absence
        if absence is None or absence.phase is not phase:
            gone = self.attempt.gone
            times = [gone[1]] if gone is not None and gone[0] is phase else []
            times += [] if ended_at is None else [ended_at]
            before = max(0.0, now.unix - min(times) - MOST_SKEW_S) if times else 0.0
            absence = AbsenceTimer(phase, now.monotonic - before)
            self.remember(absence=absence)
        return now.monotonic - absence.since

    def is_back(self) -> None:
        """Its job waits or runs."""
        absence = self.memory.absence
        if (self.attempt.gone is not None or absence is not None) and (
            absence is None or absence.phase is not Phase.RUNNING
        ):
            self.remember(absence=AbsenceTimer(Phase.RUNNING, self.basis.now.monotonic))


@dataclass(slots=True)
class Draft:
    """All cases of one settlement, as they come together."""

    memory: Memory
    jobs: dict[Any, JobMemory]
    lookup_failures: dict[str, str]
    poll_failure: str
    cancel_failure: str
    effects: list[Effect] = field(default_factory=list)
    questions: list[Question[Any]] = field(default_factory=list)

    @classmethod
    def of(cls, memory: Memory) -> Draft:
        """Nothing is settled yet."""
        failures = dict(memory.lookup_failures)
        return cls(memory, dict(memory.jobs), failures, memory.poll_failure, memory.cancel_failure)

    @property
    def is_open(self) -> bool:
        """True if something is to be asked or done before anything else is settled."""
        return bool(self.questions or self.effects)

    def case(self, basis: Basis, attempt: AttemptState, report: JobReport = ABSENT) -> Case:
        """An attempt with what is remembered of its job."""
        memory = self.jobs.get(attempt.key)
        if memory is None or memory.job_id != attempt.job_id:
            memory = JobMemory(job_id=attempt.job_id)
        return Case(basis, attempt, report, memory)

    def take(self, step: Callable[[], None]) -> None:
        """Take a step; where it needs answers, they are asked for."""
        try:
            step()
        except UnansweredError as missing:
            self.questions += missing.questions

    def settle(self, cases: Sequence[Case], step: Callable[[Case], None]) -> None:
        """Settle attempts of one submission.

        A claim comes before all else, and alone: who has the submission decides how its other attempts are settled.
        """
        for case in cases:
            try:
                step(case)
            except UnansweredError as missing:  # not by `take`: this is done for each of 10,000 jobs
                self.questions += missing.questions
        claiming = (case for case in cases if any(isinstance(one, Withdraw | Submitted) for one in case.effects))
        first = next(claiming, None)
        for case in cases if first is None else [first]:
            self.effects += case.effects
            self.jobs[case.attempt.key] = case.memory

    def done(self) -> tuple[Memory, tuple[Effect, ...]]:
        """The memory and the effects to return; while a question is open, only the question."""
        if self.questions:
            return self.memory, tuple(dict.fromkeys(self.questions))
        memory = Memory(
            jobs=self.jobs,
            lookup_failures=self.lookup_failures,
            poll_failure=self.poll_failure,
            cancel_failure=self.cancel_failure,
        )
        return memory, tuple(self.effects)
