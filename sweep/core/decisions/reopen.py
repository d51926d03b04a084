"""Reopens what was given up, cancelled or explained, because the user asked for it (``retry=[...]``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sweep.core.attempts.attempt import Phase
from sweep.core.decisions.plan import to_reopen
from sweep.core.encoding.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from sweep.core.attempts.attempt import AttemptKey, JobReport, Outcome
    from sweep.core.attempts.history import AttemptState, History
    from sweep.core.attempts.ledger import RepeatKey
    from sweep.core.decisions.plan import Action


@dataclass(frozen=True, kw_only=True, slots=True)
class Reopening:
    """Repeats that ``retry=[...]`` tries again: their attempts had ended in one of its outcomes when it was given.

    An end may be recorded only later, where nobody watched the job. An attempt that ends after ``retry`` was given is
    not one that the user meant, and is not reopened.

    Attributes:
        outcomes: What ended so is tried again.
        is_asked: True until the scheduler has said which jobs are over.
        unsettled: Attempts whose jobs were over when it was asked for, and whose ends are still to be settled.
    """

    outcomes: frozenset[Outcome] = frozenset()
    is_asked: bool = False
    unsettled: frozenset[AttemptKey] = frozenset()

    @property
    def is_done(self) -> bool:
        """True if nothing more is reopened."""
        return not self.is_asked and not self.unsettled


def reopen(
    asked: Reopening,
    actions: Iterable[Action],
    history: History,
    reports: Mapping[str, JobReport],
    *,
    was_reached: bool,
) -> tuple[Reopening, tuple[RepeatKey, ...]]:
    """Reopen what is settled by now: what is still to be reopened, and the repeats.

    Args:
        asked: What is to be reopened.
        actions: What is to be done about every repeat.
        history: All attempts so far.
        reports: The scheduler's latest report on each job in flight.
        was_reached: True if the scheduler has answered.
    """
    chosen = tuple(
        key
        for key in to_reopen(actions, asked.outcomes)
        if asked.is_asked or _is_among(history.of(*key).last, asked.unsettled)
    )
    in_flight = list(history.in_flight())
    if not asked.is_asked:
        left = asked.unsettled & {attempt.key for attempt in in_flight}
        return Reopening(outcomes=asked.outcomes, unsettled=left), chosen
    over = frozenset(attempt.key for attempt in in_flight if _had_ended(attempt, reports))
    # Before the scheduler has answered nobody knows which jobs are over.
    return Reopening(outcomes=asked.outcomes, is_asked=bool(in_flight) and not was_reached, unsettled=over), chosen


def _is_among(last: AttemptState | None, keys: Collection[AttemptKey]) -> bool:
    return last is not None and last.key in keys


def _had_ended(attempt: AttemptState, reports: Mapping[str, JobReport]) -> bool:
    report = reports.get(attempt.job_id or "")
    is_over = report is not None and report.phase in (Phase.ENDED, Phase.ABSENT)
    return attempt.is_cancel_requested or is_over
