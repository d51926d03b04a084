"""Runs preflights before a run, so that a cell that cannot be built or cannot fit is not submitted."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from sweep.adapters.local.preflight_runner import PreflightError, PreflightRunner
from sweep.cli.common import CommandError
from sweep.core.attempts.attempt import AttemptKey
from sweep.core.records.attempt_record import CellFile

if TYPE_CHECKING:
    from rich.console import Console

    from sweep.core.cells.cell import Cell
    from sweep.core.cells.device import Device
    from sweep.core.records.preflight_record import Preflight
    from sweep.usecases.session import Session

_GIB = 1 << 30


def examine(session: Session, err: Console) -> dict[str, tuple[str, str]]:
    """Examine every cell of a session and bar those that will not run; known answers are used again.

    Raises:
        CommandError: If the preflight cannot be run at all.
    """
    origin, order = session.origin, session.order
    path = Path(session.ports.run_dir.path)
    runner = PreflightRunner(path, Path(origin.sources_dir), origin.sources_hash, os.environ)
    ruled_out: dict[str, tuple[str, str]] = {}
    for number, (cell_id, cell) in enumerate(order.cells.items(), 1):
        device = order.devices[cell.device]
        key = AttemptKey(cell_id=cell_id, repeat=1, attempt=1)
        file = CellFile(cell=cell, device=device, key=key, sources_hash=origin.sources_hash)
        for rank in ranks_to_examine(cell):
            is_new = runner.recorded(cell_id, rank) is None
            try:
                found = runner.run(file, rank)
            except PreflightError as error:
                raise CommandError(str(error)) from error
            rejection = rejection_of(found, device)
            if is_new or rejection is not None:
                progress = f"preflight {number} of {len(order.cells)} {cell_id} rank {rank}"
                err.print(f"{progress}: {_message(found, rejection)}", highlight=False, markup=False)
            if rejection is not None:
                ruled_out[cell_id] = rejection
                break
    return ruled_out


def ranks_to_examine(cell: Cell) -> tuple[int, ...]:
    """Ranks that stand for all: one rank without a pipeline; with one, a rank of the first stage and of the last."""
    return (0,) if cell.parallelism.pp == 1 else (0, cell.gpus - 1)


def rejection_of(found: Preflight, device: Device) -> tuple[str, str] | None:
    """The status and reason that the table shows for a cell that will not run; None for one that may."""
    if found.problem:
        return "preflight_failed", found.problem
    shortage = found.shortage(device)
    return ("oom_predicted", f"predicted, not run: {shortage}") if shortage else None


def _message(found: Preflight, rejection: tuple[str, str] | None) -> str:
    if rejection is not None:
        return f"{rejection[0]}: {rejection[1]}"
    peak = "unknown" if found.peak_memory_bytes is None else f"{found.peak_memory_bytes / _GIB:,.2f} GiB"
    return f"can be built; peak of its tensors {'about ' if found.is_overstated else ''}{peak}"
