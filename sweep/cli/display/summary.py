"""Sums a run up: repeats by state, GPU-hours, the budget, and the reason of every hole and rejection."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from sweep.core.decisions.admission import gpu_hours_committed
from sweep.core.decisions.plan import TO_SUBMIT, Action, ActionKind
from sweep.core.encoding.message import counted, hours_text
from sweep.core.grids.series import varied_axes
from sweep.usecases.status import RepeatStatus, gpu_hours_spent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from sweep.core.attempts.history import History
    from sweep.core.cells.axis import AxisValue
    from sweep.core.grids.grid import Rejection
    from sweep.core.records.sweep_file import SweepFile

_TO_COME = (*TO_SUBMIT, ActionKind.LATER)


def totals_line(statuses: Sequence[RepeatStatus]) -> str:
    """The number of repeats in each state."""
    counts = Counter(status.state for status in statuses)
    labels = {
        "done": "measured",
        "explained": "explained",
        "running": "running",
        "ending": "ending",
        "queued": "queued",
        ActionKind.SUBMIT.value: "to be submitted",
        ActionKind.RETRY.value: "to be retried",
        ActionKind.LATER.value: "to come later",
        ActionKind.HOLD.value: "cancelled",
        ActionKind.PAUSED.value: "paused",
        ActionKind.OVER_BUDGET.value: "over budget",
        ActionKind.GIVE_UP.value: "given up",
    }
    parts = [f"{counts[state]} {label}" for state, label in labels.items() if counts[state]]
    return f"{counted(len(statuses), 'repeat')}: {', '.join(parts)}" if parts else "no cells"


def order_text(seed: int | None) -> str:
    """The order in which the rows of a plan are submitted."""
    order = "as the grid has them" if seed is None else f"in rounds, shuffled with the seed {seed} (order=grid: not)"
    return f"Rows stand in the order of submission: {order}."


def gpu_hours_to_submit(statuses: Sequence[RepeatStatus], walltime_min: int) -> float:
    """An upper bound on GPU-hours: walltime x GPUs of everything that would be submitted."""
    new = (status for status in statuses if status.action.kind in _TO_COME)
    return sum(status.cell.gpus * (status.action.walltime_min or walltime_min) for status in new) / 60


def budget_totals(budget_gpu_hours: float | None, history: History) -> dict[str, float | None]:
    """GPU-hours for ``--json``: spent, reserved, their sum, the budget and the rest of it (None without one)."""
    spent, committed = gpu_hours_spent(history), gpu_hours_committed(history)
    return {
        "gpu_hours_spent": spent,
        "gpu_hours_reserved": max(0.0, committed - spent),
        "gpu_hours_committed": committed,
        "budget_gpu_hours": budget_gpu_hours,
        "budget_gpu_hours_left": None if budget_gpu_hours is None else budget_gpu_hours - committed,
    }


def budget_notes(budget_gpu_hours: float | None, history: History) -> list[str]:
    """A note on a budget: GPU-hours spent, reserved and left; none where no budget is set."""
    totals = budget_totals(budget_gpu_hours, history)
    left = totals["budget_gpu_hours_left"]
    if left is None:
        return []
    return [
        f"budget of {hours_text(budget_gpu_hours)} GPU-hours: {hours_text(totals['gpu_hours_spent'])} spent, "
        f"{hours_text(totals['gpu_hours_reserved'])} reserved, {hours_text(left)} left"
    ]


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
