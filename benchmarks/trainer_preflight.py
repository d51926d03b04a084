"""How long the preflight of a 70B cell on 2048 ranks takes on one core, and how much memory: against 60 s and 2 GB.

The whole command is measured, the import of torch included, as one process with one thread. It neither waits for input
nor output, so processor time is what it takes on a machine that has a core to spare; the clock's time is printed too.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from sweep.core.attempt import AttemptKey
from sweep.core.cell import Cell, Parallelism, cell_id
from sweep.core.device import Device
from sweep.core.model import ModelShape
from sweep.core.preflight import Preflight
from sweep.core.record import CELL_FILE, CellFile

LIMIT_S = 60.0
LIMIT_MB = 2000.0
LLAMA2_70B = ModelShape(
    name="llama2_70b", n_layers=80, hidden=8192, n_heads=64, n_kv_heads=8, ffn_hidden=28672, vocab_size=32000
)
CELL = Cell(
    model=LLAMA2_70B,
    device="h100-80gb-sxm",
    nodes=256,
    gpus_per_node=8,
    parallelism=Parallelism(dp_shard=2048),
    global_batch=2048,
    micro_batch=1,
    seq_len=4096,
)


def main() -> int:
    """Print time and memory as shares of their limits; exit status 1 where one is broken."""
    key = AttemptKey(cell_id=cell_id(CELL), repeat=1, attempt=1)
    file = CellFile(cell=CELL, device=Device(name=CELL.device, type="cuda"), key=key)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / CELL_FILE
        path.write_text(file.render(), encoding="utf-8")
        command = [sys.executable, "-m", "trainer", "--preflight", "--json", "--cell", str(path)]
        began = time.perf_counter()
        done = subprocess.run(
            command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, text=True, check=True
        )
        wall_s = time.perf_counter() - began
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s, peak_mb = used.ru_utime + used.ru_stime, used.ru_maxrss / 1e3
    found = Preflight.parse(done.stdout)
    print(
        f"preflight of {CELL.model.name} on {CELL.gpus} ranks (FSDP): {cpu_s:.1f} s ({wall_s:.1f} s on the clock), "
        f"peak {peak_mb:.0f} MB\n"
        f"  of the limits: {cpu_s / LIMIT_S:.0%} of {LIMIT_S:g} s, {peak_mb / LIMIT_MB:.0%} of {LIMIT_MB:g} MB\n"
        f"  it says: peak {(found.peak_memory_bytes or 0) / 2**30:.1f} GiB a rank, "
        f"{sum(item.count for item in found.collectives)} collectives a step"
    )
    return int(cpu_s > LIMIT_S or peak_mb > LIMIT_MB)


if __name__ == "__main__":
    sys.exit(main())
