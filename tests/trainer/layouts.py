"""Driver for torchrun: trains several cells in one launch and writes what each showed (no test by itself).

torchrun ... tests/trainer/layouts.py CELLS.json OUT.json
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from sweep.core.cell import Cell, cell_from_json
from trainer import devices, session
from trainer.failure import Whereabouts
from trainer.init import plain_name
from trainer.model import Block
from trainer.parallelize import Parallelized
from trainer.ranks import Ranks


def weights_hash(model: Parallelized) -> str:
    """Hash of every full parameter's bytes, by its plain name."""
    digest = hashlib.sha256()
    for name, parameter in sorted((plain_name(n), p) for n, p in model.module.named_parameters()):
        full = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
        digest.update(name.encode() + full.detach().numpy().tobytes())
    return digest.hexdigest()


# Under the names of torch 2.13 and of earlier versions.
COLLECTIVES = {
    "gather": ("all_gather_single", "all_gather_into_tensor"),
    "reduce": ("reduce_scatter_single", "reduce_scatter_tensor"),
}


class Calls:
    """Counts calls of FSDP's two collectives, and of blocks."""

    def __init__(self) -> None:
        self.counts = {"gather": 0, "reduce": 0, "block": 0}
        for kind, names in COLLECTIVES.items():
            for name in names:
                if hasattr(dist, name):
                    setattr(dist, name, self._counted(kind, getattr(dist, name)))
        Block.forward = self._counted("block", Block.forward)  # type: ignore[method-assign]  # to count

    def _counted(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.counts[name] += 1
            return original(*args, **kwargs)

        return counted

    def since_last(self) -> dict[str, int]:
        found = dict(self.counts)
        self.counts.update(dict.fromkeys(self.counts, 0))
        return found


CALLS = Calls()


def show(cell: Cell, ranks: Ranks, compute: devices.Compute) -> dict[str, object]:
    model = session.build(cell, compute, ranks)
    start = weights_hash(model)
    formats: set[str] = set()
    model.module.register_forward_hook(lambda module, args, logits: formats.add(str(logits.dtype)))
    CALLS.since_last()
    watch = session.Watch(compute, Whereabouts())
    observed = session.fit(cell, ranks, compute, model, watch, None)
    calls = CALLS.since_last()
    losses = torch.tensor(observed.losses, dtype=torch.float64)
    norms = torch.tensor(observed.grad_norms, dtype=torch.float64)
    if ranks.world_size > 1:
        dist.all_reduce(losses)
        losses /= ranks.world_size
    return {
        "start": start,
        "losses": losses.tolist(),
        "grad_norms": norms.tolist(),
        "calls": calls,
        "formats": sorted(formats),
    }


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
