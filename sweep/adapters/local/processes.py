"""Finds and ends the processes of a job, known by pid and start time, or by a marker in their environment."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

from sweep.core.jobs.node_command import MARKER, RUN_DIR

# The kernel counts start times from the boot, and the wall clock may be corrected between two readings.
_TOLERANCE_S = 2.0
_KILL_PATIENCE_S = 3.0


def started_at(pid: int) -> float | None:
    """Unix time at which a living process started; None where no process has the pid."""
    try:
        return psutil.Process(pid).create_time()
    except psutil.Error:
        return None


def own_process(pid: int, *, start: float, marker: str, run_dir: Path) -> psutil.Process | None:
    """The living process with this pid, start time, marker and run directory; None where it is gone or another's."""
    try:
        process = psutil.Process(pid)
        if abs(process.create_time() - start) > _TOLERANCE_S or not _is_marked(process, marker, run_dir):
            return None
    except psutil.Error:
        return None
    return process


def _is_marked(process: psutil.Process, marker: str, run_dir: Path) -> bool:
    environ = process.environ()  # a zombie has none any more
    named = environ.get(RUN_DIR, "")
    return environ.get(MARKER) == marker and (named == str(run_dir) or _is_same(named, run_dir))


def _is_same(named: str, folder: Path) -> bool:
    """True if both are one folder, which may have several names."""
    try:
        return bool(named) and folder.samefile(named)
    except OSError:
        return False


def terminate(processes: Iterable[psutil.Process]) -> None:
    """Send SIGTERM."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.send_signal(signal.SIGTERM)


def marked(marker: str, run_dir: Path) -> list[psutil.Process]:
    """All living processes of this user with the marker and the run directory, except this one."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and _is_marked(process, marker, run_dir):
                found.append(process)
    return found


def kill_marked(marker: str, run_dir: Path) -> list[int]:
    """Kill every process that :func:`marked` finds and all their descendants; returns the pids that live on.

    A descendant may have dropped the marker; a living launcher is the parent of every orphan below it.
    """
    deadline = time.monotonic() + _KILL_PATIENCE_S
    while alive := marked(marker, run_dir):
        if time.monotonic() > deadline:
            return [process.pid for process in alive]
        for process in _families(alive):
            with contextlib.suppress(psutil.Error):
                process.kill()
        time.sleep(0.02)
    return []


def _families(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """The processes with their descendants, listed before the first is killed: then the others change parents."""
    found = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            found += [process, *process.children(recursive=True)]
    return found
