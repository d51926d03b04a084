"""Driver for torchrun: steps of several cells in which no tensor's value may be read on the host (no test).

torchrun ... tests/trainer/programs/no_host_sync.py CELLS.json OUT.json
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist

from sweep.core.cells.cell import Cell
from sweep.core.encoding.codec import build
from trainer.device import devices
from trainer.failure.process_exit import leave
from trainer.process.ranks import Ranks
from trainer.training import session
from trainer.training.loop import Trainee
from trainer.training.optimizer import ShardedAdamW

# On a GPU each of these waits for the device.
READS = ("item", "tolist", "__float__", "__int__", "__bool__", "__index__", "cpu", "numpy")


def _forbidden(*_arguments: object, **_named: object) -> NoReturn:
    raise AssertionError("a step must not wait for the device")


@contextlib.contextmanager
def no_reads() -> Iterator[None]:
    originals = {name: getattr(torch.Tensor, name) for name in READS}
    for name in READS:
        setattr(torch.Tensor, name, _forbidden)
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(torch.Tensor, name, original)


def norms(cell: Cell, ranks: Ranks) -> list[float]:
    """Gradient norms of three steps, all but the first without reads on the host."""
    compute = devices.open_compute("cpu", ranks.local_rank)
    model = session.build(cell, compute, ranks)
    optimizer = ShardedAdamW(model.parameters(), cell.trainer, model.model_group, model.tp, model.loss_scale)
    trainee = Trainee(model=model, optimizer=optimizer, device=compute.device)
    rows = torch.arange(cell.global_batch // cell.parallelism.data_ranks * (cell.seq_len + 1)) % cell.model.vocab_size
    rows = rows.view(-1, cell.seq_len + 1)
    # The stages of a pipeline agree in the first step, and wait for it.
    found = [trainee.step(rows)[1]]
    with no_reads():
        found += [trainee.step(rows)[1] for _ in range(2)]
    return [float(norm) for norm in found]


def main() -> None:
    cells = {name: build(Cell, data, "cell") for name, data in json.loads(Path(sys.argv[1]).read_text()).items()}
    ranks = Ranks.from_environment(os.environ)
    torch.set_num_threads(1)
    with session.process_group(devices.open_compute("cpu", ranks.local_rank), ranks, 60.0):
        found = {name: norms(cell, ranks) for name, cell in cells.items()}
        dist.barrier()
    if ranks.rank == 0:
        Path(sys.argv[2]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
    leave(0)
