"""Answers a settlement's questions by ports that only read, and settles again until nothing is left to do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from sweep.core.attempts.attempt import ABSENT, JobReport, JobRun
from sweep.core.encoding.record import RecordError
from sweep.core.settlement.effects import Effect, Memory, Withdraw
from sweep.core.settlement.facts import (
    CancelRequests,
    ClaimOf,
    DamageOf,
    ErrorsOf,
    Facts,
    Failure,
    LastSignOf,
    LaunchesOf,
    LoggedEndOf,
    Question,
    ReportById,
    Reports,
    ResultOf,
    RunsOf,
    StepOf,
    Unhealthy,
)
from sweep.ports import ClusterView, RunRecords, SchedulerError

Answers = dict[Question[Any], Any]


class Reader:
    """Answers questions.

    Args:
        view: The cluster.
        records: The run directory.
    """

    def __init__(self, view: ClusterView, records: RunRecords) -> None:
        self._view, self._records = view, records
        self._by_kind: Mapping[type, Callable[[Any], Any]] = {
            CancelRequests: lambda _: tuple((name, tuple(cells)) for name, cells in records.cancel_requests()),
            ClaimOf: self._claim_of,
            Reports: self._reports,
            LaunchesOf: lambda asked: records.launches(asked.key),
            ResultOf: self._result_of,
            ErrorsOf: lambda asked: tuple(records.errors(asked.key)),
            StepOf: self._step_of,
            LastSignOf: lambda asked: records.last_sign_of_life(asked.key, asked.restart),
            DamageOf: self._damage_of,
            LoggedEndOf: self._logged_end_of,
        }

    def answer(self, questions: Sequence[Question[Any]]) -> Answers:
        """Answer questions; those that one call answers together are left until there are no others."""
        each = [one for one in questions if not one.is_put_together]
        if each:
            return {one: self._by_kind[type(one)](one) for one in each}
        answers: Answers = {one: self._reports(one) for one in questions if isinstance(one, Reports)}
        answers |= self._reports_by_id([one for one in questions if isinstance(one, ReportById)])
        answers |= self._runs([one for one in questions if isinstance(one, RunsOf)])
        return answers | self._unhealthy([one for one in questions if isinstance(one, Unhealthy)])

    def _claim_of(self, asked: ClaimOf) -> tuple[str, ...] | Failure | None:
        try:
            job = self._records.job_that_began(asked.submission)
        except RecordError as error:
            return Failure(str(error), is_damaged=True)
        except OSError as error:
            return Failure(str(error))
        return self.jobs_of(job, asked.tasks) if job is not None else None

    def jobs_of(self, job: str, tasks: int) -> tuple[str, ...]:
        """The answer to :class:`ClaimOf` for the id that a claim names."""
        return self._view.reports.jobs_of(job, tasks) if job else ()

    def _reports(self, asked: Reports) -> Mapping[str, JobReport] | Failure:
        try:
            return self._view.reports.poll(asked.names.keys(), since=asked.since, names=asked.names)
        except SchedulerError as error:
            return Failure(str(error))

    def _reports_by_id(self, asked: Sequence[ReportById]) -> Answers:
        if not asked:
            return {}
        try:
            reports = self._view.reports.poll([one.job_id for one in asked], since=min(one.since for one in asked))
        except SchedulerError as error:
            return dict.fromkeys(asked, Failure(str(error)))
        return {one: reports.get(one.job_id, ABSENT) for one in asked}

    def _runs(self, asked: Sequence[RunsOf]) -> Answers:
        accounting = self._view.accounting
        runs: dict[str, Sequence[JobRun]] = {}
        if asked and accounting is not None:
            with suppress(SchedulerError):  # then its files tell
                runs |= accounting.runs_of([one.job_id for one in asked], since=min(one.since for one in asked))
        return {one: tuple(runs.get(one.job_id, ())) for one in asked}

    def _unhealthy(self, asked: Sequence[Unhealthy]) -> Answers:
        nodes, facts = sorted({node for one in asked for node in one.nodes}), self._view.facts
        found = facts.unhealthy(nodes) if facts is not None and nodes else {}
        return {one: tuple(sorted(found.keys() & set(one.nodes))) for one in asked}

    def _result_of(self, asked: ResultOf) -> tuple[bool, str]:
        result, problem = self._records.result(asked.key)
        return result is not None, problem

    def _step_of(self, asked: StepOf) -> int:
        progress = self._records.progress(asked.key)
        return -1 if progress is None else progress.step

    def _damage_of(self, asked: DamageOf) -> str:
        try:
            self._records.submission(asked.submission)
        except (OSError, RecordError) as error:
            return f"its submission's file is damaged: {error}"
        return ""

    def _logged_end_of(self, asked: LoggedEndOf) -> JobReport | None:
        diagnosis, path = self._view.diagnosis, self._records.path
        if diagnosis is None:
            return None
        return diagnosis.logged_end(path, asked.submission, asked.job_id, since=asked.since)


def settle_all(
    facts: Facts,
    memory: Memory,
    decide: Callable[[Facts, Memory], tuple[Memory, tuple[Effect, ...]]],
    answer: Callable[[Sequence[Question[Any]]], Answers],
    carry_out: Callable[[Iterable[Effect], Facts], Facts],
    *,
    is_once: bool = False,
) -> tuple[Facts, Memory]:
    """Decide until nothing is left to do; gives all that is known and remembered then.

    Args:
        facts: What is known.
        memory: What is remembered.
        decide: A settlement.
        answer: Answers questions; those that it leaves out are asked again.
        carry_out: Carries effects out, and adds what came of them to the facts.
        is_once: True if what was decided is to be carried out once, after submissions are withdrawn.
    """
    while True:
        found, effects = decide(facts, memory)
        questions = [effect for effect in effects if isinstance(effect, Question)]
        if questions:
            facts = facts.with_answers(answer(questions))
            continue
        memory = found
        if not effects:
            return facts, memory
        facts = carry_out(effects, facts)
        if is_once and not any(isinstance(effect, Withdraw) for effect in effects):
            return facts, memory
