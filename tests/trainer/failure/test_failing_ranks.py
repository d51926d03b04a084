"""Ranks that fail, die, hang or are stopped: their error files, and how soon they end."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sweep.core.attempts.attempt import ErrorClass, RankError
from sweep.core.attempts.verdict import first_cause
from sweep.core.cells.cell import Cell
from sweep.core.encoding.record import RecordError
from sweep.core.records.attempt_record import parse_error
from sweep.core.records.layout import ERROR_GLOB, FLIGHT_PREFIX, PROGRESS_FILE, RESULT_FILE
from sweep.core.records.progress import Progress
from tests.commands import is_alive, wait_for
from tests.trainer.cells import cell, write_cell
from tests.trainer.processes import HUNG_FILE, ROOT, SABOTAGE, alone, environment, torchrun, torchrun_command

ENDLESS = {"steps": 1_000_000, "warmup_steps": 1}
UNKILLED_S = 25.0
"""torchrun kills ranks that have not ended 30 s after it asked them to."""


def errors_in(folder: Path) -> dict[str, RankError]:
    return {path.name: parse_error(path.read_text()) for path in folder.glob(ERROR_GLOB)}


def sabotaged(folder: Path, way: str, *, rank: int, step: int, made: Cell) -> subprocess.CompletedProcess[str]:
    path = write_cell(folder, made)
    return torchrun(2, str(SABOTAGE), way, str(rank), str(step), "--cell", str(path), "--out", str(folder))


@pytest.mark.torchrun
def test_the_rank_of_an_exception_reports_it_with_its_step_and_no_other_rank_does(tmp_path: Path) -> None:
    done = sabotaged(tmp_path, "raise_exception", rank=1, step=3, made=cell(gpus=2))
    assert done.returncode != 0
    errors = errors_in(tmp_path)
    error = errors["error-rank-1.json"]
    assert (error.error_class, error.step, error.rank) == (ErrorClass.EXCEPTION, 3, 1)
    assert "no such weight" in error.message
    assert error.memory_bytes is None
    raw = json.loads((tmp_path / "error-rank-1.json").read_text())
    assert raw["exception"] == "builtins.KeyError"
    assert "raise_exception" in raw["traceback"]
    assert first_cause(list(errors.values())) == error
    assert not (tmp_path / RESULT_FILE).exists()
    assert "no such weight" in done.stderr


@pytest.mark.torchrun
def test_a_killed_rank_makes_its_peer_report_lost_communication(tmp_path: Path) -> None:
    done = sabotaged(tmp_path, "kill_itself", rank=1, step=2, made=cell(gpus=2, trainer={"comm_timeout_s": 3600.0}))
    assert done.returncode != 0
    (error,) = errors_in(tmp_path).values()
    assert (error.error_class, error.rank) == (ErrorClass.COMMUNICATION, 0)
    assert error.step is not None


@pytest.mark.torchrun
def test_a_rank_that_its_agent_stops_because_another_died_reports_lost_communication(
    tmp_path: Path,
) -> None:
    sabotaged(tmp_path, "kill_the_other", rank=0, step=2, made=cell(gpus=2))
    (error,) = errors_in(tmp_path).values()
    assert (error.error_class, error.rank, error.step) == (ErrorClass.COMMUNICATION, 0, 2)
    assert "another rank of this node died" in error.message


@pytest.mark.torchrun
def test_a_rank_that_hangs_makes_its_peer_report_a_time_out_in_time(tmp_path: Path) -> None:
    sabotaged(tmp_path, "hang", rank=1, step=2, made=cell(gpus=2, trainer={"comm_timeout_s": 20.0}))
    (error,) = errors_in(tmp_path).values()
    assert (error.error_class, error.rank, error.step) == (ErrorClass.COMMUNICATION, 0, 2)
    # The rank that waited is in a collective that the one that hung has not begun.
    waiting, hanging = (pickle.loads((tmp_path / f"{FLIGHT_PREFIX}{rank}").read_bytes())["entries"] for rank in (0, 1))
    assert len(waiting) > len(hanging) > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "expected"),
    [("raise_device_oom", ErrorClass.OOM_DEVICE), ("allocate_too_much", ErrorClass.OOM_HOST)],
)
def test_running_out_of_device_and_of_host_memory_are_distinguished(
    way: str, expected: ErrorClass, tmp_path: Path
) -> None:
    path = write_cell(tmp_path, cell())
    program = [str(SABOTAGE), way, "0", "2", "--cell", str(path), "--out", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, *program], env=environment(), cwd=ROOT, capture_output=True, timeout=240, check=False
    )
    assert done.returncode == 1
    (error,) = errors_in(tmp_path).values()
    assert (error.error_class, error.step) == (expected, 2)


@contextmanager
def running(command: list[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A run that has got past its third step; what of it still lives at the end is killed."""
    process = subprocess.Popen(
        command, env=environment(), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    ranks: list[int] = []
    try:
        wait_for_step(folder, 3, process)
        ranks = children_of(process.pid)
        yield process
    finally:
        process.kill()
        process.wait()
        for pid in filter(is_alive, ranks):
            os.kill(pid, signal.SIGKILL)


def wait_for_step(folder: Path, step: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if Progress.parse((folder / PROGRESS_FILE).read_text()).step >= step:
                return
        except (OSError, RecordError):
            pass
        time.sleep(0.1)
    raise AssertionError("the run never got going")


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def wait_until_gone(pids: list[int], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not any(is_alive(pid) for pid in pids):
            return True
        time.sleep(0.05)
    return False


@pytest.mark.torchrun
def test_sigterm_to_the_agent_ends_all_ranks_within_seconds_and_is_reported(tmp_path: Path) -> None:
    path = write_cell(tmp_path, cell(gpus=2, trainer=ENDLESS))
    command = torchrun_command(2, "-m", "trainer", "--cell", str(path), "--out", str(tmp_path))
    with running(command, tmp_path) as process:
        ranks = children_of(process.pid)
        process.send_signal(signal.SIGTERM)
        assert wait_until_gone(ranks, UNKILLED_S)
        process.wait(timeout=60)
    # One of the two is enough, and the other keeps quiet if it sees the first one's file in time.
    errors = list(errors_in(tmp_path).values())
    assert {error.error_class for error in errors} == {ErrorClass.STOPPED}
    assert all(error.step is not None and error.step >= 3 for error in errors)


@pytest.mark.slow
@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_signal_to_a_lone_process_is_answered_within_seconds(stop: signal.Signals, tmp_path: Path) -> None:
    path = write_cell(tmp_path, cell(trainer=ENDLESS))
    command = [*torchrun_command(1)[:1], "-m", "trainer", "--cell", str(path), "--out", str(tmp_path)]
    with running(command, tmp_path) as process:
        process.send_signal(stop)
        assert process.wait(timeout=60) == 128 + stop
    (error,) = errors_in(tmp_path).values()
    assert (error.error_class, error.message) == (ErrorClass.STOPPED, f"stopped by {stop.name}")


@pytest.mark.torchrun
def test_sigterm_is_answered_while_a_rank_waits_in_a_collective(tmp_path: Path) -> None:
    path = write_cell(tmp_path, cell(gpus=2, trainer={**ENDLESS, "comm_timeout_s": 600.0}))
    command = torchrun_command(2, str(SABOTAGE), "hang", "1", "5", "--cell", str(path), "--out", str(tmp_path))
    with running(command, tmp_path) as process:
        wait_for((tmp_path / HUNG_FILE).exists, 120, "rank 1 leaves rank 0 alone")
        time.sleep(1)  # within which rank 0 gets to its first collective without rank 1, or at least to that step
        ranks = children_of(process.pid)
        process.send_signal(signal.SIGTERM)
        assert wait_until_gone(ranks, UNKILLED_S)
    errors = list(errors_in(tmp_path).values())
    assert {error.error_class for error in errors} == {ErrorClass.STOPPED}
    assert {error.step for error in errors} <= {4, 5}


@pytest.mark.torchrun
def test_no_rank_outlives_its_agent(tmp_path: Path) -> None:
    path = write_cell(tmp_path, cell(gpus=2, trainer=ENDLESS))
    command = torchrun_command(2, "-m", "trainer", "--cell", str(path), "--out", str(tmp_path))
    with running(command, tmp_path) as process:
        ranks = children_of(process.pid)
        process.kill()
        assert wait_until_gone(ranks, 60)


@pytest.mark.slow
def test_records_that_cannot_be_written_still_end_with_an_error(tmp_path: Path) -> None:
    path = write_cell(tmp_path, cell())
    folder = tmp_path / "out"
    folder.mkdir(mode=0o755)
    (folder / "steps.jsonl").mkdir()
    done = alone("--cell", str(path), "--out", str(folder))
    assert done.returncode == 1
    (error,) = errors_in(folder).values()
    assert error.error_class is ErrorClass.EXCEPTION
