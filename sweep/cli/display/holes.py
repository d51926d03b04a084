"""Names what has no measurement, and why: combinations that are no cells, and cells at the end of a run."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from sweep.core.decisions.plan import ActionKind
from sweep.core.grids.series import varied_axes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from sweep.core.cells.axis import AxisValue
    from sweep.core.decisions.plan import Action
    from sweep.core.grids.grid import Rejection
    from sweep.core.records.sweep_file import SweepFile

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


_MOST_REJECTIONS = 40


def rejected_by_rule(rejections: Sequence[Rejection]) -> dict[str, int]:
    """The number of combinations that each rule rejects."""
    return dict(Counter(item.rule for item in rejections).most_common())


def print_rejections(console: Console, content: SweepFile) -> None:
    """Print every rejected combination with its rule and reason; if there are many, one example of each rule."""
    if not content.rejections:
        return
    from rich.markup import escape

    axes = varied_axes([*(point.axes for point in content.points), *(item.axes for item in content.rejections)])
    by_rule = rejected_by_rule(content.rejections)
    listed = ", ".join(f"{rule} {count}" for rule, count in by_rule.items())
    total = len(content.points) + len(content.rejections)
    lines = []
    if len(content.rejections) <= _MOST_REJECTIONS:
        for item in content.rejections:
            lines.append(
                f"{escape(_axes_text(item.axes, axes))}  [yellow]{escape(item.rule)}[/yellow]: {escape(item.reason)}"
            )
    else:
        for rule, count in by_rule.items():
            item = next(item for item in content.rejections if item.rule == rule)
            text = escape(f"{count} times, such as {_axes_text(item.axes, axes)}: {item.reason}")
            lines.append(f"[yellow]{escape(rule)}[/yellow] {text}")
        lines.append("(--json lists every one; so does sweep.json once the sweep has been started)")
    title = f"\n[bold]{len(content.rejections)} of {total} combinations are no cells[/bold] ({escape(listed)}):"
    console.print("\n  ".join([title, *lines]), highlight=False, soft_wrap=True)


def _axes_text(axes: Mapping[str, AxisValue], names: Sequence[str]) -> str:
    return " ".join(f"{name}={axes.get(name)}" for name in names if axes.get(name) is not None) or "all"
