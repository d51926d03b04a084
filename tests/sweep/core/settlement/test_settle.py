"""Settlement, asked directly: any reports, files and claims together, with a memory and a history that are made up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from sweep.core.attempts.attempt import (
    AttemptKey,
    ErrorClass,
    JobReport,
    JobRun,
    Outcome,
    Phase,
    RankError,
    slurm_state,
)
from sweep.core.attempts.history import AttemptState, History, fold
from sweep.core.attempts.ledger import CancelRequested, Event, Reserved, Sighted, StopKind, StopRequested, Submitted
from sweep.core.records.attempt_record import AttemptFile
from sweep.core.settings.policy import Policy
from sweep.core.settlement import facts as asked
from sweep.core.settlement.case import Now, SettlementPolicy
from sweep.core.settlement.effects import Cancel, DropRequest, Effect, Memory, Withdraw
from sweep.core.settlement.facts import CancelRequests, ClaimOf, Facts, Failure, Question
from sweep.core.settlement.settle import settle
from sweep.usecases.answers import settle_all

MANY = settings(max_examples=8 * settings.default.max_examples)
NOW = Now(unix=10_000.0, monotonic=500.0)
POLICY = SettlementPolicy(
    policy=Policy(watchdog_s=100.0, budget_gpu_hours=3.0),
    repeats=1,
    result_grace_s=60.0,
    lost_after_s=300.0,
    hang_grace_s=60.0,
    arrival_grace_s=60.0,
)
STATES = ("PENDING", "RUNNING", "COMPLETED", "FAILED", "CANCELLED by 0", "TIMEOUT", "NODE_FAIL", "")


@dataclass(frozen=True, kw_only=True)
class Task:
    """All that can be read of one attempt."""

    state: str
    reason: str
    started_at: float | None
    ended_at: float | None
    is_inferred: bool
    has_job: bool
    launch: tuple[str, float, float | None] | None
    """Whose launcher wrote (its own job, another), when it began, when it ended."""
    has_result: bool
    errors: tuple[ErrorClass, ...]
    gone_before_s: float | None
    is_cancelled: bool
    stop: StopKind | None
    runs: tuple[JobRun, ...]


@dataclass(frozen=True, kw_only=True)
class Intent:
    """A submission, who has claimed it, and its tasks."""

    claim: str | None
    """None: nobody; empty: withdrawn; ``own``, ``other``: a job; ``damaged``."""
    is_known: bool
    """True if its jobs are recorded; else it is looked for by name."""
    is_found: bool
    tasks: tuple[Task, ...]


TIMES = st.sampled_from([9_000.0, 9_900.0, 9_990.0])
TASKS = st.builds(
    Task,
    state=st.sampled_from(STATES),
    reason=st.sampled_from(["", "Priority", "JobHeldUser", "PartitionTimeLimit"]),
    started_at=st.none() | TIMES,
    ended_at=st.none() | TIMES,
    is_inferred=st.booleans(),
    has_job=st.booleans(),
    launch=st.none() | st.tuples(st.sampled_from(["own", "other"]), TIMES, st.none() | TIMES),
    has_result=st.booleans(),
    errors=st.lists(st.sampled_from(ErrorClass), max_size=2).map(tuple),
    gone_before_s=st.sampled_from([None, 10.0, 5_000.0]),
    is_cancelled=st.booleans(),
    stop=st.none() | st.sampled_from(StopKind),
    runs=st.lists(st.builds(JobRun, started_at=TIMES, ended_at=st.none() | TIMES), max_size=2).map(tuple),
)
SUBMISSIONS = st.builds(
    Intent,
    claim=st.sampled_from([None, None, "", "own", "other", "damaged"]),
    is_known=st.sampled_from([True, True, False]),
    is_found=st.booleans(),
    tasks=st.lists(TASKS, min_size=1, max_size=3).map(tuple),
)


@dataclass
class Run:
    """A run as it is found: answers questions, and takes effects in as an executor does."""

    submissions: Sequence[Intent]
    is_reached: bool = True
    backwards: bool = False
    requests: tuple[str, ...] = ()
    tasks: dict[AttemptKey, Task] = field(default_factory=dict)
    withdrawn: set[str] = field(default_factory=set)
    done: list[Effect] = field(default_factory=list)

    def history(self) -> History:
        """What its ledger adds up to."""
        events: list[Event] = []
        for number, submission in enumerate(self.submissions):
            keys = tuple(
                AttemptKey(cell_id=f"{number}{index}", repeat=1, attempt=1) for index in range(len(submission.tasks))
            )
            name = f"s{number}"
            events.append(Reserved(time=8_000.0, submission=name, tasks=keys, gpu_hours=1.0, gpus=1))
            if submission.is_known:
                events.append(Submitted(time=8_001.0, submission=name, jobs=self.jobs(name, "own")))
            for key, task in zip(keys, submission.tasks, strict=True):
                self.tasks[key] = task
                if task.gone_before_s is not None:
                    seen = NOW.unix - task.gone_before_s
                    events.append(Sighted(time=seen, keys=(key,), phase=Phase.ABSENT))
                if task.is_cancelled:
                    events.append(CancelRequested(time=8_002.0, keys=(key,), repeats=((key.cell_id, 1),)))
                if task.stop is not None:
                    events.append(StopRequested(time=8_500.0, key=key, kind=task.stop, reason="a reason"))
        return fold(events)

    def jobs(self, name: str, whose: str) -> tuple[str, ...]:
        base = int(name[1:]) + (100 if whose == "own" else 200)
        count = len(self.submissions[int(name[1:])].tasks)
        return (str(base),) if count == 1 else tuple(f"{base}_{index}" for index in range(count))

    def task_of(self, job: str) -> Task:
        base, _, index = job.partition("_")
        return self.submissions[int(base) % 100].tasks[int(index or 0)]

    def report(self, job: str) -> JobReport:
        task = self.task_of(job)
        phase = Phase.ABSENT if not task.state else slurm_state(task.state).phase
        outcome = slurm_state(task.state).outcome if task.state else None
        times: dict[str, Any] = {"started_at": task.started_at} if phase is not Phase.PENDING else {}
        if phase is Phase.ENDED:
            times["ended_at"] = task.ended_at
        is_hopeless = phase is Phase.PENDING and task.reason == "PartitionTimeLimit"
        inferred = task.is_inferred and phase is Phase.ENDED
        return JobReport(
            state=task.state,
            phase=phase,
            reason=task.reason,
            outcome=outcome,
            is_hopeless=is_hopeless,
            is_inferred=inferred,
            **times,
        )

    def answer(self, questions: Sequence[Question[Any]]) -> dict[Question[Any], Any]:
        return {question: self._answer(question) for question in questions}

    def _answer(self, question: Any) -> Any:
        answers: Mapping[type, Any] = {
            CancelRequests: lambda: (("r", self.requests),) if self.requests else (),
            ClaimOf: lambda: self.claim(question.submission),
            asked.JobsNamed: lambda: self.found(question.name),
            asked.Reports: lambda: self.reports(list(question.names)) if self.is_reached else Failure("away"),
            asked.ReportById: lambda: replace(self.report(question.job_id), reason=""),
            asked.LaunchesOf: lambda: (self.launch(question.key), ()),
            asked.ResultOf: lambda: (self.tasks[question.key].has_result, ""),
            asked.ErrorsOf: lambda: self.errors(question.key),
            asked.RunsOf: lambda: self.task_of(question.job_id).runs,
            asked.StepOf: lambda: 3,
            asked.Unhealthy: lambda: (),
            asked.LastSignOf: lambda: None,
            asked.DamageOf: lambda: "",
            asked.LoggedEndOf: lambda: None,
        }
        return answers[type(question)]()

    def found(self, name: str) -> tuple[str, ...] | None:
        return self.jobs(name, "own") if self.submissions[int(name[1:])].is_found else None

    def reports(self, jobs: list[str]) -> dict[str, JobReport]:
        return {job: self.report(job) for job in (reversed(jobs) if self.backwards else jobs)}

    def errors(self, key: AttemptKey) -> tuple[RankError, ...]:
        found = enumerate(self.tasks[key].errors)
        return tuple(RankError(rank=0, node_rank=0, time=float(n), error_class=e, message="m") for n, e in found)

    def claim(self, name: str) -> tuple[str, ...] | Failure | None:
        claim = self.submissions[int(name[1:])].claim
        if name in self.withdrawn or claim == "":
            return ()
        if claim == "damaged":
            return Failure("the claim is damaged", is_damaged=True)
        return None if claim is None else self.jobs(name, claim)

    def launch(self, key: AttemptKey) -> AttemptFile | None:
        launch = self.tasks[key].launch
        if launch is None:
            return None
        whose, began, ended = launch
        number, index = int(key.cell_id[0]), int(key.cell_id[1])
        job = self.jobs(f"s{number}", whose)[index]
        return AttemptFile(
            key=key, job_id=job, restart=0, hosts=("n1",), pid=1, started_at=began, ended_at=ended, exit_code=None
        )

    def carry_out(self, effects: Iterable[Effect], facts: Facts) -> Facts:
        answers: dict[Question[Any], Any] = {}
        answered = dict(facts.cancel_answers)
        assert len(self.done) < 200, "it does not come to rest"
        for effect in effects:
            self.done.append(effect)
            if isinstance(effect, Event):
                facts.history.apply(effect)
            elif isinstance(effect, Withdraw):
                self.withdrawn.add(effect.submission)
                answers[ClaimOf(effect.submission, 0)] = self.claim(effect.submission)
            elif isinstance(effect, Cancel):
                answered[effect.job_id] = ""
            elif isinstance(effect, DropRequest):
                answers[CancelRequests()] = ()
        return replace(facts.with_answers(answers), cancel_answers=answered)

    def settled(self) -> tuple[Facts, Memory]:
        """All that is known and remembered once nothing is left to do."""
        facts = Facts(history=self.history())
        return settle_all(
            facts,
            Memory(),
            lambda facts, memory: settle(facts, memory, NOW, POLICY),
            self.answer,
            self.carry_out,
        )


def attempts(facts: Facts) -> Mapping[AttemptKey, AttemptState]:
    return {one.key: one for states in facts.history.submissions.values() for one in states}


def adopted(run: Run) -> set[str]:
    """Submissions whose jobs became known: nothing is known of those jobs in this look."""
    return {one.submission for one in run.done if isinstance(one, Submitted)}


RUNS = st.builds(
    Run,
    submissions=st.lists(SUBMISSIONS, min_size=1, max_size=3),
    is_reached=st.sampled_from([True, True, True, False]),
    requests=st.sampled_from([(), (), ("00",), ("00", "10")]),
)


@MANY
@given(run=RUNS)
def test_settling_twice_with_nothing_new_has_no_effect(run: Run) -> None:
    facts, memory = run.settled()
    assert settle(facts, memory, NOW, POLICY) == (memory, ())


@MANY
@given(run=RUNS)
def test_the_order_of_reports_does_not_matter(run: Run) -> None:
    forwards, memory = run.settled()
    turned = replace_run(run, backwards=True)
    backwards, same = turned.settled()
    assert attempts(backwards) == attempts(forwards)
    assert same == memory
    assert turned.done == run.done


def replace_run(run: Run, *, backwards: bool) -> Run:
    """The same run, as it was found."""
    return Run(submissions=run.submissions, is_reached=run.is_reached, requests=run.requests, backwards=backwards)


@MANY
@given(run=RUNS)
def test_a_result_is_never_lost(run: Run) -> None:
    """No attempt with a result is given up, and it counts once its job is over."""
    facts, _ = run.settled()
    for key, attempt in attempts(facts).items():
        if not run.tasks[key].has_result:
            assert attempt.outcome is not Outcome.SUCCEEDED
        elif attempt.job_id is not None and attempt.outcome is not None:
            assert attempt.outcome is Outcome.SUCCEEDED, attempt.reason
        elif attempt.job_id is not None and run.is_reached and attempt.submission not in adopted(run):
            assert run.report(attempt.job_id).phase in (Phase.PENDING, Phase.RUNNING), "a job that is over has measured"


@MANY
@given(run=RUNS)
def test_a_repeat_never_has_two_attempts_that_live(run: Run) -> None:
    """What is over for the history, so that a retry may go out, cannot begin, and did not live by its report."""
    facts, _ = run.settled()
    for name, states in facts.history.submissions.items():
        over = [one for one in states if not one.in_flight and one.outcome is not Outcome.SUCCEEDED]
        for attempt in over:
            is_live = attempt.job_id is not None and run.report(attempt.job_id).phase in (Phase.PENDING, Phase.RUNNING)
            assert not is_live or name in adopted(run), attempt.key
        never_began = [one for one in over if run.launch(one.key) is None]
        if never_began and not any(one.in_flight for one in states):
            assert run.claim(name) is not None, f"a job of {name} may still begin"
