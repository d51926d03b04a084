"""The trainer with one rank that fails in a chosen way in a chosen step (no test by itself; the product has no hooks).

torchrun ... tests/trainer/programs/sabotage.py WAY RANK STEP --cell FILE --out DIR

``WAY@1`` fails in a cell's first attempt only.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import torch

from trainer import cli
from trainer.training.loop import Trainee


def raise_exception() -> NoReturn:
    raise KeyError("no such weight")


def raise_device_oom() -> NoReturn:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has ...")


def allocate_too_much() -> None:
    torch.empty(1 << 50)


def kill_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hang() -> None:
    """In step N of a rank: leaves ``hung`` in the folder of the run, so that a test knows that the others wait now."""
    Path(sys.argv[-1], "hung").touch()
    time.sleep(3600)


def kill_the_other() -> None:
    """Kill the other rank from outside its collectives, and stay outside them too."""
    others = Path(f"/proc/{os.getppid()}/task/{os.getppid()}/children").read_text().split()
    (other,) = {int(pid) for pid in others} - {os.getpid()}
    os.kill(other, signal.SIGKILL)
    time.sleep(3600)


FAILING = (raise_exception, raise_device_oom, allocate_too_much, kill_itself, kill_the_other, hang)
WAYS = {way.__name__: way for way in FAILING}


def main() -> None:
    name, _, attempt = sys.argv[1].partition("@")
    way, rank, step = WAYS[name], int(sys.argv[2]), int(sys.argv[3])
    is_meant = not attempt or f"attempt-{int(attempt):02d}" in Path(sys.argv[-1]).parts
    original = Trainee.step
    counted = iter(range(10**9))

    def sabotaged(self: Trainee, rows: torch.Tensor) -> Any:
        if next(counted) == step and is_meant and int(os.environ.get("RANK", "0")) == rank:
            way()
        return original(self, rows)

    Trainee.step = sabotaged  # type: ignore[method-assign]  # that is the sabotage
    cli.main(sys.argv[4:])


if __name__ == "__main__":
    main()
