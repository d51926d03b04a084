"""Starts real trainers: through torchrun, or one process by itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from sweep.core.jobs.environment import scrubbed

ROOT = Path(__file__).parents[2]
# What replaces `-m trainer` where a test needs a rank to fail.
SABOTAGE = ROOT / "tests" / "trainer" / "programs" / "sabotage.py"
HUNG_FILE = "hung"
"""What a rank leaves in the run's folder when it begins to hang."""


def environment(**extra: str) -> dict[str, str]:
    return {**scrubbed(os.environ), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **extra}


def torchrun_command(n_ranks: int, *program: str) -> list[str]:
    agent = ["-m", "torch.distributed.run", "--standalone", "--max-restarts", "0", "--nproc-per-node"]
    return [sys.executable, *agent, str(n_ranks), *program]


def torchrun(n_ranks: int, *program: str, timeout_s: float = 800, **extra: str) -> subprocess.CompletedProcess[str]:
    return _run(torchrun_command(n_ranks, *program), timeout_s, extra)


def alone(*arguments: str, timeout_s: float = 240, **extra: str) -> subprocess.CompletedProcess[str]:
    return script("-m", "trainer", *arguments, timeout_s=timeout_s, **extra)


def script(*arguments: str, timeout_s: float, **extra: str) -> subprocess.CompletedProcess[str]:
    return _run([sys.executable, *arguments], timeout_s, extra)


def _run(command: list[str], timeout_s: float, extra: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env=environment(**extra),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
