"""How long a grid of 100,000 cells takes to be expanded, identified and planned, and how much memory.

Two grids: one whose cells all differ in their layout (nothing can be shared between them), and one that repeats
20,000 layouts over five seeds. The yardstick is the least that any Python program would have to do: the same product
by ``itertools``, one dictionary a combination, hashed as JSON.

Each grid, and its yardstick, is measured in a process of its own. The work is one thread without any input or output,
so processor time is what it takes on a machine that has a core to spare; the clock's time is printed next to it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import multiprocessing
import resource
import sys
import time
from typing import TYPE_CHECKING

from sweep.core.attempts.history import History
from sweep.core.cells.batch import BatchKind
from sweep.core.cells.model_shape import ModelShape
from sweep.core.decisions.plan import decide
from sweep.core.grids.grid import Grid, expand

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sweep.core.cells.axis import AxisValue

LIMIT_S = 5.0
LIMIT_MB = 500.0
LLAMA2_7B = ModelShape(
    name="llama2_7b", n_layers=32, hidden=4096, n_heads=32, n_kv_heads=32, ffn_hidden=11008, vocab_size=32000
)
ONE_OF_EACH: Mapping[str, tuple[AxisValue, ...]] = {
    "nodes": tuple(range(1, 11)),
    "gpus_per_node": (8,),
    "device": ("h100-80gb-sxm",),
    "model": ("llama2_7b",),
    "sequences_per_gpu": tuple(range(1, 11)),
    "activation_checkpointing": ("none", "full"),
    "reshard_after_forward": (False, True),
    "precision": ("bf16", "fp32"),
}
GRIDS: Mapping[str, Mapping[str, tuple[AxisValue, ...]]] = {
    "100,000 layouts": {**ONE_OF_EACH, "seq_len": tuple(range(1024, 1024 * 126, 1024))},
    "20,000 layouts x 5 seeds": {
        **ONE_OF_EACH,
        "seq_len": tuple(range(1024, 1024 * 26, 1024)),
        "trainer.seed": (1, 2, 3, 4, 5),
    },
}


def plan(axes: Mapping[str, tuple[AxisValue, ...]]) -> int:
    """Expand and plan the grid; the number of actions."""
    grid = Grid(name="benchmark", batch_kind=BatchKind.SEQUENCES_PER_GPU, axes=axes, models={LLAMA2_7B.name: LLAMA2_7B})
    expansion = expand(grid)
    return len(decide(expansion.cells, repeats=1, history=History()))


def yardstick(axes: Mapping[str, tuple[AxisValue, ...]]) -> int:
    """The same product as plain dictionaries, each hashed as JSON; the number of different hashes."""
    encode = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
    found = {}
    for values in itertools.product(*axes.values()):
        cell = dict(zip(axes, values, strict=True))
        found[hashlib.sha256(encode(cell).encode()).hexdigest()[:16]] = cell
    return len(found)


def _measure(name: str, what: str) -> tuple[int, float, float, float]:
    """Count, wall seconds, processor seconds and peak resident MB of one run in this (fresh) process."""
    run = plan if what == "plan" else yardstick
    wall, cpu = time.perf_counter(), time.process_time()
    count = run(GRIDS[name])
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return count, wall, cpu, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def main() -> int:
    """Print one line a grid; exit status 1 where a limit is broken."""
    context = multiprocessing.get_context("spawn")
    broken = False
    for name in GRIDS:
        with context.Pool(1, maxtasksperchild=1) as pool:
            count, wall_s, cpu_s, peak_mb = pool.apply(_measure, (name, "plan"))
            _, _, least_s, least_mb = pool.apply(_measure, (name, "yardstick"))
        print(
            f"{name}: {count:,} cells expanded and planned in {cpu_s:.2f} s ({wall_s:.2f} s on the clock), "
            f"peak {peak_mb:.0f} MB\n"
            f"  of the limits: {cpu_s / LIMIT_S:.0%} of {LIMIT_S:g} s, {peak_mb / LIMIT_MB:.0%} of {LIMIT_MB:g} MB\n"
            f"  of the yardstick (product, dict, JSON, SHA-256): {cpu_s / least_s:.1f} x {least_s:.2f} s, "
            f"{peak_mb / least_mb:.1f} x {least_mb:.0f} MB"
        )
        broken = broken or cpu_s > LIMIT_S or peak_mb > LIMIT_MB
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
