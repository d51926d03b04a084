from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from sweep.adapters.local.processes import kill_marked, marked, own_process, started_at
from sweep.core.jobs.node_command import MARKER, RUN_DIR

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path("/runs/ours")
SLEEP = "import time; time.sleep(60)"


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    made = subprocess.Popen([sys.executable, "-c", SLEEP], env={**os.environ, MARKER: "mine", RUN_DIR: str(HERE)})
    while MARKER not in psutil.Process(made.pid).environ():
        time.sleep(0.01)  # the kernel shows it a moment after the program has begun
    yield made
    made.kill()
    made.wait()


def start_of(process: subprocess.Popen[bytes]) -> float:
    start = started_at(process.pid)
    assert start is not None
    return start


def test_a_process_is_identified_by_pid_start_time_and_marker(process: subprocess.Popen[bytes]) -> None:
    assert own_process(process.pid, start=start_of(process), marker="mine", run_dir=HERE) == psutil.Process(process.pid)


def test_another_start_time_is_another_process(process: subprocess.Popen[bytes]) -> None:
    for off_by_s in (-10.0, 10.0):
        assert own_process(process.pid, start=start_of(process) + off_by_s, marker="mine", run_dir=HERE) is None


def test_another_marker_is_another_process(process: subprocess.Popen[bytes]) -> None:
    assert own_process(process.pid, start=start_of(process), marker="other", run_dir=HERE) is None


def test_a_zombie_is_gone(process: subprocess.Popen[bytes]) -> None:
    start = start_of(process)
    process.kill()
    while psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    assert own_process(process.pid, start=start, marker="mine", run_dir=HERE) is None
    assert marked("mine", HERE) == []


def test_a_pid_that_nobody_has_is_gone(process: subprocess.Popen[bytes]) -> None:
    start = start_of(process)
    process.kill()
    process.wait()
    assert started_at(process.pid) is None
    assert own_process(process.pid, start=start, marker="mine", run_dir=HERE) is None


def test_killing_by_marker_spares_all_other_processes(process: subprocess.Popen[bytes]) -> None:
    assert kill_marked("other", HERE) == []
    assert process.poll() is None
    assert kill_marked("mine", HERE) == []
    assert process.wait(timeout=60) == -9


def test_a_child_that_dropped_the_marker_is_killed_with_its_parent() -> None:
    script = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SLEEP!r}], env={{}})"
    parent = subprocess.Popen([sys.executable, "-c", script], env={**os.environ, MARKER: "family", RUN_DIR: str(HERE)})
    while not (children := psutil.Process(parent.pid).children()):
        time.sleep(0.01)
    assert kill_marked("family", HERE) == []
    parent.wait(timeout=60)
    gone, alive = psutil.wait_procs(children, timeout=60)
    assert (len(gone), alive) == (1, [])
