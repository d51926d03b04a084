"""Observes a run that nobody watches: the same settlement as the next run's, its effects dropped."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from sweep.core.attempts.attempt import AttemptKey, JobReport
from sweep.core.attempts.history import History
from sweep.core.attempts.ledger import Event
from sweep.core.encoding.frozen import dataclass
from sweep.core.encoding.message import counted
from sweep.core.settings.policy import Policy
from sweep.core.settlement.case import Now, SettlementPolicy
from sweep.core.settlement.effects import Cancel, Effect, Memory, Withdraw
from sweep.core.settlement.facts import CancelRequests, ClaimOf, Facts, Failure
from sweep.core.settlement.settle import job_reports, settle
from sweep.ports import ClusterView, RunRecords
from sweep.usecases.answers import Answers, Reader, settle_all

_AT_ONCE = SettlementPolicy(
    policy=Policy(hopeless_after_s=math.inf),
    repeats=0,
    result_grace_s=0.0,
    lost_after_s=math.inf,
    hang_grace_s=math.inf,
    arrival_grace_s=math.inf,
)
"""A job that has ended is judged at once; no other job is given up."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """An observation of a run.

    Attributes:
        reports: The scheduler's report on each job in flight; empty where it could not be asked.
        unrecorded: Attempts that have ended without anybody having recorded it. The history that was observed has them
            as the next run would judge them now (a result that is late may still come).
        problem: Why the scheduler could not be asked; empty where it could.
    """

    reports: Mapping[str, JobReport]
    unrecorded: frozenset[AttemptKey]
    problem: str = ""

    def notes(self) -> list[str]:
        """Notes, for people, on what the run's ledger does not say."""
        notes = []
        if self.problem:
            asked = f"the scheduler cannot be asked ({self.problem})"
            notes.append(f"{asked}; jobs in flight are shown as the run left them")
        if count := len(self.unrecorded):
            notes.append(
                f"{counted(count, 'attempt')} {'has' if count == 1 else 'have'} ended since the run was left, shown as "
                "it looks now; the sweep's command records it, retries what a retry can cure, and makes the tables"
            )
        return notes


def observe(history: History, *, records: RunRecords, view: ClusterView, now: float) -> Observation:
    """Bring a history up to date in memory.

    Args:
        history: As the ledger has it; changed.
        records: The run directory.
        view: The cluster.
        now: Unix time.
    """
    in_flight = [attempt for attempt in history.in_flight() if attempt.job_id is not None]
    waiting = {attempt.submission for attempt in history.in_flight() if attempt.job_id is None}

    def decide(facts: Facts, memory: Memory) -> tuple[Memory, tuple[Effect, ...]]:
        return settle(facts, memory, Now(unix=now, monotonic=0.0), _AT_ONCE)

    facts = Facts(history=history, answers={CancelRequests(): ()}, waiting=waiting)
    facts, _ = settle_all(facts, Memory(), decide, Reader(view, records).answer, _pretend)
    ended = frozenset(attempt.key for attempt in in_flight if not attempt.in_flight)
    reports = job_reports(facts, facts.in_flight())
    if isinstance(reports, Failure):
        return Observation(reports={}, unrecorded=ended, problem=reports.message)
    return Observation(reports=reports, unrecorded=ended)


def _pretend(effects: Iterable[Effect], facts: Facts) -> Facts:
    """The facts as the effects would make them, in memory only: events in the history, claims taken."""
    answers: Answers = {}
    answered = dict(facts.cancel_answers)
    for effect in effects:
        if isinstance(effect, Event):
            facts.history.apply(effect)
        elif isinstance(effect, Withdraw):
            answers[ClaimOf(effect.submission, 0)] = ()
        elif isinstance(effect, Cancel):
            answered[effect.job_id] = ""
    return replace(facts.with_answers(answers), cancel_answers=answered)
