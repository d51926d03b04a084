"""Facts that a settlement rests on: the history of a run, and the answers to the questions that it has asked.

A settlement asks for what it needs and no more: files are read, and accounting is asked, only for attempts that depend
on it. A question is answered once in a look.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, TypeVar, cast

from sweep.core.attempts.attempt import AttemptKey, JobReport, JobRun, RankError
from sweep.core.attempts.history import AttemptState, History
from sweep.core.records.attempt_record import AttemptFile

_T = TypeVar("_T")
_Answer_co = TypeVar("_Answer_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Failure:
    """An answer that could not be had, and why; ``is_damaged``: it never can, because a file is damaged."""

    message: str
    is_damaged: bool = False


@dataclass(frozen=True, slots=True)
class Question(Generic[_Answer_co]):
    """Something that a settlement has to know. The type parameter is the type of the answer."""

    is_put_together: ClassVar[bool] = False
    """True if one call answers all questions of the kind: such a question waits until all others are answered."""


@dataclass(frozen=True, slots=True)
class CancelRequests(Question[tuple[tuple[str, tuple[str, ...]], ...]]):
    """Requests of ``sweep cancel``: their names and cell ids."""


@dataclass(frozen=True, slots=True)
class ClaimOf(Question[tuple[str, ...] | Failure | None]):
    """Jobs of the submission that has been claimed; None: no job has begun; empty: none ever will."""

    submission: str
    tasks: int = field(compare=False)


@dataclass(frozen=True, slots=True)
class JobsNamed(Question[tuple[str, ...] | Failure | None]):
    """Jobs that have a submission's name; None: the scheduler has never heard of it."""

    name: str
    created_at: float = field(compare=False)
    tasks: tuple[AttemptKey, ...] = field(compare=False)


@dataclass(frozen=True, slots=True)
class Reports(Question[Mapping[str, JobReport] | Failure]):
    """The scheduler's reports on jobs, of which the names of their submissions are given."""

    names: Mapping[str, str] = field(compare=False)
    since: float = field(compare=False)
    is_put_together: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class ReportById(Question[JobReport | Failure]):
    """The scheduler's report on a job whatever its name."""

    job_id: str
    since: float = field(compare=False)
    is_put_together: ClassVar[bool] = True


_OF_JOBS = (Reports, ReportById)


@dataclass(frozen=True, slots=True)
class LaunchesOf(Question[tuple[AttemptFile | None, tuple[AttemptFile, ...]]]):
    """The launcher's file of an attempt's latest run, and those of its earlier runs."""

    key: AttemptKey


@dataclass(frozen=True, slots=True)
class ResultOf(Question[tuple[bool, str]]):
    """True if there is a valid result of this very attempt; and what is wrong with one that does not count."""

    key: AttemptKey


@dataclass(frozen=True, slots=True)
class ErrorsOf(Question[tuple[RankError, ...]]):
    """Error files of an attempt's latest run."""

    key: AttemptKey


@dataclass(frozen=True, slots=True)
class StepOf(Question[int]):
    """The step that an attempt's trainer is at; -1 before it has said."""

    key: AttemptKey


@dataclass(frozen=True, slots=True)
class LastSignOf(Question[float | None]):
    """Unix time at which one run of an attempt last wrote a file; ``restart`` counts the runs before it."""

    key: AttemptKey
    restart: int


@dataclass(frozen=True, slots=True)
class DamageOf(Question[str]):
    """The damage to a submission's file; empty where it can be read."""

    submission: str


@dataclass(frozen=True, slots=True)
class LoggedEndOf(Question[JobReport | None]):
    """How the scheduler ended a job, by the lines it wrote into the job's log."""

    submission: str
    job_id: str
    since: float = field(compare=False)


@dataclass(frozen=True, slots=True)
class Unhealthy(Question[tuple[str, ...]]):
    """Of these nodes, those that are out of service."""

    nodes: tuple[str, ...]
    is_put_together: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class RunsOf(Question[tuple[JobRun, ...]]):
    """All runs of a job, by accounting; empty where it does not say."""

    job_id: str
    since: float = field(compare=False)
    is_put_together: ClassVar[bool] = True


class UnansweredError(Exception):
    """A settlement needs answers that the facts do not have; :func:`settle` turns the questions into effects."""

    def __init__(self, *questions: Question[Any]) -> None:
        super().__init__(*questions)
        self.questions = questions


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """All that is known in one look at a run.

    Attributes:
        history: All attempts so far; only read.
        answers: By question.
        cancel_answers: The scheduler's answers to this look's cancels, by job: empty where it heard, or its error.
        waiting: Submissions that certainly have no job: nobody looks for one.
        pause: Why jobs that have not begun are taken back; empty: they are not.
    """

    history: History
    answers: Mapping[Question[Any], Any] = field(default_factory=dict)
    cancel_answers: Mapping[str, str] = field(default_factory=dict)
    waiting: Collection[str] = ()
    pause: str = ""

    def answer(self, question: Question[_T]) -> _T:
        """The answer to a question.

        Raises:
            UnansweredError: If it is not there yet.
        """
        try:
            return cast("_T", self.answers[question])
        except KeyError:
            raise UnansweredError(question) from None

    def require(self, *questions: Question[Any]) -> None:
        """Have questions answered in one round.

        Raises:
            UnansweredError: If one of the answers is not there yet.
        """
        missing = [question for question in questions if question not in self.answers]
        if missing:
            raise UnansweredError(*missing)

    def with_answers(self, answers: Mapping[Question[Any], Any]) -> Facts:
        """These facts and further answers, which replace those that are there."""
        return replace(self, answers={**self.answers, **answers})

    def without_reports(self) -> Facts:
        """These facts, in which the scheduler was not asked about any job yet."""
        kept = {question: answer for question, answer in self.answers.items() if not isinstance(question, _OF_JOBS)}
        return replace(self, answers=kept)

    def claim_of(self, submission: str) -> tuple[str, ...] | Failure | None:
        """The answer to :class:`ClaimOf`."""
        return self.answer(ClaimOf(submission, len(self.history.submissions[submission])))

    def launched(self, attempt: AttemptState) -> AttemptFile | None:
        """The launcher's file of an attempt's latest run."""
        return self.answer(LaunchesOf(attempt.key))[0]

    def has_begun(self, attempt: AttemptState) -> bool:
        """True if a job has claimed an attempt's submission, and its launcher has not written its end."""
        launched = self.launched(attempt)
        if launched is not None and launched.ended_at is not None:
            return False
        claim = self.claim_of(attempt.submission)
        return bool(claim) and not isinstance(claim, Failure)

    def in_flight(self) -> list[AttemptState]:
        """Attempts in flight that have a job."""
        return [attempt for attempt in self.history.in_flight() if attempt.job_id is not None]
