"""The rank that reports an error, and the content of its error file."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.distributed.pipelining._backward import stage_backward

from sweep.core.attempts.attempt import ErrorClass
from sweep.core.records.attempt_record import parse_error, render_error
from sweep.core.records.layout import node_error, rank_error
from tests.commands import wait_for
from tests.trainer.places import ranks
from tests.trainer.processes import script
from trainer.failure.error_report import ErrorReporter, RankProgress
from trainer.failure.process_exit import EXIT_FAILED, living_children


def test_an_error_file_has_step_memory_class_and_traceback(tmp_path: Path) -> None:
    where = RankProgress(step=7, memory_bytes=lambda: 123)
    try:
        raise RuntimeError("line one\nline two")
    except RuntimeError as error:
        ErrorReporter(tmp_path, ranks(5), where).exception(error)
    text = (tmp_path / rank_error(5)).read_text()
    found = parse_error(text)
    assert (found.step, found.memory_bytes, found.node_rank, found.rank) == (7, 123, 1, 5)
    assert found.message == "line one\nline two"
    assert json.loads(text)["exception"] == "builtins.RuntimeError"
    assert "Traceback" in json.loads(text)["traceback"]


def test_an_error_file_begins_with_what_an_exception_was_raised_from(tmp_path: Path) -> None:
    def out_of_memory(x: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    # As torch wraps whatever a stage of a pipeline raises, in each direction.
    leaf = torch.ones(2, requires_grad=True)
    loss = leaf.clone()
    loss.register_hook(out_of_memory)
    with pytest.raises(RuntimeError, match="Failed to run stage backward") as caught:
        stage_backward(loss.sum(), None, [leaf])
    ErrorReporter(tmp_path, ranks(0), RankProgress()).exception(caught.value)
    first, *rest = parse_error((tmp_path / rank_error(0)).read_text()).message.splitlines()
    assert first.startswith("CUDA out of memory. Tried to allocate 2.00 GiB.")
    assert "Failed to run stage backward:" in [line.strip() for line in rest]


def test_a_device_that_cannot_report_its_memory_still_leaves_an_error(tmp_path: Path) -> None:
    def broken() -> int:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    assert ErrorReporter(tmp_path, ranks(0), RankProgress(memory_bytes=broken)).report(ErrorClass.DEVICE, "x")
    assert parse_error((tmp_path / rank_error(0)).read_text()).memory_bytes is None


def test_a_rank_reports_once(tmp_path: Path) -> None:
    reporter = ErrorReporter(tmp_path, ranks(0), RankProgress())
    assert reporter.report(ErrorClass.EXCEPTION, "the cause")
    assert not reporter.report(ErrorClass.STOPPED, "then stopped")
    assert parse_error((tmp_path / rank_error(0)).read_text()).message == "the cause"


def test_one_rank_of_each_node_reports_a_consequence(tmp_path: Path) -> None:
    for rank in range(8):
        ErrorReporter(tmp_path, ranks(rank), RankProgress()).report(ErrorClass.COMMUNICATION, "lost")
    assert {path.name for path in tmp_path.iterdir()} == {rank_error(0), rank_error(4)}


def test_one_of_several_ranks_that_meet_a_consequence_at_once_reports_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def until_the_first_has_spoken(seconds: float) -> None:
        # The moment that a rank gives those before it, on a machine that may be busy.
        wait_for(lambda: seconds == 0 or (tmp_path / rank_error(0)).exists(), 30, "rank 0 speaks")

    clock = SimpleNamespace(sleep=until_the_first_has_spoken, time=time.time, monotonic=time.monotonic)
    monkeypatch.setattr("trainer.failure.error_report.time", clock)
    reporters = [ErrorReporter(tmp_path, ranks(rank), RankProgress()) for rank in range(4)]
    threads = [threading.Thread(target=r.report, args=(ErrorClass.STOPPED, "stopped")) for r in reporters]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {path.name for path in tmp_path.iterdir()} == {rank_error(0)}


def test_a_cause_is_reported_though_a_consequence_was_reported_first(tmp_path: Path) -> None:
    ErrorReporter(tmp_path, ranks(0), RankProgress()).report(ErrorClass.COMMUNICATION, "lost")
    assert ErrorReporter(tmp_path, ranks(1), RankProgress()).report(ErrorClass.OOM_DEVICE, "out of memory")


def test_the_launchers_error_does_not_silence_a_rank(tmp_path: Path) -> None:
    ErrorReporter(tmp_path, ranks(0), RankProgress()).report(ErrorClass.EXCEPTION, "x")
    (tmp_path / rank_error(0)).rename(tmp_path / node_error(0))
    assert ErrorReporter(tmp_path, ranks(1), RankProgress()).report(ErrorClass.COMMUNICATION, "lost")


def test_an_event_after_the_result_is_no_error(tmp_path: Path) -> None:
    assert not ErrorReporter(tmp_path, ranks(0), RankProgress(is_done=True)).report(ErrorClass.STOPPED, "stopped")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_printed_and_does_not_raise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not ErrorReporter(tmp_path / "gone", ranks(0), RankProgress()).report(ErrorClass.EXCEPTION, "x")
    assert "cannot write" in capsys.readouterr().err


def test_an_error_round_trips_through_its_file() -> None:
    error = parse_error(render_error(parse_error(json.dumps({
        "schema": 1, "kind": "error", "rank": None, "node_rank": 0, "time": 1.0,
        "error_class": "device", "message": "m", "step": None, "memory_bytes": None,
    }))))  # fmt: skip
    assert error.error_class is ErrorClass.DEVICE


# Its report takes a second; its first argument is the folder.
_RANK = """
import os, signal, sys, threading, time
from pathlib import Path
from trainer.failure.error_report import ErrorReporter, RankProgress, reported
from trainer.failure.watchers import HangWatcher
from trainer.failure.watchers import StopWatcher
from trainer.process.ranks import Ranks

def slowly():
    time.sleep(1.0)
    return None

reporter = ErrorReporter(Path(sys.argv[1]), Ranks(), RankProgress(memory_bytes=slowly))
"""

_MEETS_IT_TOO = """
noticed = threading.Event()
def error():
    noticed.set()
    {answer}
with reported(reporter), HangWatcher(reporter, int, limit_s=60, period_s=1.0, error=error):
    noticed.wait()
    raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")
"""

_IS_STOPPED = """
def stopped_meanwhile():
    os.kill(os.getpid(), signal.SIGTERM)
    return slowly()

reporter.progress.memory_bytes = stopped_meanwhile
StopWatcher(reporter, Ranks(), grace_s=0.2).start()
with reported(reporter):
    raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")
"""


@pytest.mark.parametrize(
    ("ending", "codes"),
    [
        (_MEETS_IT_TOO.replace("{answer}", "return 'NCCL reports an error'"), {EXIT_FAILED}),
        (_MEETS_IT_TOO.replace("{answer}", "raise RuntimeError('CUDA error: an illegal access')"), {EXIT_FAILED}),
        (_IS_STOPPED, {EXIT_FAILED, 143}),
    ],
    ids=["NCCL has noted it", "the device answers with it", "stopped meanwhile"],
)
def test_what_the_main_thread_reports_is_written_though_another_thread_would_end_the_rank(
    ending: str, codes: set[int], tmp_path: Path
) -> None:
    done = script("-c", _RANK + ending, str(tmp_path), timeout_s=240)
    assert parse_error((tmp_path / rank_error(0)).read_text()).error_class is ErrorClass.OOM_DEVICE, done.stderr
    assert done.returncode in codes


def test_a_rank_that_is_stopped_while_it_waits_for_anothers_refusal_reports_it(tmp_path: Path) -> None:
    waiting = """
StopWatcher(reporter, Ranks(), grace_s=0.1).start()
reporter.progress.refusal = "cell.json: cannot read it"
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(30)
"""
    done = script("-c", _RANK + waiting, str(tmp_path), timeout_s=240)
    assert done.returncode == 143
    error = parse_error((tmp_path / rank_error(0)).read_text())
    assert (error.error_class, error.message) == (ErrorClass.REFUSED, "cell.json: cannot read it")


def test_living_children_counts_processes_that_run() -> None:
    before = living_children(os.getpid())
    child = os.posix_spawn("/bin/sleep", ["sleep", "30"], {})
    try:
        assert living_children(os.getpid()) == before + 1
        os.kill(child, 9)
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        assert living_children(os.getpid()) == before  # a zombie does not run
    finally:
        os.waitpid(child, 0)


def test_threads_that_end_meanwhile_do_not_hide_how_many_children_live() -> None:
    over = threading.Event()

    def churn() -> None:
        while not over.is_set():
            threading.Thread(target=time.sleep, args=(1e-4,)).start()

    before = living_children(os.getpid())
    churning = threading.Thread(target=churn)
    churning.start()
    try:
        assert {living_children(os.getpid()) for _ in range(300)} == {before}
    finally:
        over.set()
        churning.join()


def test_the_children_of_a_process_that_is_gone_count_as_alive() -> None:
    assert living_children(1 << 22) > 1_000_000
