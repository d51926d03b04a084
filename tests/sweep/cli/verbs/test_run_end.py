"""What a run says of its holes at its end."""

from __future__ import annotations

from sweep.cli.display.summary import hole_lines
from sweep.core.attempts.attempt import Outcome
from sweep.core.decisions.plan import Action, ActionKind


def test_cells_with_one_reason_share_a_line_and_measured_cells_have_none() -> None:
    def action(number: int, kind: ActionKind, reason: str, repeat: int = 1) -> Action:
        return Action(kind=kind, cell_id=f"c{number}", repeat=repeat, attempt=1, reason=reason)

    actions = [
        action(0, ActionKind.DONE, "measured"),
        action(1, ActionKind.GIVE_UP, "TIMEOUT"),
        *(action(number, ActionKind.PAUSED, "paused: c1 first", repeat) for number in range(2, 8) for repeat in (1, 2)),
    ]
    assert hole_lines(actions) == ["given up: c1: TIMEOUT", "paused: c2, c3, c4, c5 and 2 more: c1 first"]


def test_cells_given_up_or_cancelled_are_listed_with_how_to_try_again() -> None:
    actions = [
        Action(kind=kind, cell_id="c", repeat=1, attempt=1, reason="why", outcome=outcome)
        for kind, outcome in (
            (ActionKind.GIVE_UP, Outcome.TIMEOUT),
            (ActionKind.HOLD, Outcome.CANCELLED),
            (ActionKind.EXPLAINED, Outcome.OOM_DEVICE),
        )
    ]
    assert hole_lines(actions)[-1] == "The same command with retry=[CANCELLED,TIMEOUT] tries them again."
