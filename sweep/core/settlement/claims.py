"""Claims: who has a submission. A submission whose attempts are settled without a job is withdrawn first."""

from __future__ import annotations

from sweep.core.attempts.attempt import Outcome, Phase
from sweep.core.attempts.ledger import Ended, Released, Submitted
from sweep.core.settlement.case import Basis, Case, Draft
from sweep.core.settlement.effects import Cancel, Effect, Note, Withdraw
from sweep.core.settlement.facts import Failure, JobsNamed


def adopt_running_job(case: Case) -> bool:
    """True if another job runs the attempt's submission, which is in the queue twice: it is watched from now on."""
    name, claim = case.attempt.submission, case.claim
    if isinstance(claim, Failure) or not claim or claim[case.attempt.index] == case.attempt.job_id:
        return False
    case.do(Note(f"submission {name} was not begun by job {case.attempt.job_id} but by {claim[case.attempt.index]}"))
    case.do(Submitted(time=case.basis.now.unix, submission=name, jobs=claim))
    return True


def withdraw_or_adopt(case: Case) -> bool:
    """True if no job can begin the attempt, or run on with it: its submission is withdrawn before that is so."""
    claim = case.claim
    if claim is None or (isinstance(claim, Failure) and not claim.is_damaged):
        case.do(Withdraw(case.attempt.submission))
        return False
    if isinstance(claim, Failure) or not claim:
        return True  # a claim that is damaged lets nothing begin
    return not adopt_running_job(case) and not (case.report.is_anothers and case.basis.facts.has_begun(case.attempt))


def release(basis: Basis, name: str, reason: str) -> list[Effect]:
    """Release a submission that never became a job; one whose job is there after all is adopted.

    It is withdrawn first: a job that arrives later finds that, and does not begin. Attempts that the user cancelled
    have ended; the others did not happen.
    """
    claim, now = basis.facts.claim_of(name), basis.now.unix
    if isinstance(claim, Failure) and claim.is_damaged:
        return [Note(f"submission {name} is not given back: {claim.message}")]
    if claim is None or isinstance(claim, Failure):
        return [Withdraw(name)]
    if claim:
        return [Submitted(time=now, submission=name, jobs=claim)]
    states = [state for state in basis.facts.history.submissions[name] if state.in_flight]
    cancelled = [state.key for state in states if state.is_cancel_requested]
    why = "cancelled by the user before it was submitted"
    effects: list[Effect] = [
        Ended(time=now, key=key, outcome=Outcome.CANCELLED, reason=why, gpu_seconds=0.0) for key in cancelled
    ]
    if cancelled:
        reason = "cells beside it were cancelled before it was submitted"
    if len(cancelled) < len(states):
        effects.append(Released(time=now, submission=name, reason=reason))
    return effects


def look_up(draft: Draft, basis: Basis, name: str) -> None:
    """Find out what became of a submission that is reserved and has no job yet.

    A process died after it had reserved it, or sbatch timed out after it was heard. It is looked for by what the ledger
    has of it: a damaged file is then no reason to wait for ever. A job that began wrote that itself, since a scheduler
    without accounting soon forgets it. A submission that is withdrawn already is released at once, and a late job of
    it, which would not begin, is ended.
    """
    states, facts = basis.facts.history.submissions[name], basis.facts
    claim = facts.claim_of(name)
    found = claim
    if not claim:
        found = facts.answer(JobsNamed(name, states[0].reserved_at, tuple(state.key for state in states)))
    if isinstance(found, Failure):
        if draft.lookup_failures.get(name) != found.message:
            draft.effects.append(Note(f"submission {name} cannot be looked up yet: {found.message}"))
        draft.lookup_failures[name] = found.message
        return
    draft.lookup_failures.pop(name, None)
    if found and claim == ():
        draft.effects += [Cancel(job, name) for job in found if job not in facts.cancel_answers]
        if any(facts.cancel_answers.get(job) != "" for job in found):
            return
        found = None
    if found:
        draft.effects.append(Submitted(time=basis.now.unix, submission=name, jobs=found))
        return
    # This settlement may have withdrawn it itself, because it had not arrived: then that is the reason.
    never_arrived = _never_arrived(draft, basis, name)
    if claim == () or never_arrived:
        reason = "it never reached the scheduler" if never_arrived else "it was withdrawn before its job began"
        effects = release(basis, name, reason)
        if any(isinstance(effect, Released) and effect.reason == reason for effect in effects):
            effects.append(Note(f"submission {name}: {reason}; its attempts did not happen"))
        draft.effects += effects


def _never_arrived(draft: Draft, basis: Basis, name: str) -> bool:
    cases = [draft.case(basis, state) for state in basis.facts.history.submissions[name] if state.in_flight]
    unknown_s = [case.gone_for(Phase.ABSENT) for case in cases]
    for case in cases:
        draft.jobs[case.attempt.key] = case.memory
    return min(unknown_s) >= basis.policy.arrival_grace_s
