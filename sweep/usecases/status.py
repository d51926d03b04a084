"""Describes the state of every cell of a run, for ``status`` and for people who watch; reads only."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sweep.core.attempts.attempt import Phase, waits_for
from sweep.core.decisions.admission import HOLES
from sweep.core.decisions.plan import TO_SUBMIT, Action, ActionKind, decide
from sweep.core.encoding.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sweep.core.attempts.history import AttemptState, History
    from sweep.core.cells.axis import AxisValue
    from sweep.core.cells.cell import Cell
    from sweep.core.records.progress import Progress
    from sweep.core.records.sweep_file import SweepFile
    from sweep.ports import RunProgress
    from sweep.usecases.observe import Observation


@dataclass(frozen=True, kw_only=True, slots=True)
class RepeatStatus:
    """Where one repeat of a cell stands.

    Attributes:
        cell: The cell.
        axes: Axis values of its (first) grid point.
        action: What a run would do about it, and why.
        attempt: Its latest attempt; None before the first.
        progress: The step its trainer is at, where it is running and has said.
        flight: Of one in flight: ``queued``, ``running`` (its launcher has begun) or ``ending`` (and ended).
        waits_for: Why it is queued, in the scheduler's word, and what can be done; empty where nobody asked.
        is_recorded: True if the ledger has its end; False if only an observation has it.
    """

    cell: Cell
    axes: Mapping[str, AxisValue]
    action: Action
    attempt: AttemptState | None
    progress: Progress | None
    flight: str
    is_recorded: bool = True
    waits_for: str = ""

    @property
    def state(self) -> str:
        """One word: the action's kind, or while it is in flight :attr:`flight`."""
        return self.flight if self.action.kind is ActionKind.WAIT else self.action.kind.value

    @property
    def seconds_left(self) -> float | None:
        """Seconds that the steps to come take at the present speed; None where it is not known."""
        progress = self.progress
        if progress is None or not progress.tokens_per_s or progress.step >= progress.steps:
            return None
        return (progress.steps - progress.step) * self.cell.tokens_per_step / progress.tokens_per_s


def as_left(action: Action, history: History) -> Action:
    """The last run's reason for not trying a repeat, where it gave one."""
    skipped = history.of(action.cell_id, action.repeat).skipped
    if action.kind not in TO_SUBMIT or skipped is None or skipped[0] not in HOLES:
        return action
    return replace(action, kind=HOLES[skipped[0]], hole=skipped[0], reason=skipped[1])


def statuses(
    content: SweepFile,
    history: History,
    run_dir: RunProgress | None,
    actions: Sequence[Action] | None = None,
    *,
    seen: Observation | None = None,
    is_watched: bool = False,
) -> list[RepeatStatus]:
    """Where every repeat of every cell stands, in the order of the actions, which without any is the grid's.

    Args:
        content: The run's points.
        history: Its attempts.
        run_dir: Where running cells say how far they are; None: that is not asked.
        actions: What a command would do; None: what the history alone says, as the last run left it.
        seen: What the scheduler said, and what was seen of a run that nobody watches.
        is_watched: True if a run is at it now: then what the last one left untried may be tried after all.
    """
    axes: dict[str, Mapping[str, AxisValue]] = {}
    for point in content.points:
        axes.setdefault(point.cell_id, point.axes)
    cells = {name: content.cells[name] for name in axes}
    if actions is None:
        decided = decide(cells, repeats=content.repeats, history=history, rules=content.policy.outcomes)
        actions = decided if is_watched else [as_left(action, history) for action in decided]
    found = [_status(cells[action.cell_id], axes[action.cell_id], action, history, run_dir) for action in actions]
    return found if seen is None else [_as_seen(status, seen) for status in found]


def _as_seen(status: RepeatStatus, seen: Observation) -> RepeatStatus:
    """A status with what an observation adds to it."""
    attempt = status.attempt
    if attempt is None:
        return status
    if attempt.key in seen.unrecorded:
        return replace(status, is_recorded=False)
    report = seen.reports.get(attempt.job_id or "")
    if attempt.in_flight and report is not None and report.phase is Phase.ENDED:
        return replace(status, flight="ending")
    if attempt.in_flight and report is not None:
        return replace(status, waits_for=waits_for(report))
    return status


def _status(
    cell: Cell, axes: Mapping[str, AxisValue], action: Action, history: History, run_dir: RunProgress | None
) -> RepeatStatus:
    attempt = history.of(action.cell_id, action.repeat).last
    progress, flight = None, "queued"
    if run_dir is not None and attempt is not None and attempt.in_flight:
        launched = run_dir.attempt_file(attempt.key)
        if launched is not None:
            flight = "running" if launched.ended_at is None else "ending"
        progress = run_dir.progress(attempt.key) if flight == "running" else None
    return RepeatStatus(cell=cell, axes=axes, action=action, attempt=attempt, progress=progress, flight=flight)


def gpu_hours_spent(history: History) -> float:
    """GPU-hours of all attempts that have ended, failed ones included, as far as their times are known."""
    return sum(one.gpu_seconds or 0.0 for repeat in history.repeats.values() for one in repeat.attempts) / 3600
