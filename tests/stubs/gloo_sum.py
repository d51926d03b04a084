"""A minimal torch.distributed program: ranks join over gloo, write a sum, and then sleep for STUB_SLEEP_S seconds."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

out = Path(sys.argv[sys.argv.index("--out") + 1])
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
(out / f"rank-{dist.get_rank()}.txt").write_text(f"{int(total.item())}\n")
print(f"rank {dist.get_rank()} adds up to {int(total.item())}", flush=True)
time.sleep(float(os.environ.get("STUB_SLEEP_S", "0")))
dist.destroy_process_group()
