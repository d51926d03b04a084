"""Prints a table with a row for every repeat of every cell, and describes a cell and its progress in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sweep.cli.console import PlainConsole
from sweep.core.decisions.plan import TO_SUBMIT, ActionKind
from sweep.core.encoding.message import counted, visible_line
from sweep.core.grids.series import varied_axes

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from rich.console import Console
    from rich.table import Column, Table

    from sweep.core.cells.cell import Cell
    from sweep.core.records.progress import Progress
    from sweep.core.records.sweep_file import SweepFile
    from sweep.usecases.status import RepeatStatus

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


def print_cells(
    console: Console | PlainConsole,
    content: SweepFile,
    statuses: Sequence[RepeatStatus],
    *,
    walltime_min: int | None = None,
) -> None:
    """Print one row for every repeat of every cell: its varied axes, its action or state, and why."""
    axes = [name for name in varied_axes([point.axes for point in content.points]) if name != "dp_shard"]
    repeat = ["repeat"] if content.repeats > 1 else []
    cost = [] if walltime_min is None else ["GPU-h at most"]
    header = ["cell", *repeat, *axes, "GPUs", "layout", "global batch", "state", *cost, "why"]
    rows = []
    for status in statuses:
        action, cell = status.action, status.cell
        row = [
            action.cell_id,
            *([str(action.repeat)] if repeat else []),
            *("" if (value := status.axes.get(name)) is None else str(value) for name in axes),
        ]
        row += [str(cell.gpus), cell.parallelism.equation(), str(cell.global_batch), status.state]
        if walltime_min is not None:
            at_most = cell.gpus * (action.walltime_min or walltime_min) / 60
            row.append(f"{at_most:,.1f}" if action.kind in _TO_COME else "")
        rows.append([*row, _why(status)])
    header, *rows = ([visible_line(cell) for cell in row] for row in (header, *rows))
    right = {*repeat, *axes, "GPUs", "global batch", *cost}
    if isinstance(console, PlainConsole):
        console.print_table(header, rows, right=right)
    else:
        _print_folded(console, header, rows, right)


def _print_folded(
    console: Console, header: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[str]
) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in header:
        table.add_column(name, justify="right" if name in right else "left")
    for row in rows:
        styles = [_STYLES.get(cell, "") if name == "state" else "" for name, cell in zip(header, row, strict=True)]
        table.add_row(*map(Text, row, styles))
    _print_whole(console, table)


def _print_whole(console: Console, table: Table) -> None:
    """Print a table in full: where it is too wide, headers and the last column are folded."""
    *others, last = table.columns
    gaps = _GAP * len(others)

    def width(column: Column, header: Sequence[str]) -> int:
        return max(len(text) for text in [*map(str, column._cells), *header])

    if sum(width(column, [str(column.header)]) for column in table.columns) + gaps > console.width:
        for column in others:
            column.width = width(column, str(column.header).split())
        room = console.width - gaps - sum(column.width or 0 for column in others)
        last.width = min(width(last, [str(last.header)]), max(room, _LEAST_WHY))
        # Where even that is too wide, the terminal breaks the lines.
        table.width = gaps + sum(column.width or 0 for column in table.columns)
    console.print(table, crop=False)


def _why(status: RepeatStatus) -> str:
    if status.waits_for:
        return f"{status.action.reason}: {status.waits_for}"
    if status.progress is None:
        return status.action.reason
    return f"{status.action.reason}; {progress_text(status, status.progress)}"


def describe(cell: Cell) -> str:
    """A cell in words: model, nodes, layout, sequence length."""
    nodes = counted(cell.nodes, "node")
    return f"{cell.model.name}, {nodes} x {cell.gpus_per_node}, {cell.parallelism.equation()}, seq {cell.seq_len}"


def progress_text(status: RepeatStatus, progress: Progress) -> str:
    """The step of a running cell, and its speed and the time that is left where they are known."""
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
