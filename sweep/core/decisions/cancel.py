"""Finds the targets of a cancel: attempts in flight, and repeats that are not in the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sweep.core.decisions.admission import HOLES
from sweep.core.decisions.plan import ActionKind, decide

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sweep.core.attempts.attempt import AttemptKey, Outcome
    from sweep.core.attempts.history import History, RepeatHistory
    from sweep.core.attempts.ledger import CancelRequested, RepeatKey
    from sweep.core.attempts.outcome_rules import OutcomeRule


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
