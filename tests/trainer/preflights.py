"""Preflights in tests, each in a process of its own."""

from __future__ import annotations

import multiprocessing

from sweep.core.cells.cell import Cell
from sweep.core.records.preflight_record import Preflight

# Each cell in a process of its own, as the command line does it: DTensor remembers the groups of meshes alike. The
# server imports torch once and is forked from.
SERVED = multiprocessing.get_context("forkserver")
SERVED.set_forkserver_preload(["trainer.preflight.fake_rank"])


def _examine(made: Cell, rank: int, is_cuda: bool) -> Preflight:
    from trainer.preflight.fake_rank import examine

    return examine(made, rank=rank, is_cuda=is_cuda)


def examine(made: Cell, *, rank: int = 0, is_cuda: bool = False) -> Preflight:
    with SERVED.Pool(1) as pool:
        return pool.apply(_examine, (made, rank, is_cuda))
