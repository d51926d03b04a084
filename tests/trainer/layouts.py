"""Driver for torchrun: trains several cells in one launch and writes what each showed (no test by itself).

torchrun ... tests/trainer/layouts.py CELLS.json OUT.json
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from sweep.core.cell import Cell, cell_from_json
from trainer import devices, session
from trainer.failure import Whereabouts
from trainer.init import plain_name
from trainer.parallelize import Parallelized
from trainer.ranks import Ranks


def weights_hash(model: Parallelized) -> str:
    """Hash of every full parameter's bytes, by its plain name."""
    digest = hashlib.sha256()
    for name, parameter in sorted((plain_name(n), p) for n, p in model.module.named_parameters()):
        full = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
        digest.update(name.encode() + full.detach().numpy().tobytes())
    return digest.hexdigest()


def show(cell: Cell, ranks: Ranks, compute: devices.Compute) -> dict[str, object]:
    model = session.build(cell, compute, ranks)
    start = weights_hash(model)
    watch = session.Watch(compute, Whereabouts())
    observed = session.fit(cell, ranks, compute, model, watch, None)
    losses = torch.tensor(observed.losses, dtype=torch.float64)
    norms = torch.tensor(observed.grad_norms, dtype=torch.float64)
    if ranks.world_size > 1:
        dist.all_reduce(losses)
        losses /= ranks.world_size
    return {"start": start, "losses": losses.tolist(), "grad_norms": norms.tolist()}


def main() -> None:
    cells = {name: cell_from_json(data) for name, data in json.loads(Path(sys.argv[1]).read_text()).items()}
    ranks = Ranks.from_environment(os.environ)
    compute = devices.claim("cpu", ranks.local_rank)
    torch.set_num_threads(1)
    with session.process_group(compute, ranks, 60.0):
        shown = {name: show(cell, ranks, compute) for name, cell in cells.items()}
        if ranks.rank == 0:
            Path(sys.argv[2]).write_text(json.dumps(shown))


if __name__ == "__main__":
    main()
