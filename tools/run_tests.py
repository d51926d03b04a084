"""Runs every test in several pytest processes at once: tests that mostly wait for Slurm beside tests that compute.

The output of the first part is shown as it comes, and that of each other part after it, so that they do not mix. The
whole fails if a part fails. Ctrl-C and SIGTERM interrupt all parts and let them clean up, their private Slurms
included; none of their processes is ever left behind.

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
    from collections.abc import Iterator, Mapping, Sequence

ROOT = Path(__file__).parents[1]
TRAINER, INTEGRATION = "tests/trainer", "tests/integration"
FAULTS = "test_faults_*.py"
# Names a private Slurm that is up already; then all tests that use it are one part, so that they do not run at once.
GIVEN_SLURM = "SWEEP_TEST_SLURM_DIR"
# Seconds that all parts get to clean up once they are interrupted.
PATIENCE_S = 60.0
_POLL_S = 0.1
# Exit status of a command that Ctrl-C ended.
_INTERRUPTED = 130


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of the tests: its name and the command that runs it."""

    name: str
    command: Sequence[str]


def parts(arguments: Sequence[str], environ: Mapping[str, str] = os.environ) -> tuple[Part, ...]:
    """The parts, which together have every test; the first computes most."""
    faults = [str(path.relative_to(ROOT)) for path in sorted(ROOT.joinpath(INTEGRATION).glob(FAULTS))]
    which = {
        TRAINER: [TRAINER],
        "all other unit tests": ["tests", f"--ignore={TRAINER}", f"--ignore={INTEGRATION}"],
    }
    if environ.get(GIVEN_SLURM):
        which[INTEGRATION] = [INTEGRATION]
    else:
        which[f"{INTEGRATION}, faults"] = faults
        which[f"{INTEGRATION}, the rest"] = [INTEGRATION, f"--ignore-glob=*/{FAULTS}"]
    return tuple(
        # Each part has a cache folder of its own, because each writes its cache at its end.
        Part(
            name=name,
            command=[sys.executable, "-m", "pytest", *words, "-o", f"cache_dir=.pytest_cache/{i}", *arguments],
        )
        for i, (name, words) in enumerate(which.items())
    )


def run_all(together: Sequence[Part], *, patience_s: float = PATIENCE_S) -> int:
    """Run all parts at once.

    Args:
        together: The parts; the output of each is shown once those before it have ended.
        patience_s: Seconds that all parts get after an interruption.

    Returns:
        0 if all returned 0; 130 after an interruption; else 1.
    """
    with contextlib.ExitStack() as stack:
        asked = stack.enter_context(_interruptions())
        logs = [stack.enter_context(tempfile.NamedTemporaryFile()) for _ in together[1:]]
        outputs = [stack.enter_context(Path(log.name).open("rb")) for log in logs]
        kept = "; ".join(part.name for part in together[1:])
        print(f"== {together[0].name}; at the same time, and shown after it: {kept}", flush=True)
        processes = [_start(part, log) for part, log in zip(together, [None, *logs], strict=True)]
        try:
            _watch(processes, outputs, asked, patience_s)
        finally:
            _kill(*processes)
        for output in outputs:
            _copy(output)
    for part, process in zip(together, processes, strict=True):
        print(f"== {part.name}: {'passed' if process.returncode == 0 else f'exit status {process.returncode}'}")
    if asked:
        return _INTERRUPTED
    return int(any(process.returncode != 0 for process in processes))


@contextlib.contextmanager
def _interruptions() -> Iterator[list[int]]:
    """Collect the signals that ask this process to end."""
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


def _start(part: Part, log: IO[bytes] | None) -> subprocess.Popen[bytes]:
    # A session of its own: a terminal's Ctrl-C reaches it only through this process, and its children can be ended.
    return subprocess.Popen(
        part.command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=None if log is None else subprocess.STDOUT,
        start_new_session=True,
    )


def _watch(
    processes: Sequence[subprocess.Popen[bytes]],
    outputs: Sequence[IO[bytes]],
    asked: Sequence[int],
    patience_s: float,
) -> None:
    """Wait until all have ended, and show the output of each once those before it have ended."""
    deadline: float | None = None
    while any(process.poll() is None for process in processes):
        if asked and deadline is None:
            deadline = time.monotonic() + patience_s
            for process in processes:
                # Only to pytest, which cleans up; its tests end the processes that they wait for.
                process.send_signal(signal.SIGINT)
        if deadline is not None and time.monotonic() > deadline:
            _kill(*processes)
        for before, output in zip(processes, outputs, strict=False):
            if before.poll() is None:
                break
            _copy(output)
        time.sleep(_POLL_S)


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
    sys.exit(run_all(parts(sys.argv[1:])))
