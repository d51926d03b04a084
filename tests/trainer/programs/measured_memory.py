"""Driver for torchrun: what real ranks hold, need and send, by torch's own trackers (no test by itself).

torchrun ... tests/trainer/programs/measured_memory.py CELLS.json OUT.json
"""

from __future__ import annotations

import json
import math
import os
import pickle
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.tensor import DTensor

from sweep.core.cells.cell import Cell
from sweep.core.encoding.codec import build
from trainer.device import devices
from trainer.failure.process_exit import leave
from trainer.process.ranks import Ranks
from trainer.training import session
from trainer.training.optimizer import ShardedAdamW


def held_bytes(tensors: Iterable[torch.Tensor | None]) -> int:
    """Bytes of the storages behind the local parts."""
    local = [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors if tensor is not None]
    storages = {part.untyped_storage().data_ptr(): part.untyped_storage() for part in local}
    return sum(storage.nbytes() for storage in storages.values())


def recorded() -> list[dict[str, Any]]:
    """Collectives that torch's flight recorder has seen so far."""
    core: Any = torch._C._distributed_c10d
    entries: list[dict[str, Any]] = pickle.loads(core._dump_fr_trace())["entries"]
    return entries


def sent(entries: list[dict[str, Any]]) -> dict[str, tuple[int, int]]:
    """Number and bytes of collectives by kind: of each its larger side."""
    found: dict[str, tuple[int, int]] = {}
    for entry in entries:
        kind = entry["profiling_name"].partition(":")[2].partition(" ")[0]
        sides = [
            sum(math.prod(size) for size in entry[f"{side}_sizes"]) * getattr(torch, dtype.lower()).itemsize
            for side in ("input", "output")
            for dtype in set(entry[f"{side}_dtypes"])
        ]
        count, n_bytes = found.get(kind, (0, 0))
        found[kind] = (count + 1, n_bytes + max(sides, default=0))
    return found


def measure(cell: Cell, ranks: Ranks) -> dict[str, Any]:
    model = session.build(cell, devices.open_compute("cpu", ranks.local_rank), ranks)
    parameters = list(model.parameters())
    optimizer = ShardedAdamW(parameters, cell.trainer, model.model_group, model.tp)
    n_sequences = cell.global_batch // cell.parallelism.data_ranks
    tracker = MemTracker()
    # Its account by module knows one call of each only: no accumulation, no pipeline.
    tracker._mod_tracker.register_user_hooks = lambda *hooks: None  # type: ignore[method-assign]  # left out
    tracker.track_external(*model.stages)
    gradients = 0
    n_before = 0
    with tracker:
        for _ in range(2):
            n_before = len(recorded()) if ranks.world_size > 1 else 0
            model.run(torch.ones(n_sequences, cell.seq_len + 1, dtype=torch.long))
            gradients = held_bytes(parameter.grad for parameter in parameters)
            optimizer.step()
    state = [value for values in optimizer._adamw.state.values() for value in values.values()]
    (peak,) = tracker.get_tracker_snapshot("peak").values()
    return {
        "parameters": held_bytes(parameters),
        "gradients": gradients,
        "optimizer": held_bytes(state),
        "peak": peak["Total"],
        "sent": sent(recorded()[n_before:]) if ranks.world_size > 1 else {},
    }


def main() -> None:
    cells = {name: build(Cell, data, "cell") for name, data in json.loads(Path(sys.argv[1]).read_text()).items()}
    ranks = Ranks.from_environment(os.environ)
    torch.set_num_threads(1)
    with session.process_group(devices.open_compute("cpu", ranks.local_rank), ranks, 60.0):
        found = {name: measure(cell, ranks) for name, cell in cells.items()}
        every: list[dict[str, dict[str, int]] | None] = [None] * ranks.world_size
        if ranks.world_size > 1:
            dist.all_gather_object(every, found)
        if ranks.rank == 0:
            Path(sys.argv[2]).write_text(json.dumps(every if ranks.world_size > 1 else [found]))


if __name__ == "__main__":
    main()
    # As the trainer does (trainer/__main__.py).
    leave(0)
