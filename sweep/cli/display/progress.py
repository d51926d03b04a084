"""Shows a run to a person who watches: a line for each event, and on a terminal a live summary below them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from sweep.cli.display.cells_table import describe, progress_text
from sweep.cli.display.summary import totals_line
from sweep.core.attempts.attempt import AttemptKey, Outcome
from sweep.core.decisions.plan import ActionKind
from sweep.core.encoding.message import hours_text, visible
from sweep.usecases.status import RepeatStatus, gpu_hours_spent, statuses

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rich.console import Console
    from rich.live import Live

    from sweep.core.attempts.verdict import Verdict
    from sweep.core.cells.cell import Cell
    from sweep.core.jobs.submission import Submission
    from sweep.core.records.sweep_file import SweepFile
    from sweep.usecases.orchestrate import Orchestrator, Snapshot

_LINE_EVERY_S = 10.0


class ConsoleReporter:
    """Implements :class:`sweep.usecases.session.Reporter` on a console.

    Args:
        console: Standard error.
        cells: The run's cells, which lines describe by model, nodes and layout.
        now: The clock for the time before each line.
    """

    def __init__(self, console: Console, cells: Mapping[str, Cell], now: Callable[[], float] = time.time) -> None:
        """Print nothing yet."""
        self._console = console
        self._cells = cells
        self._now = now

    def submitted(self, submission: Submission, jobs: tuple[str, ...]) -> None:
        """Print that a submission has become jobs."""
        shape = f"{submission.nodes} node{'s' if submission.nodes > 1 else ''} x {submission.gpus_per_node}"
        shown = jobs[0] if len(jobs) == 1 else f"{jobs[0]} .. {jobs[-1]}"
        cells = ", ".join(key.cell_id for key in submission.tasks[:4]) + (" ..." if len(submission.tasks) > 4 else "")
        self._line("[bold]submitted[/bold]", f" {cells} on {shape} as {shown}")

    def ended(self, key: AttemptKey, verdict: Verdict) -> None:
        """Print that an attempt is over."""
        style = "green" if verdict.outcome is Outcome.SUCCEEDED else "red"
        cell = self._cells.get(key.cell_id)
        what = "" if cell is None else f" ({describe(cell)})"
        reason = f": {verdict.reason}" if verdict.reason else ""
        self._line(f"[{style}]{verdict.outcome}[/{style}]", f" {key}{what}{reason}")

    def note(self, text: str) -> None:
        """Print a note."""
        self._line("[yellow]note:[/yellow]", f" {text}")

    def _line(self, markup: str, plain: str = "") -> None:
        from rich.markup import escape

        stamp = time.strftime("%H:%M:%S", time.localtime(self._now()))
        self._console.print(f"[dim]{stamp}[/dim] {markup}{escape(plain)}", highlight=False, soft_wrap=True)


class Watching:
    """Shows the state of a run while it is watched: live on a terminal, else one line at most every ten seconds.

    Args:
        console: Standard error.
        content: The run's points.
        orchestrator: Watches the run.
    """

    def __init__(self, console: Console, content: SweepFile, orchestrator: Orchestrator) -> None:
        """Show nothing yet."""
        self._console = console
        self._content = content
        self._executor, self._ports = orchestrator.executor, orchestrator.ports
        self._live: Live | None = None
        self._last_line = ""
        self._last_at = 0.0

    def __enter__(self) -> Watching:
        """Begin the live part, where the console is a terminal."""
        if self._console.is_terminal:
            from rich.live import Live

            self._live = Live(console=self._console, refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the live part."""
        if self._live is not None:
            self._live.stop()

    def show(self, snapshot: Snapshot) -> None:
        """Show the state of the run."""
        if snapshot.is_over:
            return
        listed = statuses(self._content, self._executor.history, self._ports.run_dir, snapshot.actions)
        running = [status for status in listed if status.state == "running"]
        if self._live is not None:
            from rich.text import Text

            lines = [self._summary(listed), *(_running_line(status) for status in running[:20])]
            if len(running) > 20:
                lines.append(f"  ... and {len(running) - 20} more")
            lines += _later_lines(snapshot, most=5)
            self._live.update(Text(visible("\n".join(lines))))
            return
        lines = [self._summary(listed), *map(_running_line, running[:3]), *_later_lines(snapshot, most=1)]
        line = "; ".join(line.strip() for line in lines)
        now = self._ports.clock.monotonic()
        if line != self._last_line and now - self._last_at >= _LINE_EVERY_S:
            self._console.print(line, highlight=False, soft_wrap=True, markup=False)
            self._last_line, self._last_at = line, now

    def _summary(self, listed: list[RepeatStatus]) -> str:
        spent = f"{hours_text(gpu_hours_spent(self._executor.history))} GPU-hours spent"
        away = self._executor.contact.describe()
        return "; ".join([totals_line(listed), spent, *([away] if away else [])])


def _later_lines(snapshot: Snapshot, *, most: int) -> list[str]:
    """The waiting repeats with their reasons; the next retries first."""
    later = [action for action in snapshot.actions if action.kind is ActionKind.LATER]
    later.sort(key=lambda action: action.outcome is None)
    return [f"  {action.cell_id} later: {action.reason}" for action in later[:most]]


def _running_line(status: RepeatStatus) -> str:
    where = f"  {status.action.cell_id} {describe(status.cell)}"
    return f"{where}: {'starting' if status.progress is None else progress_text(status, status.progress)}"
