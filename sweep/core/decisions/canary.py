"""One cell's end as a proof for others: a model's canary, and out-of-memory inferred from a smaller cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from sweep.core.attempts.attempt import Outcome
from sweep.core.attempts.history import History
from sweep.core.cells.cell import Cell
from sweep.core.decisions.plan import UNDER_WAY, Action, ActionKind


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


def needs_more_memory(cell: Cell, other: Cell) -> bool:
    """True if a cell needs more device memory than another, and no less by any term.

    Both have the same model, layout, device, precision and settings. This one has a larger micro-batch or longer
    sequences, and neither is smaller. A cell of several micro-batches holds gradients while it computes the next one;
    a cell of one micro-batch does not, so it is compared only with another of one. With a pipeline this one has at
    least as many micro-batches, since all may be in flight.
    """
    if _without_sizes(cell) != _without_sizes(other):
        return False
    if cell.micro_batch < other.micro_batch or cell.seq_len < other.seq_len:
        return False
    if (cell.micro_batch, cell.seq_len) == (other.micro_batch, other.seq_len):
        return False
    if cell.parallelism.pp > 1:
        return cell.grad_accum >= other.grad_accum
    return cell.grad_accum > 1 or other.grad_accum == 1


@lru_cache(maxsize=1 << 16)  # the cells of a run are asked for after every change
def _without_sizes(cell: Cell) -> Cell:
    return replace(cell, micro_batch=1, seq_len=1, global_batch=1)


class KnownToRunOut:
    """Cells of a run directory that ran out of device memory.

    One that was measured all the same, in another repeat or later, proves nothing.

    Args:
        cells: Every cell that the run directory knows.
        history: All attempts so far.
    """

    def __init__(self, cells: Mapping[str, Cell], history: History) -> None:
        self._alike: dict[Cell, list[tuple[str, Cell]]] = {}
        ran_out, measured = dict[str, None](), set[str]()
        for (name, _), past in history.repeats.items():
            for attempt in past.attempts:
                if attempt.outcome is Outcome.OOM_DEVICE:
                    ran_out[name] = None
                elif attempt.outcome is Outcome.SUCCEEDED:
                    measured.add(name)
        for name in ran_out:
            if name in cells and name not in measured:
                self._alike.setdefault(_without_sizes(cells[name]), []).append((name, cells[name]))

    def needing_less_than(self, cell: Cell) -> str | None:
        """The id of one that ran out although it needs less by every term; None where there is none."""
        if not self._alike:
            return None
        others = self._alike.get(_without_sizes(cell), ())
        return next((name for name, other in others if needs_more_memory(cell, other)), None)
