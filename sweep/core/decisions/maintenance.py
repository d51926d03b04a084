"""Walltimes cut so that jobs can start before a maintenance, where what was measured says that they fit.

Slurm starts no job whose walltime reaches into a maintenance reservation, however short it would really be.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Mapping, Sequence
from dataclasses import replace

from sweep.core.attempts.attempt import Outcome
from sweep.core.attempts.history import History
from sweep.core.cells.cell import Cell
from sweep.core.cells.model_shape import ModelShape
from sweep.core.decisions.plan import TO_SUBMIT, Action
from sweep.core.encoding.frozen import dataclass

_START_UP_MIN = 2
_OF_ITSELF, _OF_ANOTHER = 1.5, 3.0
"""Safety factors: another cell may be less efficient at the same work (more communication, recomputation)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """Minutes that a cell will hardly exceed, start-up included, and the basis of that, for people."""

    minutes: int
    basis: str


def before_maintenance(
    actions: Sequence[Action], cells: Mapping[str, Cell], history: History, *, left_s: float
) -> list[Action]:
    """The actions, walltimes cut to the time that is left where that is known to be enough.

    Args:
        actions: One for every repeat of every cell.
        cells: Every cell that the run directory knows.
        history: All attempts so far.
        left_s: Seconds until the maintenance begins.
    """
    left_min = int(left_s / 60) - _START_UP_MIN
    measured = Measured(cells, history)
    return [_cut(action, left_min, cells, history, measured) for action in actions]


def _cut(action: Action, left_min: int, cells: Mapping[str, Cell], history: History, measured: Measured) -> Action:
    if action.kind not in TO_SUBMIT or not 0 < left_min < action.walltime_min:
        return action
    found = measured.estimate(action.cell_id, cells[action.cell_id])
    past = history.of(action.cell_id, action.repeat)
    has_timed_out = any(attempt.outcome is Outcome.TIMEOUT for attempt in past.attempts)
    is_longer = has_timed_out and action.cell_id not in measured.minutes
    if found is None or is_longer or found.minutes > left_min:
        return action
    cut = f"walltime cut from {action.walltime_min} to {left_min} min to end before a maintenance ({found.basis})"
    return replace(action, walltime_min=left_min, is_cut=True, reason=f"{action.reason}; {cut}")


class Measured:
    """The times that the measured cells of a run directory took.

    Args:
        cells: Every cell that it knows.
        history: All attempts so far.

    Attributes:
        minutes: Of the longest measured attempt at each cell.
    """

    def __init__(self, cells: Mapping[str, Cell], history: History) -> None:
        self.minutes = _minutes_taken(history)
        longest: dict[tuple[ModelShape, str], dict[float, tuple[float, str]]] = {}
        for name, minutes in self.minutes.items():
            if name in cells:
                kind = (cells[name].model, cells[name].device)
                by_work, work = longest.setdefault(kind, {}), _work(cells[name])
                by_work[work] = max((minutes, name), by_work.get(work, (0.0, "")))
        self._alike = {
            kind: sorted((work, minutes, name) for work, (minutes, name) in by_work.items())
            for kind, by_work in longest.items()
        }

    def estimate(self, cell_id: str, cell: Cell) -> Estimate | None:
        """A time that a cell will hardly exceed; None where neither it nor a cell of its model and device was measured.

        Of others the one with the nearest work for each GPU (tokens of all steps), scaled by the ratio, but never down.
        """
        own = self.minutes.get(cell_id)
        if own is not None:
            return Estimate(minutes=math.ceil(own * _OF_ITSELF) + _START_UP_MIN, basis=f"it took {own:.1f} min before")
        others, work = self._alike.get((cell.model, cell.device), []), _work(cell)
        at = bisect(others, (work,))
        near = others[max(0, at - 1) : at + 1]
        if not near:
            return None
        nearest, taken, name = min(near, key=lambda other: abs(math.log(work / other[0])))
        ratio = max(1.0, work / nearest)
        minutes = math.ceil(taken * ratio * _OF_ANOTHER) + _START_UP_MIN
        basis = f"estimated: {name} took {taken:.1f} min, {ratio:.1f} times its work per GPU at most"
        return Estimate(minutes=minutes, basis=basis)


def _minutes_taken(history: History) -> dict[str, float]:
    taken: dict[str, float] = {}
    for (cell_id, _), repeat in history.repeats.items():
        for attempt in repeat.attempts:
            if attempt.outcome is Outcome.SUCCEEDED and attempt.gpu_seconds is not None and attempt.gpus:
                minutes = attempt.gpu_seconds / attempt.gpus / 60
                taken[cell_id] = max(minutes, taken.get(cell_id, 0.0))
    return taken


def _work(cell: Cell) -> float:
    """Tokens that each GPU has to do with."""
    return cell.tokens_per_step * cell.trainer.steps / cell.gpus
