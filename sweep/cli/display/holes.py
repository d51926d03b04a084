"""Names the cells that have no measurement at the end of a run, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sweep.core.decisions.plan import ActionKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sweep.core.decisions.plan import Action

_HOLES = {
    ActionKind.GIVE_UP: "given up",
    ActionKind.HOLD: "cancelled",
    ActionKind.EXPLAINED: "explained",
    ActionKind.PAUSED: "paused",
    ActionKind.OVER_BUDGET: "over budget",
}
_MOST_IDS = 4


def hole_lines(actions: Sequence[Action]) -> list[str]:
    """Lines about the cells without a measurement: one for all cells with the same reason."""
    cells: dict[tuple[ActionKind, str], list[str]] = {}
    for action in actions:
        if action.kind in _HOLES:
            cells.setdefault((action.kind, action.reason), []).append(action.cell_id)
    lines = []
    for (kind, reason), found in cells.items():
        ids = list(dict.fromkeys(found))
        more = f" and {len(ids) - _MOST_IDS} more" if len(ids) > _MOST_IDS else ""
        lines.append(f"{_HOLES[kind]}: {', '.join(ids[:_MOST_IDS])}{more}: {reason.removeprefix(f'{kind.value}: ')}")
    over = (ActionKind.GIVE_UP, ActionKind.HOLD)
    ended = {action.outcome for action in actions if action.kind in over and action.outcome is not None}
    return [*lines, f"The same command with retry=[{','.join(sorted(ended))}] tries them again."] if ended else lines
