"""Finds what the user means: the targets of a cancel, and what is reopened because of ``retry=[...]``."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from sweep.core.attempts.attempt import AttemptKey, JobReport, Outcome, Phase
from sweep.core.attempts.history import AttemptState, History, RepeatHistory
from sweep.core.attempts.ledger import CancelRequested, RepeatKey
from sweep.core.attempts.outcome_rules import OutcomeRule
from sweep.core.decisions.admission import HOLES
from sweep.core.decisions.plan import Action, ActionKind, decide, to_reopen
from sweep.core.encoding.frozen import dataclass


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


def unfinished(history: History, cells: Iterable[str], repeats: int) -> tuple[RepeatKey, ...]:
    """Repeats of these cells that are neither measured nor held already."""
    asked = ((cell_id, repeat) for cell_id in cells for repeat in range(1, repeats + 1))
    return tuple(key for key in asked if _can_be_held(history.of(*key)))


def _can_be_held(past: RepeatHistory) -> bool:
    # What was not tried because of a finding on another cell (oom_inferred) stays as it is explained.
    is_explained = past.skipped is not None and HOLES.get(past.skipped[0]) is ActionKind.EXPLAINED
    return past.succeeded is None and not past.held and not is_explained


def had_ended(events: Sequence[CancelRequested], history: History) -> tuple[AttemptKey, ...]:
    """Attempts whose jobs were over before these cancels, and whose ends are still to be judged.

    Args:
        events: The cancels.
        history: With these events in it.
    """
    asked = dict.fromkeys(repeat for event in events for repeat in event.repeats)
    last = (history.of(*repeat).last for repeat in asked)
    return tuple(one.key for one in last if one is not None and one.in_flight and not one.is_cancel_requested)


def held_back(
    events: Sequence[CancelRequested], history: History, rules: Mapping[Outcome, OutcomeRule]
) -> tuple[RepeatKey, ...]:
    """Repeats that cancels keep from being submitted; those that were given up, or explained, were not to be anyway.

    Args:
        events: The cancels.
        history: With these events in it.
        rules: What the run does after each outcome.
    """
    asked = dict.fromkeys(repeat for event in events for repeat in event.repeats)
    ended = {(key.cell_id, key.repeat) for event in events for key in event.keys}
    repeats = max((repeat for _, repeat in asked), default=0)
    actions = decide([cell for cell, _ in asked], repeats=repeats, history=history, rules=rules)
    held = {(action.cell_id, action.repeat) for action in actions if action.kind is ActionKind.HOLD}
    return tuple(key for key in asked if key in held and key not in ended)
