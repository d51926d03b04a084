"""How long preflights of 70B cells on 2048 ranks take on one core, and how much memory: against 60 s and 2 GB.

The whole command is measured, the import of torch included, as one process with one thread. It neither waits for input
nor output, so processor time is what it takes on a machine that has a core to spare; the clock's time is printed too.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from sweep.core.attempts.attempt import AttemptKey
from sweep.core.cells.cell import Cell, cell_id
from sweep.core.cells.device import Device
from sweep.core.cells.model_shape import ModelShape
from sweep.core.cells.parallelism import Parallelism, Schedule
from sweep.core.records.attempt_record import CellFile
from sweep.core.records.layout import CELL_FILE
from sweep.core.records.preflight_record import Preflight

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
CELLS = {
    "FSDP": CELL,
    # The first stage's ranks work on two parts of ten layers, 32 micro-batches each, in collectives of every kind.
    "FSDP x TP x PP, 32 micro-batches": replace(
        CELL,
        parallelism=Parallelism(dp_shard=32, tp=8, pp=8, schedule=Schedule.INTERLEAVED_1F1B, virtual_stages=2),
        global_batch=1024,
    ),
}


def main() -> int:
    """Print time and memory as shares of their limits; exit status 1 where one is broken."""
    return max([_measure(name, cell) for name, cell in CELLS.items()])


def _measure(name: str, cell: Cell) -> int:
    key = AttemptKey(cell_id=cell_id(cell), repeat=1, attempt=1)
    file = CellFile(cell=cell, device=Device(name=cell.device, type="cuda"), key=key)
    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder) / CELL_FILE, Path(folder) / "found.json"
        path.write_text(file.render(), encoding="utf-8")
        command = [sys.executable, "-m", "trainer", "--preflight", "--json", "--cell", str(path)]
        began = time.perf_counter()
        with out.open("w") as stream:
            process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=stream)
            _, status, used = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        found = Preflight.parse(out.read_text())
    cpu_s, peak_mb = used.ru_utime + used.ru_stime, used.ru_maxrss / 1e3
    print(
        f"preflight of {cell.model.name} on {cell.gpus} ranks ({name}): {cpu_s:.1f} s ({wall_s:.1f} s on the clock), "
        f"peak {peak_mb:.0f} MB\n"
        f"  of the limits: {cpu_s / LIMIT_S:.0%} of {LIMIT_S:g} s, {peak_mb / LIMIT_MB:.0%} of {LIMIT_MB:g} MB\n"
        f"  it says: peak {(found.peak_memory_bytes or 0) / 2**30:.1f} GiB a rank, "
        f"{sum(item.count for item in found.collectives)} collectives a step{found.problem}"
    )
    return int(process.returncode != 0 or cpu_s > LIMIT_S or peak_mb > LIMIT_MB)


if __name__ == "__main__":
    sys.exit(main())
