"""A rank that hangs is ended with an error file; a rank that makes progress is not."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sweep.core.attempts.attempt import ErrorClass, RankError
from sweep.core.records.attempt_record import parse_error
from sweep.core.records.layout import rank_error
from tests.trainer.places import ranks
from trainer.failure.error_report import ErrorReporter, RankProgress
from trainer.failure.process_exit import EXIT_FAILED
from trainer.failure.watchers import HangWatcher


def gave_up(
    folder: Path, reporter: ErrorReporter, *, limit_s: float = 0.1, **asked: Callable[[], object]
) -> tuple[int, RankError | None]:
    """Exit code and error of a rank whose watcher gives up."""
    codes: list[int] = []
    ended = threading.Event()

    def end(code: int) -> None:
        codes.append(code)
        ended.set()

    questions: dict[str, Any] = {"n_done": lambda: 0, **asked}
    with HangWatcher(reporter, limit_s=limit_s, period_s=0.01, end=end, **questions):
        assert ended.wait(60)
    path = folder / rank_error(0)
    return codes[0], parse_error(path.read_text()) if path.exists() else None


def test_a_hang_is_reported_as_lost_communication(tmp_path: Path) -> None:
    done = iter([0, 1, 2, 3])
    reporter = ErrorReporter(tmp_path, ranks(0), RankProgress(step=3, phase="training"))
    began = time.monotonic()
    code, error = gave_up(tmp_path, reporter, limit_s=0.2, n_done=lambda: next(done, 3))
    assert time.monotonic() - began > 0.2
    assert code == EXIT_FAILED
    assert error is not None
    assert (error.error_class, error.step) == (ErrorClass.COMMUNICATION, 3)
    assert error.message.startswith("training: nothing has ended for ")
    assert "compiling" not in error.message


def test_a_hang_in_the_first_step_may_be_compiling(tmp_path: Path) -> None:
    _, error = gave_up(tmp_path, ErrorReporter(tmp_path, ranks(0), RankProgress(step=0, phase="training")))
    assert error is not None
    assert "The first step includes compiling" in error.message


def test_an_error_that_nccl_notes_is_reported_though_steps_go_on(tmp_path: Path) -> None:
    counted = iter(range(10**6))
    reporter = ErrorReporter(tmp_path, ranks(0), RankProgress())
    code, error = gave_up(tmp_path, reporter, n_done=lambda: next(counted), error=lambda: "NCCL reports an error")
    assert error is not None
    assert (code, error.error_class, error.message) == (
        EXIT_FAILED,
        ErrorClass.COMMUNICATION,
        "NCCL reports an error",
    )


def test_a_device_error_is_reported_with_its_class(tmp_path: Path) -> None:
    def n_done() -> int:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    code, error = gave_up(tmp_path, ErrorReporter(tmp_path, ranks(0), RankProgress()), n_done=n_done)
    assert error is not None
    assert (code, error.error_class) == (EXIT_FAILED, ErrorClass.DEVICE)


def test_a_rank_whose_result_is_written_ends_well_though_its_groups_do_not_close(tmp_path: Path) -> None:
    assert gave_up(tmp_path, ErrorReporter(tmp_path, ranks(0), RankProgress(is_done=True))) == (0, None)


def test_a_rank_that_begins_new_phases_is_not_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[int] = []
    progress = RankProgress()
    enough = threading.Event()
    now_s = itertools.count(step=0.4)
    clock = SimpleNamespace(monotonic=lambda: next(now_s), time=time.time, sleep=time.sleep)
    monkeypatch.setattr("trainer.failure.watchers.time", clock)

    def n_done() -> int:
        progress.begins("another")
        if progress.n_phases == 10:
            enough.set()
        return 0

    with HangWatcher(ErrorReporter(tmp_path, ranks(0), progress), n_done, limit_s=0.5, period_s=0.01, end=codes.append):
        assert enough.wait(60)
    assert codes == []


def test_a_rank_whose_steps_end_is_not_ended(tmp_path: Path) -> None:
    codes: list[int] = []
    counted = iter(range(10**6))
    reporter = ErrorReporter(tmp_path, ranks(0), RankProgress())
    with HangWatcher(reporter, lambda: next(counted), limit_s=0.5, period_s=0.01, end=codes.append):
        time.sleep(1.0)
    assert codes == []
    assert list(tmp_path.iterdir()) == []
