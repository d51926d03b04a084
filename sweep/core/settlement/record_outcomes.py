"""Records how attempts ended: the evidence is gathered and judged, the cost settled, nodes at fault are named."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from sweep.core.attempts.attempt import JobReport, Outcome, Phase, StopKind
from sweep.core.attempts.ledger import Ended, Withdrawn
from sweep.core.attempts.verdict import Evidence, Verdict, first_cause, judge
from sweep.core.settlement.facts import DamageOf, ErrorsOf, LoggedEndOf, ResultOf, Unhealthy
from sweep.core.settlement.requeue_accounting import gpu_seconds
from sweep.core.settlement.terminations import stop_in_force

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sweep.core.attempts.history import AttemptState
    from sweep.core.records.attempt_record import AttemptFile
    from sweep.core.settlement.case import Case, Now


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
    found = {**_as_data(evidence), "blamed": _blamed(case, verdict, launched)}
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
        ended_at=report.ended_at or logged.ended_at,
    )


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
