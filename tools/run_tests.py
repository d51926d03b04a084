"""Runs every test, as two pytest processes at once: what mostly waits (for Slurm) beside what mostly computes.

The computing half's output is shown as it comes and the other's after it, so that they do not mix. A half that fails
makes the whole fail. Ctrl-C and SIGTERM interrupt both and let them tidy up, the private Slurm among other things;
whatever happens, no process of theirs is left behind.

python -m tools.run_tests [ARGUMENTS OF PYTEST]
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

WAITING = "tests/integration"
# What both may take to tidy up once they are interrupted.
PATIENCE_S = 60.0
_LOOK_S = 0.1
# Exit status of a command that Ctrl-C ended.
_INTERRUPTED = 130


@dataclass(frozen=True, kw_only=True)
class Half:
    """A part of the tests: its name and the command that runs it."""

    name: str
    command: Sequence[str]


def halves(arguments: Sequence[str]) -> tuple[Half, Half]:
    """All tests: what computes, and what waits."""
    pytest = [sys.executable, "-m", "pytest"]
    # Each writes its cache when it ends.
    computing = [f"--ignore={WAITING}", "-o", "cache_dir=.pytest_cache/computing"]
    waiting = [WAITING, "-o", "cache_dir=.pytest_cache/waiting"]
    return (
        Half(name=f"all but {WAITING}", command=[*pytest, *computing, *arguments]),
        Half(name=WAITING, command=[*pytest, *waiting, *arguments]),
    )


def run_both(shown: Half, kept: Half, *, patience_s: float = PATIENCE_S) -> int:
    """Run two halves at once.

    Args:
        shown: Its output goes straight on.
        kept: Its output follows once the other has ended.
        patience_s: Seconds that both are given after an interruption.

    Returns:
        0 if both returned 0; 130 after an interruption; else 1.
    """
    with tempfile.NamedTemporaryFile() as log, Path(log.name).open("rb") as output, _interruptions() as asked:
        print(f"== {shown.name}; {kept.name} runs at the same time and follows", flush=True)
        first, second = _start(shown, None), _start(kept, log)
        try:
            _watch(first, second, output, asked, patience_s)
        finally:
            _kill(first, second)
        _copy(output)
    for half, process in ((shown, first), (kept, second)):
        print(f"== {half.name}: {'passed' if process.returncode == 0 else f'exit status {process.returncode}'}")
    if asked:
        return _INTERRUPTED
    return int(first.returncode != 0 or second.returncode != 0)


@contextlib.contextmanager
def _interruptions() -> Iterator[list[int]]:
    """Collects the signals that ask for an end."""
    asked: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: asked.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _start(half: Half, log: IO[bytes] | None) -> subprocess.Popen[bytes]:
    # A session of its own: a terminal's Ctrl-C reaches it once, through us, and all that it started can be ended.
    return subprocess.Popen(
        half.command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=None if log is None else subprocess.STDOUT,
        start_new_session=True,
    )


def _watch(
    first: subprocess.Popen[bytes],
    second: subprocess.Popen[bytes],
    output: IO[bytes],
    asked: Sequence[int],
    patience_s: float,
) -> None:
    """Wait for the end of both."""
    deadline: float | None = None
    while first.poll() is None or second.poll() is None:
        if asked and deadline is None:
            deadline = time.monotonic() + patience_s
            # To pytest itself, which tidies up: what its tests wait for is ended by them.
            first.send_signal(signal.SIGINT)
            second.send_signal(signal.SIGINT)
        if deadline is not None and time.monotonic() > deadline:
            _kill(first, second)
        if first.poll() is not None:
            _copy(output)
        time.sleep(_LOOK_S)


def _copy(output: IO[bytes]) -> None:
    sys.stdout.flush()
    shutil.copyfileobj(output, sys.stdout.buffer)
    sys.stdout.flush()


def _kill(*processes: subprocess.Popen[bytes]) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


if __name__ == "__main__":
    sys.exit(run_both(*halves(sys.argv[1:])))
