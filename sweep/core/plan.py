"""Decisions: for every repeat of every cell one action with its reason, from the history and the rules of outcomes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from sweep.core.attempt import OUTCOME_RULES, Disposition, Outcome, OutcomeRule
from sweep.core.ledger import History, RepeatHistory

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sweep.core.ledger import AttemptState


class ActionKind(StrEnum):
    """What is to be done about one repeat of a cell."""

    SUBMIT = "submit"
    RETRY = "retry"
    WAIT = "wait"
    DONE = "done"
    EXPLAINED = "explained"
    HOLD = "hold"
    GIVE_UP = "give_up"


TO_SUBMIT = (ActionKind.SUBMIT, ActionKind.RETRY)
"""Actions that start a new attempt."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Action:
    """What is to be done about one repeat of a cell, and why.

    Attributes:
        kind: What.
        cell_id: The cell.
        repeat: The repeat, from 1.
        attempt: Number of the attempt that it is about: the new one, the one in flight, or the last.
        reason: Why, in words for people.
        outcome: How the last attempt ended, if one did.
    """

    kind: ActionKind
    cell_id: str
    repeat: int
    attempt: int
    reason: str
    outcome: Outcome | None = None


_KIND_AT_LAST: Mapping[Disposition, ActionKind] = {
    Disposition.MEASURED: ActionKind.DONE,
    Disposition.FINDING: ActionKind.EXPLAINED,
    Disposition.HELD: ActionKind.HOLD,
    Disposition.GAVE_UP: ActionKind.GIVE_UP,
}


def decide(
    cells: Iterable[str],
    *,
    repeats: int,
    history: History,
    rules: Mapping[Outcome, OutcomeRule] = OUTCOME_RULES,
) -> list[Action]:
    """One action for every repeat of every cell, in the order of the cells; a cell that is named twice counts once."""
    return [
        _decide_repeat(cell_id, repeat, history.of(cell_id, repeat), rules)
        for cell_id in dict.fromkeys(cells)
        for repeat in range(1, repeats + 1)
    ]


def _decide_repeat(cell_id: str, repeat: int, past: RepeatHistory, rules: Mapping[Outcome, OutcomeRule]) -> Action:
    kind, attempt, reason, outcome = _decision(past, rules)
    return Action(kind=kind, cell_id=cell_id, repeat=repeat, attempt=attempt, reason=reason, outcome=outcome)


def _decision(past: RepeatHistory, rules: Mapping[Outcome, OutcomeRule]) -> tuple[ActionKind, int, str, Outcome | None]:
    """Kind, attempt, reason and last outcome: a measurement stands, a flight is waited for, then the rules decide."""
    if not past.attempts:
        return ActionKind.SUBMIT, 1, "not run yet", None
    success = past.succeeded
    if success is not None:
        return ActionKind.DONE, success.key.attempt, "measured", Outcome.SUCCEEDED
    flying = next((attempt for attempt in past.attempts if attempt.in_flight), None)
    if flying is not None:
        return ActionKind.WAIT, flying.key.attempt, _waiting_for(flying), None
    last, following = past.last, past.highest_number + 1
    if last is None or last.outcome is None:
        return ActionKind.SUBMIT, following, "not run yet", None
    if last.key.attempt <= past.reopened_after:
        return ActionKind.RETRY, following, f"asked for again after {last.outcome}", last.outcome
    rule, used = rules[last.outcome], past.ended(last.outcome)
    if used <= rule.max_retries:
        reason = f"{last.outcome}: retry {used} of {rule.max_retries}" + (f" ({last.reason})" if last.reason else "")
        return ActionKind.RETRY, following, reason, last.outcome
    return _KIND_AT_LAST[rule.disposition], last.key.attempt, _at_last(last, used), last.outcome


def _waiting_for(attempt: AttemptState) -> str:
    if attempt.job_id is None:
        return f"reserved as {attempt.submission}, not yet known to the scheduler"
    return f"in flight as job {attempt.job_id}"


def _at_last(last: AttemptState, used: int) -> str:
    times = f" {used} times" if used > 1 else ""
    return f"{last.outcome}{times}: {last.reason}" if last.reason else f"{last.outcome}{times}"
