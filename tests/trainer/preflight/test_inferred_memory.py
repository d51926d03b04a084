"""Whenever a cell is inferred to run out of memory, its own preflight peaks no lower than that of the one that did."""

from __future__ import annotations

import itertools
import multiprocessing

import pytest

from sweep.core.cells.cell import Cell, Checkpointing
from sweep.core.cells.model_shape import ModelShape
from sweep.core.cells.parallelism import Parallelism, Schedule
from sweep.core.decisions.canary import needs_more_memory
from tests.trainer.cells import cell

pytestmark = pytest.mark.slow

SHAPE = ModelShape(name="even", n_layers=2, hidden=64, n_heads=4, n_kv_heads=2, ffn_hidden=96, vocab_size=128)
SHARDED = Parallelism(dp_shard=2)
SETTINGS: dict[str, dict[str, object]] = {
    "fsdp": {"parallelism": SHARDED},
    "ddp, recomputed": {
        "parallelism": Parallelism(dp_replicate=2),
        "activation_checkpointing": Checkpointing.FULL,
    },
    "1f1b": {"parallelism": Parallelism(pp=2, schedule=Schedule.ONE_F_ONE_B)},
}
"""Three that differ; it held for tp, cp, gpipe, zbv, and bf16 with resharding too, at three counts of micro-batches."""
LENGTHS, MICRO_BATCHES = (32, 64), (1, 2)
SERVED = multiprocessing.get_context("forkserver")
SERVED.set_forkserver_preload(["trainer.preflight.fake_rank"])


def _peak(made: Cell) -> int:
    """Of the rank that needs most: which of them ran out, nobody asks."""
    from trainer.preflight.fake_rank import examine

    ranks = range(made.gpus if made.parallelism.pp > 1 else 1)
    found = [examine(made, rank=rank, is_cuda=True) for rank in ranks]
    assert not any(one.problem for one in found), found
    return max(one.peak_memory_bytes or 0 for one in found)


def _sizes(settings: dict[str, object]) -> list[Cell]:
    layout = settings["parallelism"]
    assert isinstance(layout, Parallelism)
    counts = (1, 2) if layout.pp == 1 else (2, 4)
    return [
        cell(
            gpus=layout.world_size,
            model=SHAPE,
            seq_len=length,
            micro_batch=micro,
            global_batch=micro * count * layout.data_ranks,
            **settings,
        )
        for length, micro, count in itertools.product(LENGTHS, MICRO_BATCHES, counts)
    ]


@pytest.mark.parametrize("name", SETTINGS)
def test_what_is_inferred_peaks_no_lower_than_what_ran_out(name: str) -> None:
    cells = _sizes(SETTINGS[name])
    with SERVED.Pool(1) as pool:
        peaks = dict(zip(cells, pool.map(_peak, cells, chunksize=len(cells)), strict=True))
    pairs = [(one, other) for one in cells for other in cells if needs_more_memory(one, other)]
    assert len(pairs) >= len(cells)
    for one, other in pairs:
        assert peaks[one] >= peaks[other], (one, other)
