"""Telling one's own processes from others, and ending them: by pid with start time, or by a mark they inherited."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING

import psutil

from sweep.core.jobs.node_command import MARKER

if TYPE_CHECKING:
    from collections.abc import Iterable

# Start times are reckoned from the machine's boot, and its wall clock may be corrected between two readings.
_TOLERANCE_S = 2.0
_KILL_PATIENCE_S = 3.0


def started_at(pid: int) -> float | None:
    """Unix time at which a living process started; None where there is none."""
    try:
        return psutil.Process(pid).create_time()
    except psutil.Error:
        return None


def own_process(pid: int, *, start: float, marker: str) -> psutil.Process | None:
    """The living process that was started as this pid at that time with that mark; None where it is gone.

    A pid that now belongs to someone else is never given.
    """
    try:
        process = psutil.Process(pid)
        if abs(process.create_time() - start) > _TOLERANCE_S or not _is_marked(process, marker):
            return None
    except psutil.Error:
        return None
    return process


def _is_marked(process: psutil.Process, marker: str) -> bool:
    # The dead that nobody has reaped yet have no environment any more.
    return process.environ().get(MARKER) == marker


def ask_to_stop(processes: Iterable[psutil.Process]) -> None:
    """Send TERM."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.send_signal(signal.SIGTERM)


def marked(marker: str) -> list[psutil.Process]:
    """All living processes of this user with the mark, this one excepted."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and _is_marked(process, marker):
                found.append(process)
    return found


def kill_marked(marker: str) -> list[int]:
    """Kill every process with the mark and all that descend from them; gives what could not be killed.

    Descendants too, because a process may have dropped the mark: a living launcher is the parent of every orphan below.
    """
    deadline = time.monotonic() + _KILL_PATIENCE_S
    while alive := marked(marker):
        if time.monotonic() > deadline:
            return [process.pid for process in alive]
        for process in _families(alive):
            with contextlib.suppress(psutil.Error):
                process.kill()
        time.sleep(0.02)
    return []


def _families(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Processes with their descendants; complete before the first is killed, when the rest would change parents."""
    found = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            found += [process, *process.children(recursive=True)]
    return found
