"""Runs one command with all its descendants: passes signals on, keeps a deadline, and leaves no process."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_KILL_PATIENCE_S = 5.0
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Supervisor:
    """Runs one command; once this process is asked to stop, ends it and all its descendants.

    Args:
        grace_s: Seconds between the request to stop and the kill.
    """

    def __init__(self, grace_s: float) -> None:
        """Take signals from now on: TERM, INT and HUP stop; USR2 (the time limit is near) is ignored until the start.

        The command must inherit an ignored USR2: Slurm sends it to every process, and torchrun would die of it.
        """
        self.stopped_by: signal.Signals | None = None
        self._grace_s = grace_s
        self._process: subprocess.Popen[bytes] | None = None
        _become_subreaper()
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        signal.signal(signal.SIGALRM, self._kill)
        for number in _STOP_SIGNALS:
            signal.signal(number, self._stop)

    def run(self, command: Sequence[str], environ: Mapping[str, str]) -> int:
        """Start the command, wait for its end, and kill the processes that it left.

        Returns:
            Its exit code, negative: the signal that ended it. 128 + signal where it was stopped before it began.
        """
        if self.stopped_by is None:
            self._process = subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL, start_new_session=True)
            signal.signal(signal.SIGUSR2, self._stop)
        if self.stopped_by is not None:
            self._forward()
        code = 128 + (self.stopped_by or 0) if self._process is None else self._process.wait()
        signal.setitimer(signal.ITIMER_REAL, 0)
        _end_descendants()
        return code

    def _stop(self, number: int, _frame: object) -> None:
        if self.stopped_by is None:
            self.stopped_by = signal.Signals(number)
            signal.setitimer(signal.ITIMER_REAL, self._grace_s)
            self._forward()

    def _forward(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGTERM)

    def _kill(self, _number: int, _frame: object) -> None:
        _kill_descendants()


def _become_subreaper() -> None:
    """Become the parent of every orphan among the descendants.

    torchrun puts ranks into sessions of their own, so no process group holds them all, and a process can overwrite a
    variable in its environment. As their subreaper this process finds all of them by parentage, and reaps them.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _descendants(root: int) -> list[int]:
    """Living descendants of a process, by /proc; none where there is no /proc."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # pid (name) state parent ...; a name may hold blanks and brackets.
            state, parent = path.read_text(errors="replace").rpartition(")")[2].split()[:2]
            if state not in "ZX":
                children.setdefault(int(parent), []).append(int(path.parent.name))
    found, todo = [], [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def _kill_descendants() -> list[int]:
    pids = _descendants(os.getpid())
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return pids


def _end_descendants() -> None:
    deadline = time.monotonic() + _KILL_PATIENCE_S
    while alive := _kill_descendants():
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if time.monotonic() > deadline:
            print(f"launch: processes {alive} cannot be killed", file=sys.stderr, flush=True)
            return
        time.sleep(0.02)
