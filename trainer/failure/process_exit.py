"""Ends the process: exit codes, an exit that waits for nobody, and the tie to the torchrun agent."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

from trainer.process.ranks import Ranks

EXIT_FAILED = 1
EXIT_REFUSED = 2
_PR_SET_PDEATHSIG = 1
_MAX_TRIES = 100


def leave(code: int) -> NoReturn:
    """End this process now: the tear-down of a communicator whose peers are gone can hang for ever."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


def die_with_agent(ranks: Ranks) -> None:
    """Ask the kernel to kill this rank when its torchrun agent dies, so that no rank outlives it (Linux only)."""
    if not ranks.has_agent or not sys.platform.startswith("linux"):
        return
    agent = os.getppid()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != agent:
        # The agent died before the kernel was asked.
        os._exit(EXIT_FAILED)


def living_children(pid: int) -> int:
    """Count the children of a process that still run; a large number where the kernel does not tell."""
    for _ in range(_MAX_TRIES):
        try:
            tasks = list(Path(f"/proc/{pid}/task").iterdir())
            children = [child for task in tasks for child in (task / "children").read_text().split()]
        except OSError:
            # Either a thread ended between the listing and the reading, and its children belong to another thread now:
            # list again. Or the process is gone, or the kernel keeps no such lists.
            continue
        return sum(not _is_zombie(child) for child in children)
    return sys.maxsize


def _is_zombie(pid: str) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] in ("Z", "X")
