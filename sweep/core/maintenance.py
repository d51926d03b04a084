"""Walltimes cut so that jobs can start before a maintenance, where what was measured says that they fit.

Slurm starts no job whose walltime reaches into a maintenance reservation, however short it would really be.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sweep.core.attempt import Outcome
from sweep.core.plan import TO_SUBMIT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sweep.core.cell import Cell
    from sweep.core.history import History
    from sweep.core.plan import Action

_START_UP_MIN = 2
_OF_ITSELF, _OF_ANOTHER = 1.5, 3.0
"""Safety factors: another cell may be less efficient at the same work (more communication, recomputation)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """Minutes that a cell will hardly exceed, start-up included, and what that rests on, in words."""

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
    taken = minutes_taken(history)
    return [_cut(action, left_min, cells, history, taken) for action in actions]


def _cut(
    action: Action, left_min: int, cells: Mapping[str, Cell], history: History, taken: Mapping[str, float]
) -> Action:
    if action.kind not in TO_SUBMIT or not 0 < left_min < action.walltime_min:
        return action
    found = estimate(action.cell_id, cells, taken)
    is_longer = history.of(action.cell_id, action.repeat).ended(Outcome.TIMEOUT) and action.cell_id not in taken
    if found is None or is_longer or found.minutes > left_min:
        return action
    cut = f"walltime cut from {action.walltime_min} to {left_min} min to end before a maintenance ({found.basis})"
    return replace(action, walltime_min=left_min, reason=f"{action.reason}; {cut}")


def minutes_taken(history: History) -> dict[str, float]:
    """Minutes of the longest measured attempt at each cell."""
    taken: dict[str, float] = {}
    for (cell_id, _), repeat in history.repeats.items():
        for attempt in repeat.attempts:
            if attempt.outcome is Outcome.SUCCEEDED and attempt.gpu_seconds is not None and attempt.gpus:
                minutes = attempt.gpu_seconds / attempt.gpus / 60
                taken[cell_id] = max(minutes, taken.get(cell_id, 0.0))
    return taken


def estimate(cell_id: str, cells: Mapping[str, Cell], taken: Mapping[str, float]) -> Estimate | None:
    """What a cell will hardly exceed; None where neither it nor one of its model on its kind of device was measured.

    Of others the one with the nearest work for each GPU (tokens of all steps), scaled by the ratio, but never down.
    """
    cell = cells[cell_id]
    if cell_id in taken:
        minutes = math.ceil(taken[cell_id] * _OF_ITSELF) + _START_UP_MIN
        return Estimate(minutes=minutes, basis=f"it took {taken[cell_id]:.1f} min before")
    work = _work(cell)
    others = {
        name: max(1.0, work / _work(cells[name]))
        for name in taken
        if name in cells and (cells[name].model, cells[name].device) == (cell.model, cell.device)
    }
    if not others:
        return None
    name = min(others, key=lambda other: (abs(math.log(work / _work(cells[other]))), -taken[other], other))
    minutes = math.ceil(taken[name] * others[name] * _OF_ANOTHER) + _START_UP_MIN
    basis = f"estimated: {name} took {taken[name]:.1f} min, {others[name]:.1f} times its work per GPU at most"
    return Estimate(minutes=minutes, basis=basis)


def _work(cell: Cell) -> float:
    """Tokens that each GPU has to do with."""
    return cell.tokens_per_step * cell.trainer.steps / cell.gpus
