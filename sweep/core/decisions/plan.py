"""Decisions: for every repeat of every cell one action with its reason, from the history and the rules of outcomes."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum

from sweep.core.attempts.attempt import Outcome
from sweep.core.attempts.history import AttemptState, History, RepeatHistory
from sweep.core.attempts.ledger import RepeatKey
from sweep.core.attempts.outcome_rules import OUTCOME_RULES, Disposition, OutcomeRule
from sweep.core.encoding.frozen import dataclass


class ActionKind(StrEnum):
    """The next step for one repeat of a cell."""

    SUBMIT = "submit"
    RETRY = "retry"
    WAIT = "wait"
    DONE = "done"
    LATER = "later"
    EXPLAINED = "explained"
    HOLD = "cancelled"
    PAUSED = "paused"
    OVER_BUDGET = "over_budget"
    GIVE_UP = "give_up"


TO_SUBMIT = (ActionKind.SUBMIT, ActionKind.RETRY)
"""Actions that start a new attempt."""
UNDER_WAY = (*TO_SUBMIT, ActionKind.WAIT, ActionKind.LATER)
"""Actions after which a run is not over."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Action:
    """The next step for one repeat of a cell, and the reason.

    Attributes:
        kind: What.
        cell_id: The cell.
        repeat: The repeat, from 1.
        attempt: Number of the attempt that it is about: the new one, the one in flight, or the last.
        reason: Why, for people.
        outcome: How the last attempt ended, if one did.
        walltime_min: Minutes that a new attempt may take; 0 where none is started.
        avoid: Nodes that a new attempt keeps away from, because earlier ones blame them; the latest blamed first.
        is_cut: True if those minutes are fewer than the rules give, to end before a maintenance.
        hole: The table's word for a cell that is not tried (``oom_inferred``, ``paused`` ...); empty where it is.
    """

    kind: ActionKind
    cell_id: str
    repeat: int
    attempt: int
    reason: str
    outcome: Outcome | None = None
    walltime_min: int = 0
    avoid: tuple[str, ...] = ()
    hole: str = ""
    is_cut: bool = False


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
    walltime_min: int = 0,
    longest_walltime_min: int | None = None,
) -> list[Action]:
    """One action for every repeat of every cell, in the order of the cells; a cell that is named twice counts once.

    Args:
        cells: Cell ids.
        repeats: Independent runs of each.
        history: All attempts so far.
        rules: What follows from each outcome.
        walltime_min: Minutes of a first attempt.
        longest_walltime_min: Minutes beyond which no retry may be given more; None: no limit is known.
    """
    walltimes = _Walltimes(rules=rules, first_min=walltime_min, longest_min=longest_walltime_min)
    return [
        _decide_repeat(cell_id, repeat, history.of(cell_id, repeat), walltimes)
        for cell_id in dict.fromkeys(cells)
        for repeat in range(1, repeats + 1)
    ]


def in_rounds(actions: Iterable[Action], seed: int, first: Collection[Action]) -> list[Action]:
    """Shuffled actions: those in ``first``, then repeat 1 of each cell, then 2 ...; further cells move none of them."""

    def place(action: Action) -> tuple[bool, int, bytes]:
        digest = hashlib.sha256(f"{seed} {action.cell_id} {action.repeat}".encode()).digest()
        return action not in first, action.repeat, digest

    return sorted(actions, key=place)


def to_reopen(actions: Iterable[Action], outcomes: Collection[Outcome]) -> list[RepeatKey]:
    """Repeats that were given up, cancelled or explained with one of these outcomes."""
    return [
        (action.cell_id, action.repeat)
        for action in actions
        if action.outcome in outcomes and action.outcome is not Outcome.SUCCEEDED and action.kind not in TO_SUBMIT
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Walltimes:
    """How long attempts may take: a retry longer by its outcome's factor, up to what the partition allows."""

    rules: Mapping[Outcome, OutcomeRule]
    first_min: int
    longest_min: int | None

    def of(self, past: RepeatHistory, *, but_for: Outcome | None = None) -> int:
        """Minutes of the next attempt; with ``but_for`` as if one attempt less had ended so."""
        factors = (
            rule.walltime_factor ** (past.ended(outcome) - (outcome is but_for))
            for outcome, rule in self.rules.items()
            if rule.walltime_factor > 1
        )
        wanted = math.ceil(self.first_min * math.prod(factors))
        if self.longest_min is None:
            return wanted
        return max(self.first_min, min(wanted, self.longest_min))

    def is_exhausted(self, past: RepeatHistory) -> bool:
        """True if a retry after a TIMEOUT needs a longer walltime than the limit allows."""
        is_to_grow = self.rules[Outcome.TIMEOUT].walltime_factor > 1 and self.first_min > 0
        return is_to_grow and self.of(past) <= self.of(past, but_for=Outcome.TIMEOUT)


def _decide_repeat(cell_id: str, repeat: int, past: RepeatHistory, walltimes: _Walltimes) -> Action:
    kind, attempt, reason, outcome = _decision(past, walltimes)
    if kind in TO_SUBMIT and past.held:
        # What the rules would have given up, or have explained, keeps its own reason.
        kind, attempt, reason, outcome = ActionKind.HOLD, *_held(past)
    is_new = kind in TO_SUBMIT
    return Action(
        kind=kind,
        cell_id=cell_id,
        repeat=repeat,
        attempt=attempt,
        reason=reason,
        outcome=outcome,
        walltime_min=walltimes.of(past) if is_new else 0,
        avoid=_blamed(past, walltimes.rules) if is_new else (),
    )


def _decision(past: RepeatHistory, walltimes: _Walltimes) -> tuple[ActionKind, int, str, Outcome | None]:
    """Kind, attempt, reason and last outcome: a measurement stands, a flight is waited for, then the rules decide."""
    if not past.attempts:
        return ActionKind.SUBMIT, 1, "not run yet", None
    success = past.succeeded
    if success is not None:
        return ActionKind.DONE, success.key.attempt, "measured", Outcome.SUCCEEDED
    unfinished = next((attempt for attempt in past.attempts if attempt.in_flight), None)
    if unfinished is not None:
        return ActionKind.WAIT, unfinished.key.attempt, _waiting_for(unfinished), None
    last, following = past.last, past.highest_number + 1
    if last is None or last.outcome is None:
        return ActionKind.SUBMIT, following, "not run yet", None
    if last.key.attempt <= past.reopened_after:
        return ActionKind.RETRY, following, f"asked for again after {last.outcome}", last.outcome
    return _after(last, past, walltimes)


def _held(past: RepeatHistory) -> tuple[int, str, Outcome]:
    """Attempt, reason and outcome of a repeat that the user cancelled while it was not in the queue."""
    reason, last = "cancelled by the user before it was submitted", past.last
    if last is None or last.outcome is None:
        return max(1, past.highest_number), reason, Outcome.CANCELLED
    return last.key.attempt, f"{reason} again; before that {_at_last(last, 1)}", Outcome.CANCELLED


def _after(
    last: AttemptState, past: RepeatHistory, walltimes: _Walltimes
) -> tuple[ActionKind, int, str, Outcome | None]:
    """The action that follows from the outcome of the last attempt."""
    assert last.outcome is not None, "an attempt in flight is waited for"
    rule, used = walltimes.rules[last.outcome], past.ended(last.outcome)
    if used > rule.max_retries:
        return _KIND_AT_LAST[rule.disposition], last.key.attempt, _at_last(last, used), last.outcome
    if last.outcome is Outcome.TIMEOUT and last.is_cut:
        reason = "TIMEOUT of a walltime that was cut before a maintenance: again with all of it"
        return ActionKind.RETRY, past.highest_number + 1, reason, last.outcome
    if last.outcome is Outcome.TIMEOUT and walltimes.is_exhausted(past):
        reason = f"{_at_last(last, used)}; the partition allows no more than {walltimes.of(past)} min"
        return _KIND_AT_LAST[rule.disposition], last.key.attempt, reason, last.outcome
    reason = f"{last.outcome}: retry {used} of {rule.max_retries}" + (f" ({last.reason})" if last.reason else "")
    return ActionKind.RETRY, past.highest_number + 1, reason, last.outcome


def _blamed(past: RepeatHistory, rules: Mapping[Outcome, OutcomeRule]) -> tuple[str, ...]:
    """Nodes that attempts since the last reopening blame, the latest first."""
    found: list[str] = []
    for attempt in reversed(past.attempts):
        if attempt.key.attempt <= past.reopened_after or attempt.outcome is None:
            continue
        blamed = attempt.evidence.get("blamed")
        if rules[attempt.outcome].avoid_nodes and isinstance(blamed, list):
            found.extend(map(str, blamed))
    return tuple(dict.fromkeys(found))


def _waiting_for(attempt: AttemptState) -> str:
    if attempt.job_id is None:
        return f"reserved as {attempt.submission}, not yet known to the scheduler"
    stopped = "" if attempt.stop is None else f", which is being ended: {attempt.stop.reason}"
    return f"in flight as job {attempt.job_id}{stopped}"


def _at_last(last: AttemptState, used: int) -> str:
    times = f" {used} times" if used > 1 else ""
    return f"{last.outcome}{times}: {last.reason}" if last.reason else f"{last.outcome}{times}"
