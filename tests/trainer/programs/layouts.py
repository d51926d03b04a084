"""Trains several cells in one launch and writes what each showed (no test by itself).

python tests/trainer/programs/layouts.py N_RANKS CELLS.json OUT.json

The ranks are forks of one process, which has imported torch for all of them: on two cores that is most of a minute for
sixteen. How ranks start by torchrun is for tests/trainer/test_cli.py.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from sweep.core.cells.cell import Cell
from sweep.core.encoding.codec import build
from tests.trainer.emulated_flash import ring_on_cpu
from trainer.device import devices
from trainer.failure.error_report import RankProgress
from trainer.failure.process_exit import leave
from trainer.model import blocks
from trainer.model.decoder import Block
from trainer.model.init import plain_name
from trainer.parallel.parallelize import Parallelized
from trainer.process.ranks import Ranks
from trainer.training import session


def weights_hash(model: Parallelized) -> str:
    """Hash of every full parameter's bytes, by its plain name, whichever pipeline rank holds it."""
    mine: dict[str, str] = {}
    for name, parameter in model.named_parameters():
        full = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
        mine[plain_name(name)] = hashlib.sha256(full.detach().numpy().tobytes()).hexdigest()
    every: list[dict[str, str] | None] = [mine]
    if dist.is_initialized():
        every = [None] * dist.get_world_size()
        dist.all_gather_object(every, mine)
    merged: dict[str, str] = {}
    for found in every:
        for name, value in (found or {}).items():
            assert merged.setdefault(name, value) == value, f"ranks disagree about {name}"
    return hashlib.sha256(json.dumps(merged, sort_keys=True).encode()).hexdigest()


# Under the names of torch 2.13 and of earlier versions. Over gloo gradients are exchanged
# (trainer/parallel/data_parallel.py).
COLLECTIVES = {
    "gather": ("all_gather_single", "all_gather_into_tensor"),
    "reduce": ("all_to_all_single",),
}


class Calls:
    """Counts calls of FSDP's two collectives, and of blocks, where told to."""

    def __init__(self) -> None:
        self.counts = {"gather": 0, "reduce": 0, "block": 0}
        self._targets = [
            (dist, name, kind) for kind, names in COLLECTIVES.items() for name in names if hasattr(dist, name)
        ]
        self._targets.append((Block, "forward", "block"))

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        self.counts.update(dict.fromkeys(self.counts, 0))
        originals = [(owner, name, getattr(owner, name)) for owner, name, _ in self._targets]
        for owner, name, kind in self._targets:
            setattr(owner, name, self._counted(kind, getattr(owner, name)))
        yield
        for owner, name, original in originals:
            setattr(owner, name, original)

    def _counted(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.counts[name] += 1
            return original(*args, **kwargs)

        return counted


CALLS = Calls()


def mean(values: list[float] | None, n_values: int) -> list[float]:
    """The mean over ranks that know the values."""
    if not dist.is_initialized():
        return values or []
    totals = torch.tensor([1.0, *values] if values else [0.0] * (n_values + 1), dtype=torch.float64)
    dist.all_reduce(totals)
    return [float(value) for value in totals[1:] / totals[0]]


def show(cell: Cell, ranks: Ranks, compute: devices.Compute) -> dict[str, object]:
    begun = time.perf_counter()
    torch.compiler.reset()
    model = session.build(cell, compute, ranks)
    start = weights_hash(model)
    formats: set[str] = set()
    for stage in model.stages:
        stage.register_forward_hook(lambda module, args, output: formats.add(str(output.dtype)))
    watch = session.DeviceMonitor(compute, RankProgress())
    # A compiled block would be compiled anew for each count.
    with contextlib.nullcontext() if cell.compile else CALLS.counting():
        measurements = session.fit(cell, ranks, compute, model, watch, None)
    n_steps = cell.trainer.steps
    return {
        "start": start,
        "losses": mean(measurements.losses, n_steps),
        "grad_norms": mean(measurements.grad_norms, n_steps),
        "calls": dict(CALLS.counts),
        "formats": sorted(formats),
        "n_params": model.n_params,
        "context": model.context,
        "time_s": time.perf_counter() - begun,
    }


def train_all(ranks: Ranks, store: Path, given: Path, found: Path) -> None:
    """One rank: all cells, one after the other."""
    cells = {name: build(Cell, data, "cell") for name, data in json.loads(given.read_text()).items()}
    compute = devices.open_compute("cpu", ranks.local_rank)
    torch.set_num_threads(1)
    if ranks.world_size > 1:
        dist.init_process_group(
            compute.backend,
            init_method=f"file://{store}",
            rank=ranks.rank,
            world_size=ranks.world_size,
            timeout=timedelta(seconds=120),
        )
    shown: dict[str, object] = {}
    for name, cell in cells.items():
        # What the default compiler makes of a block takes half a minute on a CPU: most layouts are compiled as far
        # as its input.
        blocks.BACKEND = "inductor" if "inductor" in name else "aot_eager"
        if ranks.rank == 0:
            print(f"layout {name}", file=sys.stderr, flush=True)
        with ring_on_cpu() if "ring" in name else contextlib.nullcontext():
            shown[name] = show(cell, ranks, compute)
    if ranks.rank == 0:
        found.write_text(json.dumps(shown))
    if ranks.world_size > 1:
        dist.barrier()


def fork(ranks: Ranks, store: Path, given: Path, found: Path) -> int:
    """Start one rank; it leaves as the trainer does, without tearing anything down."""
    child = os.fork()
    if child == 0:
        try:
            train_all(ranks, store, given, found)
        except BaseException:
            traceback.print_exc()
            leave(1)
        leave(0)
    return child


def main() -> int:
    """Run the ranks; the first that fails ends all, and its status is returned."""
    n_ranks, given, found = int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
    with tempfile.TemporaryDirectory() as folder:
        running = {
            fork(
                Ranks(rank=rank, world_size=n_ranks, local_rank=rank, local_world_size=n_ranks, has_agent=n_ranks > 1),
                Path(folder) / "store",
                given,
                found,
            )
            for rank in range(n_ranks)
        }
        status = 0
        while running and status == 0:
            ended, how = os.wait()
            running.discard(ended)
            status = os.waitstatus_to_exitcode(how)
        for child in running:
            os.kill(child, signal.SIGKILL)
    return status


if __name__ == "__main__":
    sys.exit(main())
