"""What people and scripts see of cells, actions and rejections: tables, lines and one JSON object."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from sweep.core.cells.parallelism import DEGREES
from sweep.core.decisions.admission import gpu_hours_committed
from sweep.core.decisions.plan import TO_SUBMIT, ActionKind
from sweep.core.encoding.message import counted, hours
from sweep.core.grids.series import varied_axes
from sweep.usecases.status import gpu_hours_spent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console
    from rich.table import Column, Table

    from sweep.core.attempts.history import History
    from sweep.core.cells.axis import AxisValue
    from sweep.core.cells.cell import Cell
    from sweep.core.grids.grid import Rejection
    from sweep.core.records.progress import Progress
    from sweep.core.records.sweep_file import SweepFile
    from sweep.usecases.look import Look
    from sweep.usecases.status import RepeatStatus

_MOST_REJECTIONS = 40
_LEAST_WHY = 20  # columns of a terminal for the reason
_GAP = 2  # between two columns
_TO_COME = (*TO_SUBMIT, ActionKind.LATER)
_STYLES = {
    "done": "green",
    "explained": "cyan",
    "running": "bold blue",
    "queued": "blue",
    "submit": "bold",
    "retry": "yellow",
    "cancelled": "yellow",
    "give_up": "red",
    "paused": "red",
    "over_budget": "red",
}


def as_json(
    content: SweepFile,
    statuses: Sequence[RepeatStatus],
    totals: Mapping[str, object],
    *,
    walltime_min: int | None = None,
) -> dict[str, object]:
    """The object that ``--json`` prints."""
    counts = Counter(status.state for status in statuses)
    return {
        "grid": content.grid,
        "cluster": content.cluster,
        "scale": content.scale,
        "cells": [_cell_json(status, walltime_min) for status in statuses],
        "rejections": [
            {"axes": dict(item.axes), "rule": item.rule, "reason": item.reason} for item in content.rejections
        ],
        "totals": {
            "cells": len({status.action.cell_id for status in statuses}),
            "repeats": len(statuses),
            "rejections": len(content.rejections),
            "rejected_by_rule": rejected_by_rule(content.rejections),
            **{state: counts[state] for state in sorted(counts)},
            **totals,
        },
    }


def _cell_json(status: RepeatStatus, walltime_min: int | None) -> dict[str, object]:
    action, attempt, progress = status.action, status.attempt, status.progress
    cell = status.cell
    return {
        "cell": action.cell_id,
        "repeat": action.repeat,
        "axes": dict(status.axes),
        "gpus": cell.gpus,
        **{name: getattr(cell.parallelism, name) for name in DEGREES},
        "global_batch": cell.global_batch,
        "micro_batch": cell.micro_batch,
        "state": status.state,
        "action": action.kind.value,
        "reason": action.reason,
        "waits_for": status.waits_for or None,
        "recorded": status.is_recorded,
        "attempt": action.attempt,
        "outcome": None if action.outcome is None else action.outcome.value,
        "job": None if attempt is None else attempt.job_id,
        "step": None if progress is None else progress.step,
        "steps": cell.trainer.steps,
        "tokens_per_s": None if progress is None else progress.tokens_per_s,
        "seconds_left": status.seconds_left,
        "gpu_hours_at_most": None if walltime_min is None else cell.gpus * walltime_min / 60,
    }


def rejected_by_rule(rejections: Sequence[Rejection]) -> dict[str, int]:
    """How many combinations each rule rejected."""
    return dict(Counter(item.rule for item in rejections).most_common())


def gpu_hours_to_submit(statuses: Sequence[RepeatStatus], walltime_min: int) -> float:
    """Walltime x GPUs of everything that would be submitted: an upper bound."""
    new = (status for status in statuses if status.action.kind in _TO_COME)
    return sum(status.cell.gpus * (status.action.walltime_min or walltime_min) for status in new) / 60


def look_notes(look: Look) -> list[str]:
    """What a look at a run that nobody watches found, beside what its ledger says."""
    notes = []
    if look.problem:
        notes.append(f"the scheduler cannot be asked ({look.problem}); jobs in flight are shown as the run left them")
    if look.unrecorded:
        count = len(look.unrecorded)
        notes.append(
            f"{counted(count, 'attempt')} {'has' if count == 1 else 'have'} ended since the run was left, "
            "shown as it looks now; the sweep's command records it, retries what a retry can cure, and makes the tables"
        )
    return notes


def budget_totals(budget_gpu_hours: float | None, history: History) -> dict[str, float | None]:
    """GPU-hours for ``--json``: spent, reserved, both together, and where there is a budget it and what is left."""
    spent, committed = gpu_hours_spent(history), gpu_hours_committed(history)
    return {
        "gpu_hours_spent": spent,
        "gpu_hours_reserved": max(0.0, committed - spent),
        "gpu_hours_committed": committed,
        "budget_gpu_hours": budget_gpu_hours,
        "budget_gpu_hours_left": None if budget_gpu_hours is None else budget_gpu_hours - committed,
    }


def budget_notes(budget_gpu_hours: float | None, history: History) -> list[str]:
    """Where a budget is set: what of it is spent, reserved and left."""
    totals = budget_totals(budget_gpu_hours, history)
    left = totals["budget_gpu_hours_left"]
    if left is None:
        return []
    return [
        f"budget of {hours(budget_gpu_hours)} GPU-hours: {hours(totals['gpu_hours_spent'])} spent, "
        f"{hours(totals['gpu_hours_reserved'])} reserved, {hours(left)} left"
    ]


def print_cells(
    console: Console, content: SweepFile, statuses: Sequence[RepeatStatus], *, walltime_min: int | None = None
) -> None:
    """One row for every repeat of every cell: its varied axes, what is to be done or how it stands, and why."""
    from rich.table import Table
    from rich.text import Text

    axes = varied_axes([point.axes for point in content.points])
    axes = tuple(name for name in axes if name not in ("dp_shard",))
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("cell")
    if content.repeats > 1:
        table.add_column("repeat", justify="right")
    for name in axes:
        table.add_column(name, justify="right")
    table.add_column("GPUs", justify="right")
    table.add_column("layout")
    table.add_column("global batch", justify="right")
    table.add_column("state")
    if walltime_min is not None:
        table.add_column("GPU-h at most", justify="right")
    table.add_column("why")
    for status in statuses:
        action, cell = status.action, status.cell
        row = [action.cell_id, *([str(action.repeat)] if content.repeats > 1 else [])]
        row += [_shown(status.axes.get(name)) for name in axes]
        row += [str(cell.gpus), cell.parallelism.equation(), str(cell.global_batch)]
        cells: list[Text | str] = [*row, Text(status.state, style=_STYLES.get(status.state, ""))]
        if walltime_min is not None:
            at_most = cell.gpus * (action.walltime_min or walltime_min) / 60
            cells.append(f"{at_most:,.1f}" if action.kind in _TO_COME else "")
        table.add_row(*cells, Text(_why(status)))
    _print_whole(console, table)


def _print_whole(console: Console, table: Table) -> None:
    """Print a table of which nothing is left out or cut: where it is too wide, headers and the last column fold."""
    *others, last = table.columns
    gaps = _GAP * len(others)

    def width(column: Column, header: Sequence[str]) -> int:
        return max(len(text) for text in [*map(str, column._cells), *header])

    if sum(width(column, [str(column.header)]) for column in table.columns) + gaps > console.width:
        for column in others:
            column.width = width(column, str(column.header).split())
        room = console.width - gaps - sum(column.width or 0 for column in others)
        last.width = min(width(last, [str(last.header)]), max(room, _LEAST_WHY))
        # Where even that is more than the terminal has, it breaks the lines.
        table.width = gaps + sum(column.width or 0 for column in table.columns)
    console.print(table, crop=False)


def _why(status: RepeatStatus) -> str:
    if status.waits_for:
        return f"{status.action.reason}: {status.waits_for}"
    if status.progress is None:
        return status.action.reason
    return f"{status.action.reason}; {progress_text(status, status.progress)}"


def describe(cell: Cell) -> str:
    """A cell by what it is, for people."""
    nodes = counted(cell.nodes, "node")
    return f"{cell.model.name}, {nodes} x {cell.gpus_per_node}, {cell.parallelism.equation()}, seq {cell.seq_len}"


def progress_text(status: RepeatStatus, progress: Progress) -> str:
    """The step that a running cell is at, its speed and the time its other steps will take, as far as it has said."""
    text = f"step {progress.step} of {progress.steps}"
    if progress.tokens_per_s is not None:
        text += f", {progress.tokens_per_s:,.0f} tokens/s"
    if status.seconds_left is not None:
        text += f", about {_duration(status.seconds_left)} left"
    return text


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _shown(value: AxisValue) -> str:
    return "" if value is None else str(value)


def print_rejections(console: Console, content: SweepFile) -> None:
    """Every rejected combination with its rule and reason; many of them by rule, with an example of each."""
    from rich.markup import escape

    if not content.rejections:
        return
    axes = varied_axes([*(point.axes for point in content.points), *(item.axes for item in content.rejections)])
    by_rule = rejected_by_rule(content.rejections)
    listed = ", ".join(f"{rule} {count}" for rule, count in by_rule.items())
    total = len(content.points) + len(content.rejections)
    lines = []
    if len(content.rejections) <= _MOST_REJECTIONS:
        for item in content.rejections:
            lines.append(f"{escape(_axes_text(item.axes, axes))}  [yellow]{item.rule}[/yellow]: {escape(item.reason)}")
    else:
        for rule, count in by_rule.items():
            item = next(item for item in content.rejections if item.rule == rule)
            text = escape(f"{count} times, such as {_axes_text(item.axes, axes)}: {item.reason}")
            lines.append(f"[yellow]{rule}[/yellow] {text}")
        lines.append("(--json lists every one; so does sweep.json once the sweep has been started)")
    title = f"\n[bold]{len(content.rejections)} of {total} combinations are no cells[/bold] ({listed}):"
    console.print("\n  ".join([title, *lines]), highlight=False, soft_wrap=True)


def _axes_text(axes: Mapping[str, AxisValue], names: Sequence[str]) -> str:
    return " ".join(f"{name}={_shown(axes.get(name))}" for name in names if axes.get(name) is not None) or "all"


def totals_line(statuses: Sequence[RepeatStatus]) -> str:
    """How many repeats are in each state, in words."""
    counts = Counter(status.state for status in statuses)
    words = {
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
    parts = [f"{counts[state]} {word}" for state, word in words.items() if counts[state]]
    return f"{counted(len(statuses), 'repeat')}: {', '.join(parts)}" if parts else "no cells"
