"""Infers that a cell runs out of device memory from another that did: only where every term is at least as large."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from sweep.core.attempts.attempt import Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sweep.core.attempts.history import History
    from sweep.core.cells.cell import Cell


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
