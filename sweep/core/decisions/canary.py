"""The canary: the smallest cell of each model that can be tried goes first, and tells what becomes of the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sweep.core.attempts.attempt import Outcome
from sweep.core.decisions.plan import UNDER_WAY, Action, ActionKind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sweep.core.attempts.history import History
    from sweep.core.cells.cell import Cell


def canaries(actions: Sequence[Action], cells: Mapping[str, Cell], history: History) -> dict[str, Action]:
    """By model: the action about its smallest cell, or about one that is measured already.

    A cell that is not tried at all (ruled out, inferred, over budget, cancelled before submission) proves nothing;
    then the next one goes first.
    """
    chosen: dict[str, tuple[tuple[int, ...], Action]] = {}
    for action in actions:
        is_held = action.kind is ActionKind.HOLD and history.of(action.cell_id, action.repeat).last is None
        if action.hole or is_held:
            continue
        cell = cells[action.cell_id]
        # Measured ones come first: they tell no more.
        is_open = action.kind is not ActionKind.DONE
        size = (is_open, cell.gpus, cell.tokens_per_step, cell.seq_len, action.repeat)
        name = cell.model.name
        if name not in chosen or size < chosen[name][0]:
            chosen[name] = (size, action)
    return {name: action for name, (_, action) in chosen.items()}


def canary_is_over(canary: Action) -> bool:
    """True if a canary teaches nothing more for now."""
    return canary.kind not in UNDER_WAY


def why_canary_pauses(canary: Action) -> str | None:
    """Why the other cells of its model stay at home after a canary; None where they may go.

    They go once it was measured, or ran out of device memory: a finding, which other layouts need not share. What ends
    a smallest cell otherwise, and its retries, is hardly its own: a wrong flag or path, a node image, a walltime.
    """
    start = f"paused: the smallest cell of its model, {canary.cell_id},"
    either = "policy.canary=false goes on regardless"
    if canary.kind is ActionKind.GIVE_UP:
        return (
            f"{start} was given up first ({canary.reason}). Mend it, then run again with retry=[{canary.outcome}]; "
            f"{either}"
        )
    if canary.kind is ActionKind.HOLD:
        return f"{start} was cancelled before it was measured. retry=[CANCELLED] tries it again; {either}"
    if canary.outcome is Outcome.OOM_HOST:
        return (
            f"{start} ran out of host memory ({canary.reason}). Most of that is taken by every process whatever its "
            "cell: imports, the device's context, pinned buffers. Ask for more (cluster.slurm.mem=0: all of a node's), "
            f"then run again with retry=[OOM_HOST]; {either}"
        )
    return None
