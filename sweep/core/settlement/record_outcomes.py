"""Records how attempts ended: the evidence is gathered and judged, the cost settled, nodes at fault are named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

from sweep.core.attempts.attempt import ABSENT, JobReport, Outcome, Phase, StopKind
from sweep.core.attempts.history import AttemptState, RepeatHistory
from sweep.core.attempts.ledger import Ended, Withdrawn
from sweep.core.attempts.verdict import Evidence, Verdict, first_cause, judge
from sweep.core.jobs.set_up import PASSED
from sweep.core.records.attempt_record import AttemptFile
from sweep.core.settlement.case import Case, Draft, Now, SettlementPolicy
from sweep.core.settlement.effects import Effect, Memory
from sweep.core.settlement.facts import DamageOf, ErrorsOf, Facts, LaunchesOf, LoggedEndOf, ResultOf, Unhealthy
from sweep.core.settlement.requeue_accounting import gpu_seconds
from sweep.core.settlement.supervision import stop_in_force


def record_outcome(case: Case) -> None:
    """Record how an attempt ended, by the last report on its job; it is over, that is not asked here.

    One that was taken back before it began did not happen.
    """
    attempt, stop = case.attempt, case.attempt.stop
    is_taken_back = stop is not None and stop.kind is StopKind.PAUSED and case.never_began
    if stop is not None and is_taken_back and not attempt.is_cancel_requested:
        case.do(Withdrawn(time=case.basis.now.unix, key=attempt.key, reason=stop.reason))
        return
    (has_result, problem), launched = case.ask(ResultOf(attempt.key)), case.launched
    if not has_result:
        case.report = _with_logged_end(case, launched)
        if case.report.set_up:
            case.report = _compared(case.report, set_up_passes(case.basis.facts, case.report.set_up, asks=True))
        if launched is None:
            problem = problem or case.ask(DamageOf(attempt.submission))
    evidence = Evidence(
        has_result=has_result,
        result_problem=problem,
        cancelled_by_user=attempt.is_cancel_requested,
        report=case.report,
        outcome_of_state=case.report.outcome,
        stop=stop_in_force(case),
        errors=case.ask(ErrorsOf(attempt.key)),
        exit_codes={} if launched is None or launched.exit_code is None else {0: launched.exit_code},
    )
    verdict = judge(evidence)
    found = {**_as_data(evidence), "blamed": _blamed(case, verdict, launched), "set_up": _set_up(case, launched)}
    case.do(ended(attempt, verdict, case.basis.now, gpu_seconds(case), found))


def ended(
    attempt: AttemptState, verdict: Verdict, now: Now, gpu_seconds: float | None, evidence: Mapping[str, object]
) -> Ended:
    """The event of an attempt's end."""
    return Ended(
        time=now.unix,
        key=attempt.key,
        outcome=verdict.outcome,
        reason=verdict.reason,
        gpu_seconds=gpu_seconds,
        evidence=evidence,
    )


def _with_logged_end(case: Case, launched: AttemptFile | None) -> JobReport:
    """The report, or where it does not say why a job ended, what the scheduler wrote of that into the job's log."""
    report, attempt = case.report, case.attempt
    if report.phase not in (Phase.ENDED, Phase.ABSENT) or report.state == "COMPLETED" or report.outcome is not None:
        return report
    since = 0.0 if launched is None else launched.started_at
    # The log has whole seconds.
    logged = case.ask(LoggedEndOf(attempt.submission, str(attempt.job_id), since - 1.0))
    if logged is None:
        return report
    return replace(
        report,
        state=logged.state,
        outcome=logged.outcome,
        reason=logged.reason,
        nodes=report.nodes or (() if launched is None else launched.hosts),
        at_fault=logged.at_fault,
        set_up=logged.set_up,
        ended_at=report.ended_at or logged.ended_at,
    )


def set_up_passes(facts: Facts, digest: str, *, asks: bool) -> list[str]:
    """Nodes on which an attempt of the run has passed the set-up lines with this hash.

    Args:
        facts: What is known.
        digest: The hash.
        asks: True if attempts in flight count, too: their launchers' files are asked for.
    """
    attempts = [attempt for repeat in facts.history.repeats.values() for attempt in repeat.attempts]
    known = [attempt.evidence.get("set_up") for attempt in attempts]
    passed = {str(one.get("node")) for one in known if isinstance(one, dict) and one.get("passed") == digest}
    in_flight = [attempt for attempt in attempts if asks and attempt.in_flight and attempt.job_id is not None]
    facts.require(*(LaunchesOf(attempt.key) for attempt in in_flight))
    launched = [one for one in map(facts.launched, in_flight) if one is not None]
    return sorted(passed | {one.hosts[0] for one in launched if one.environment.get(PASSED) == digest})


def _compared(report: JobReport, passed: Sequence[str]) -> JobReport:
    """The report on a set-up line that failed: the node's fault where the same lines passed on others of the run."""
    others = [node for node in passed if node not in report.at_fault]
    if not others:
        return report
    more = f" and {len(others) - 3} more" if len(others) > 3 else ""
    reason = f"{report.reason} on {report.at_fault[0]}; it passed on {', '.join(others[:3])}{more}"
    return replace(report, outcome=Outcome.NODE_FAIL, reason=reason)


def _set_up(case: Case, launched: AttemptFile | None) -> dict[str, str]:
    """Which set-up lines passed or failed, and on which node; empty where there were none, or nobody knows."""
    if case.report.set_up:
        return {"failed": case.report.set_up, "node": case.report.at_fault[0]}
    passed = "" if launched is None else launched.environment.get(PASSED, "")
    return {"passed": passed, "node": launched.hosts[0]} if launched is not None and passed else {}


def blamed_later(facts: Facts, attempt: AttemptState, now: Now) -> Ended | None:
    """The end, judged anew, of an attempt by whose set-up line nobody could blame a node then; None: as it was."""
    known = attempt.evidence.get("set_up")
    if attempt.outcome is not Outcome.TRAINER_ERROR or not isinstance(known, dict) or "failed" not in known:
        return None
    report = replace(ABSENT, reason=attempt.reason, at_fault=(str(known.get("node")),), outcome=attempt.outcome)
    report = _compared(report, set_up_passes(facts, str(known["failed"]), asks=False))
    if report.outcome is attempt.outcome:
        return None
    evidence = {**attempt.evidence, "blamed": list(report.at_fault), "judged_before": str(attempt.outcome)}
    verdict = Verdict(outcome=Outcome.NODE_FAIL, reason=report.reason)
    return ended(attempt, verdict, now, attempt.gpu_seconds, evidence)


def _blamed(case: Case, verdict: Verdict, launched: AttemptFile | None) -> list[str]:
    """Nodes at fault: those that the scheduler has out of service or names, or the one whose device failed."""
    report = case.report
    if verdict.outcome is Outcome.NODE_FAIL:
        out_of_service = case.ask(Unhealthy(report.nodes))
        # Of several nodes that are all well again, and none of them named, nobody can say which it was.
        named = report.at_fault or (report.nodes if len(report.nodes) == 1 else ())
        return list(out_of_service or named)
    cause = first_cause(case.ask(ErrorsOf(case.attempt.key)))
    if verdict.outcome is Outcome.DEVICE_ERROR and cause is not None:
        hosts = report.nodes or (() if launched is None else launched.hosts)
        return list(hosts[cause.node_rank : cause.node_rank + 1])
    return []


def _as_data(evidence: Evidence) -> dict[str, object]:
    report = evidence.report
    return {
        "result": evidence.has_result,
        "result_problem": evidence.result_problem,
        "state": report.state,
        "state_reason": report.reason,
        "ended_by": report.ended_by,
        "nodes": list(report.nodes),
        "exit_code": report.exit_code,
        "stop": "" if evidence.stop is None else evidence.stop.kind,
        "launcher_exit_codes": {str(node): code for node, code in evidence.exit_codes.items()},
        "errors": [asdict(error) for error in evidence.errors[:8]],
    }


def take_late_results(
    facts: Facts, memory: Memory, now: Now, policy: SettlementPolicy
) -> tuple[Memory, tuple[Effect, ...]]:
    """Let a valid result of an attempt count although the attempt was judged before it could be seen.

    And a set-up line that failed counts against its node once the same lines have passed on another. A repeat that was
    measured, or is being tried again, needs none of this. So it is to be done before a retry goes out, and before a run
    ends.
    """
    draft = Draft.of(memory)
    for repeat in facts.history.repeats.values():
        if repeat.succeeded is None and not any(attempt.in_flight for attempt in repeat.attempts):
            draft.take(lambda repeat=repeat: _take(draft, facts, repeat, now))  # type: ignore[misc]  # binds the loop's
    return draft.done()


def _take(draft: Draft, facts: Facts, repeat: RepeatHistory, now: Now) -> None:
    for attempt in repeat.attempts:
        if attempt.outcome is not None and facts.answer(ResultOf(attempt.key))[0]:
            reason = f"its result appeared after it had been judged {attempt.outcome}"
            evidence = {**attempt.evidence, "result": True, "judged_before": str(attempt.outcome)}
            verdict = Verdict(outcome=Outcome.SUCCEEDED, reason=reason)
            draft.effects.append(ended(attempt, verdict, now, attempt.gpu_seconds, evidence))
            return
    again = None if repeat.last is None else blamed_later(facts, repeat.last, now)
    if again is not None:
        draft.effects.append(again)
