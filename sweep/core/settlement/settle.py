"""Settlement is a pure function: from facts, memory, clocks and policy to what is remembered and what is done.

Whoever runs a settlement answers its questions and carries its effects out, adds both to the facts, and settles again
until no effect is left. Settling once more with nothing new has no effect. The order, each only once nothing is left to
do in those before it: cancels that were told to the scheduler; requests of ``sweep cancel``; submissions that have no
job yet; attempts whose job's id is another's by now; jobs, by their reports; absences.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sweep.core.attempts.attempt import ABSENT, AttemptKey, JobReport, Phase, StopKind
from sweep.core.attempts.history import AttemptState, History
from sweep.core.attempts.ledger import CancelRequested, Sighted, StopRequested
from sweep.core.attempts.verdict import first_cause, is_consequence
from sweep.core.decisions.admission import beyond_budget
from sweep.core.decisions.reopen import unfinished
from sweep.core.jobs.submission import shared_id
from sweep.core.settlement.case import Basis, Case, Draft, Now, SettlementPolicy
from sweep.core.settlement.claims import adopt_running_job, look_up, release, withdraw_or_adopt
from sweep.core.settlement.effects import Cancel, DropRequest, Effect, JobMemory, Memory, Note
from sweep.core.settlement.facts import (
    CancelRequests,
    ErrorsOf,
    Facts,
    Failure,
    Question,
    ReportById,
    Reports,
    UnansweredError,
)
from sweep.core.settlement.record_outcomes import record_outcome
from sweep.core.settlement.supervision import supervise


def settle(facts: Facts, memory: Memory, now: Now, policy: SettlementPolicy) -> tuple[Memory, tuple[Effect, ...]]:
    """Settle a run once: what is to be remembered, and what is to be asked or done next; no effect: all is settled."""
    draft, basis = Draft.of(memory), Basis.of(facts, now, policy)
    for stage in (_hear_cancels, _take_cancel_requests, _look_up_all, _end_replaced, _settle_jobs, _record_absences):
        draft.take(lambda stage=stage: stage(draft, basis))  # type: ignore[misc]  # a default binds the loop's stage
        if draft.is_open:
            break
    return draft.done()


def cancel(
    facts: Facts, memory: Memory, now: Now, policy: SettlementPolicy, cells: Iterable[str]
) -> tuple[Memory, tuple[Effect, ...]]:
    """Cancel cells: end their attempts in flight, and hold the others back; nobody else's are touched.

    A job that has ended already is not cancelled: how it ended is not hidden. Each time that this is carried out, it
    asks anew.
    """
    draft, basis = Draft.of(memory), Basis.of(facts, now, policy)
    draft.take(lambda: _cancel(draft, basis, tuple(dict.fromkeys(cells))))
    return draft.done()


def release_one(
    facts: Facts, memory: Memory, now: Now, policy: SettlementPolicy, name: str, reason: str
) -> tuple[Memory, tuple[Effect, ...]]:
    """Release a submission that is taken never to have arrived (:func:`release`)."""
    draft, basis = Draft.of(memory), Basis.of(facts, now, policy)
    draft.take(lambda: draft.effects.extend(release(basis, name, reason)))
    return draft.done()


def hear_cancels(facts: Facts, memory: Memory, now: Now, policy: SettlementPolicy) -> tuple[Memory, tuple[Effect, ...]]:
    """Remember which jobs' cancels the scheduler has heard; people are told once why it has not."""
    draft = Draft.of(memory)
    _hear_cancels(draft, Basis.of(facts, now, policy))
    return draft.done()


def _hear_cancels(draft: Draft, basis: Basis) -> None:
    answers = basis.facts.cancel_answers
    if not answers:
        return
    for attempt in basis.in_flight:
        if answers.get(str(attempt.job_id)) == "":
            case = draft.case(basis, attempt)
            case.remember(cancel_heard_at=basis.now.monotonic)
            draft.jobs[attempt.key] = case.memory
    failed = {job: message for job, message in answers.items() if message}
    message = next(iter(failed.values()), "")
    if message and message != draft.cancel_failure:
        draft.effects.append(Note(f"the scheduler did not take the cancel of {', '.join(failed)}: {message}"))
    draft.cancel_failure = message


def _take_cancel_requests(draft: Draft, basis: Basis) -> None:
    for name, cells in basis.facts.answer(CancelRequests())[:1]:
        _cancel(draft, basis, cells)
        draft.effects.append(DropRequest(name))


def _cancel(draft: Draft, basis: Basis, cells: Sequence[str]) -> None:
    history = basis.facts.history
    wanted = [attempt for attempt in history.in_flight() if attempt.key.cell_id in cells]
    reports = job_reports(basis.facts, basis.in_flight) if any(attempt.job_id is not None for attempt in wanted) else {}
    known: Mapping[str, JobReport] = {} if isinstance(reports, Failure) else reports
    going = [one for one in wanted if known.get(one.job_id or "", ABSENT).phase is not Phase.ENDED]
    repeats = unfinished(history, cells, basis.policy.repeats)
    if going or repeats:
        keys = tuple(attempt.key for attempt in going)
        draft.effects.append(CancelRequested(time=basis.now.unix, keys=keys, repeats=repeats))
        draft.effects += [Cancel(one.job_id, one.submission) for one in going if one.job_id is not None]


def _look_up_all(draft: Draft, basis: Basis) -> None:
    names = {attempt.submission for attempt in basis.facts.history.in_flight() if attempt.job_id is None}
    for name in sorted(names - set(basis.facts.waiting)):
        draft.take(lambda name=name: look_up(draft, basis, name))  # type: ignore[misc]  # binds the loop's name


def _owners(history: History, in_flight: Sequence[AttemptState]) -> Mapping[str, str]:
    """By submission the one that has its job's id by now, where that is another.

    A controller that has lost its state gives ids anew, and has no job any more that had one before.
    """
    jobs = {attempt.submission: str(attempt.job_id) for attempt in in_flight}
    latest: dict[str, str] = {}
    for name in history.submissions:
        if name in jobs:
            latest[shared_id(jobs[name])] = name
    if len(latest) == len(jobs):
        return {}
    owners = {name: latest[shared_id(job)] for name, job in jobs.items()}
    return {name: owner for name, owner in owners.items() if owner != name}


def _end_replaced(draft: Draft, basis: Basis) -> None:
    owners = _owners(basis.facts.history, basis.in_flight)

    def end(case: Case) -> None:
        if withdraw_or_adopt(case):
            owner = owners[case.attempt.submission]
            case.report = replace(ABSENT, reason=f"{case.attempt.job_id} is now the id of {owner}")
            record_outcome(case)

    for attempt in basis.in_flight if owners else ():
        if attempt.submission in owners:
            draft.settle([draft.case(basis, attempt)], end)


def job_reports(facts: Facts, in_flight: Sequence[AttemptState]) -> Mapping[str, JobReport] | Failure:
    """The reports on the jobs of attempts in flight; a job of which nothing is known just now is left out.

    A job whose name is not that of its submission seems to be another's. Its name may have been changed: if it has
    claimed its submission and its launcher has not written an end, the scheduler is asked again by the id alone. A
    report that infers an end in the queue is wrong where a launcher has begun; such a job counts as absent.

    Raises:
        UnansweredError: If one of the answers is not there yet.
    """
    owners = _owners(facts.history, in_flight)
    in_flight = [attempt for attempt in in_flight if attempt.submission not in owners]
    if not in_flight:
        return {}
    since = min(attempt.reserved_at for attempt in in_flight)
    polled = facts.answer(Reports({str(attempt.job_id): attempt.submission for attempt in in_flight}, since))
    if isinstance(polled, Failure):
        return polled
    reports, questions = dict(polled), list[Question[Any]]()
    for attempt in in_flight:
        report = reports.get(str(attempt.job_id))
        if report is not None and (report.is_anothers or report.is_inferred):
            try:
                found = _proved(facts, attempt, report, since)
            except UnansweredError as missing:
                questions += missing.questions
                continue
            del reports[str(attempt.job_id)]
            reports.update({} if found is None else {str(attempt.job_id): found})
    if questions:
        raise UnansweredError(*questions)
    return reports


def _proved(facts: Facts, attempt: AttemptState, report: JobReport, since: float) -> JobReport | None:
    """A report that says something of this very job; None where nothing is known just now."""
    if report.is_anothers and facts.has_begun(attempt):
        claim = facts.claim_of(attempt.submission)
        if isinstance(claim, tuple) and claim[attempt.index] == attempt.job_id:
            again = facts.answer(ReportById(attempt.job_id, since))
            if isinstance(again, Failure):
                return None
            report = again
    return ABSENT if report.is_inferred and facts.launched(attempt) is not None else report


def _settle_jobs(draft: Draft, basis: Basis) -> None:
    facts = basis.facts
    reports = job_reports(facts, basis.in_flight)
    if isinstance(reports, Failure):
        if reports.message != draft.poll_failure:
            text = f"the scheduler cannot be asked ({reports.message}); nothing is decided until it can"
            draft.effects.append(Note(text))
        draft.poll_failure = reports.message
        for attempt in basis.in_flight:
            draft.settle([draft.case(basis, attempt, JobReport(state="", phase=Phase.ENDED))], _end_if_measured)
        return
    draft.poll_failure = ""
    basis = replace(basis, reports=reports)
    over_budget = {attempt.key for attempt in beyond_budget(facts.history, basis.policy.policy)}
    cases: dict[str, list[Case]] = {}
    for attempt in basis.in_flight:
        report = reports.get(str(attempt.job_id))
        if report is not None:  # else it was adopted after the poll
            cases.setdefault(attempt.submission, []).append(draft.case(basis, attempt, report))
    for beside in cases.values():
        draft.settle(beside, lambda case: _settle_job(case, is_over_budget=case.attempt.key in over_budget))
    paused = sum(isinstance(one, StopRequested) and one.kind is StopKind.PAUSED for one in draft.effects)
    if paused:
        draft.effects.insert(0, Note(f"{paused} jobs that have not begun are taken back: {facts.pause}"))


def _end_if_measured(case: Case) -> None:
    """A finished measurement needs no scheduler; everything else waits for its report."""
    if case.launched is not None and case.launched.ended_at is not None and case.has_result:
        record_outcome(case)


def _settle_job(case: Case, *, is_over_budget: bool) -> None:
    report = case.report
    if not report.is_at_work:
        case.forget("stalled_since")
    if report.phase in (Phase.PENDING, Phase.RUNNING):
        supervise(case, is_over_budget=is_over_budget)
    elif report.phase is Phase.ENDED:
        if not adopt_running_job(case):
            ended_for_s = case.gone_for(Phase.ENDED, ended_at=report.ended_at)
            if _is_settled(case, ended_for_s) and _cannot_begin(case):
                record_outcome(case)
    elif case.has_result or (case.gone_for(Phase.ABSENT) >= case.basis.policy.lost_after_s and _is_gone_for_good(case)):
        record_outcome(case)


def _is_settled(case: Case, ended_for_s: float) -> bool:
    """True if an ended job's files say how it ended, or have had their time to appear."""
    if case.attempt.stop is not None and case.never_began:
        return True
    cause = first_cause(case.ask(ErrorsOf(case.attempt.key)))
    if case.has_result or (cause is not None and not is_consequence(cause)):
        return True
    return ended_for_s >= case.basis.policy.result_grace_s


def _cannot_begin(case: Case) -> bool:
    """True if no job runs an attempt whose own has ended: one that never began may be in the queue twice."""
    may_begin = case.basis.phases_beside(case.attempt)
    if case.launched is not None or any(phase is not Phase.ENDED for phase in may_begin):
        return True
    return withdraw_or_adopt(case)


def _is_gone_for_good(case: Case) -> bool:
    """True if a job that is absent cannot begin any more; else it could run beside the next attempt's."""
    if any(phase is not Phase.ABSENT for phase in case.basis.phases_beside(case.attempt)):
        return True  # its array is known, and it is not in it
    return withdraw_or_adopt(case)


def _record_absences(draft: Draft, basis: Basis) -> None:
    """Record for later processes what is new, of attempts that are still in flight."""
    news: dict[Phase, list[AttemptKey]] = {}
    jobs: dict[AttemptKey, JobMemory] = {}
    for attempt in basis.facts.history.in_flight():
        memory = draft.jobs.get(attempt.key)
        if memory is None or memory.job_id != attempt.job_id:
            continue
        jobs[attempt.key] = memory
        recorded = Phase.RUNNING if attempt.gone is None else attempt.gone[0]
        if memory.absence is not None and memory.absence.phase is not recorded:
            news.setdefault(memory.absence.phase, []).append(attempt.key)
    draft.jobs = jobs
    draft.effects += [Sighted(time=basis.now.unix, keys=tuple(keys), phase=phase) for phase, keys in news.items()]
