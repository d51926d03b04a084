"""Sums a run up: the number of repeats in each state, GPU-hours and the budget, and ends that nobody has recorded."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from sweep.core.decisions.admission import gpu_hours_committed
from sweep.core.decisions.plan import TO_SUBMIT, ActionKind
from sweep.core.encoding.message import counted, hours_text
from sweep.usecases.status import gpu_hours_spent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sweep.core.attempts.history import History
    from sweep.usecases.status import RepeatStatus

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
