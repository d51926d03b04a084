"""Which error is of which kind, and which rank says it."""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
import torch
import torch.distributed as dist

from sweep.core.attempt import ErrorClass, RankError
from sweep.core.error_text import CLASSIFICATION, classify_text
from sweep.core.record import node_error, parse_error, rank_error, render_error
from tests.commands import wait_for
from tests.trainer.processes import script, torchrun
from trainer import nccl
from trainer.failure import (
    EXIT_FAILED,
    HangWatcher,
    Reporter,
    Whereabouts,
    classify,
    living_children,
)
from trainer.ranks import Ranks

_GOLDEN = Path(__file__).parent / "golden" / "error_messages.json"
MESSAGES = [
    (ErrorClass(name), text)
    for name, texts in json.loads(_GOLDEN.read_text(encoding="utf-8"))["messages"].items()
    for text in texts
]


@pytest.mark.parametrize(("expected", "text"), MESSAGES, ids=[text[:60] for _, text in MESSAGES])
def test_a_message_is_of_its_kind(expected: ErrorClass, text: str) -> None:
    assert classify_text(text) is expected


def test_every_line_of_the_table_decides_some_message() -> None:
    deciding = {next((i for i, line in enumerate(CLASSIFICATION) if line[1].search(text)), -1) for _, text in MESSAGES}
    assert deciding >= set(range(len(CLASSIFICATION)))


def test_torchs_own_exceptions_are_known_by_their_class() -> None:
    assert classify(torch.OutOfMemoryError("x")) is ErrorClass.OOM_DEVICE
    assert classify(MemoryError()) is ErrorClass.OOM_HOST
    for kind in (dist.DistBackendError, dist.DistNetworkError, dist.DistStoreError):
        assert classify(kind("x")) is ErrorClass.COMMUNICATION
    assert classify(KeyError("x")) is ErrorClass.EXCEPTION


def test_an_exception_is_of_the_kind_that_it_was_raised_from() -> None:
    def build() -> NoReturn:
        try:
            raise torch.OutOfMemoryError("CUDA out of memory")
        except RuntimeError as error:
            raise ValueError("cannot build block 3") from error

    with pytest.raises(ValueError, match="block 3") as caught:
        build()
    assert classify(caught.value) is ErrorClass.OOM_DEVICE


def test_an_allocation_that_really_fails_is_a_lack_of_host_memory() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 50)
    assert classify(caught.value) is ErrorClass.OOM_HOST


def ranks(rank: int, *, of: int = 4, node_rank: int = 0) -> Ranks:
    return Ranks(
        rank=rank, world_size=2 * of, local_rank=rank % of, local_world_size=of, node_rank=node_rank, has_agent=True
    )


def test_an_error_file_tells_step_memory_class_and_traceback(tmp_path: Path) -> None:
    where = Whereabouts(step=7, memory_bytes=lambda: 123)
    try:
        raise RuntimeError("line one\nline two")
    except RuntimeError as error:
        Reporter(tmp_path, ranks(5, node_rank=1), where).exception(error)
    text = (tmp_path / rank_error(5)).read_text()
    found = parse_error(text)
    assert (found.step, found.memory_bytes, found.node_rank, found.rank) == (7, 123, 1, 5)
    assert found.message == "line one\nline two"
    assert json.loads(text)["exception"] == "builtins.RuntimeError"
    assert "Traceback" in json.loads(text)["traceback"]


def test_a_device_that_cannot_even_tell_its_memory_still_leaves_an_error(tmp_path: Path) -> None:
    def broken() -> int:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    assert Reporter(tmp_path, ranks(0), Whereabouts(memory_bytes=broken)).report(ErrorClass.DEVICE, "x")
    assert parse_error((tmp_path / rank_error(0)).read_text()).memory_bytes is None


def test_a_rank_reports_once(tmp_path: Path) -> None:
    reporter = Reporter(tmp_path, ranks(0), Whereabouts())
    assert reporter.report(ErrorClass.EXCEPTION, "the cause")
    assert not reporter.report(ErrorClass.STOPPED, "then stopped")
    assert parse_error((tmp_path / rank_error(0)).read_text()).message == "the cause"


def test_of_the_ranks_that_see_a_consequence_one_of_each_node_says_so(tmp_path: Path) -> None:
    for rank in range(8):
        Reporter(tmp_path, ranks(rank, node_rank=rank // 4), Whereabouts()).report(ErrorClass.COMMUNICATION, "lost")
    assert {path.name for path in tmp_path.iterdir()} == {rank_error(0), rank_error(4)}


def test_of_ranks_that_see_a_consequence_at_the_same_moment_one_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def until_the_first_has_spoken(seconds: float) -> None:
        # The moment that a rank gives those before it, on a machine that may be busy.
        wait_for(lambda: seconds == 0 or (tmp_path / rank_error(0)).exists(), 30, "rank 0 speaks")

    clock = SimpleNamespace(sleep=until_the_first_has_spoken, time=time.time, monotonic=time.monotonic)
    monkeypatch.setattr("trainer.failure.time", clock)
    reporters = [Reporter(tmp_path, ranks(rank), Whereabouts()) for rank in range(4)]
    threads = [threading.Thread(target=r.report, args=(ErrorClass.STOPPED, "stopped")) for r in reporters]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {path.name for path in tmp_path.iterdir()} == {rank_error(0)}


def test_a_cause_is_said_though_a_consequence_was_said_first(tmp_path: Path) -> None:
    Reporter(tmp_path, ranks(0), Whereabouts()).report(ErrorClass.COMMUNICATION, "lost")
    assert Reporter(tmp_path, ranks(1), Whereabouts()).report(ErrorClass.OOM_DEVICE, "out of memory")


def test_the_launchers_error_does_not_silence_a_rank(tmp_path: Path) -> None:
    Reporter(tmp_path, ranks(0), Whereabouts()).report(ErrorClass.EXCEPTION, "x")
    (tmp_path / rank_error(0)).rename(tmp_path / node_error(0))
    assert Reporter(tmp_path, ranks(1), Whereabouts()).report(ErrorClass.COMMUNICATION, "lost")


def test_what_happens_after_the_result_is_no_error(tmp_path: Path) -> None:
    assert not Reporter(tmp_path, ranks(0), Whereabouts(is_done=True)).report(ErrorClass.STOPPED, "stopped")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_gone_is_said_and_does_not_raise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not Reporter(tmp_path / "gone", ranks(0), Whereabouts()).report(ErrorClass.EXCEPTION, "x")
    assert "cannot write" in capsys.readouterr().err


def test_an_error_round_trips_through_its_file() -> None:
    error = parse_error(render_error(parse_error(json.dumps({
        "schema": 1, "kind": "error", "rank": None, "node_rank": 0, "time": 1.0,
        "error_class": "device", "message": "m", "step": None, "memory_bytes": None,
    }))))  # fmt: skip
    assert error.error_class is ErrorClass.DEVICE


def test_steps_that_stop_ending_are_a_lost_communication(tmp_path: Path) -> None:
    codes: list[int] = []
    ended = threading.Event()

    def end(code: int) -> None:
        codes.append(code)
        ended.set()

    done = iter([0, 1, 2, 3])
    reporter = Reporter(tmp_path, ranks(0), Whereabouts(step=3, phase="training"))
    began = time.monotonic()
    with HangWatcher(reporter, lambda: next(done, 3), limit_s=0.2, period_s=0.01, end=end):
        assert ended.wait(60)
    assert time.monotonic() - began > 0.2
    assert codes == [EXIT_FAILED]
    error = parse_error((tmp_path / rank_error(0)).read_text())
    assert (error.error_class, error.step) == (ErrorClass.COMMUNICATION, 3)
    assert error.message.startswith("training: nothing has ended for ")
    assert "compiling" not in error.message


def test_a_hang_in_the_first_step_may_be_compiling(tmp_path: Path) -> None:
    _, error = gave_up(tmp_path, Reporter(tmp_path, ranks(0), Whereabouts(step=0, phase="training")))
    assert error is not None
    assert "The first step includes compiling" in error.message


def gave_up(folder: Path, reporter: Reporter, **asked: Callable[[], object]) -> tuple[int, RankError | None]:
    """Exit code and error of a rank whose watcher gives up."""
    codes: list[int] = []
    ended = threading.Event()

    def end(code: int) -> None:
        codes.append(code)
        ended.set()

    questions: dict[str, Any] = {"n_done": lambda: 0, **asked}
    with HangWatcher(reporter, limit_s=0.1, period_s=0.01, end=end, **questions):
        assert ended.wait(60)
    path = folder / rank_error(0)
    return codes[0], parse_error(path.read_text()) if path.exists() else None


def test_what_nccl_notes_in_the_background_is_said_though_steps_go_on(tmp_path: Path) -> None:
    counted = iter(range(10**6))
    reporter = Reporter(tmp_path, ranks(0), Whereabouts())
    code, error = gave_up(tmp_path, reporter, n_done=lambda: next(counted), error=lambda: "NCCL reports an error")
    assert error is not None
    assert (code, error.error_class, error.message) == (
        EXIT_FAILED,
        ErrorClass.COMMUNICATION,
        "NCCL reports an error",
    )


def test_a_device_that_answers_with_its_error_is_said_with_its_kind(tmp_path: Path) -> None:
    def n_done() -> int:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    code, error = gave_up(tmp_path, Reporter(tmp_path, ranks(0), Whereabouts()), n_done=n_done)
    assert error is not None
    assert (code, error.error_class) == (EXIT_FAILED, ErrorClass.DEVICE)


def test_a_rank_whose_result_is_written_ends_well_though_its_groups_do_not_close(tmp_path: Path) -> None:
    assert gave_up(tmp_path, Reporter(tmp_path, ranks(0), Whereabouts(is_done=True))) == (0, None)


def test_phases_that_go_on_beginning_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[int] = []
    whereabouts = Whereabouts()
    enough = threading.Event()
    now_s = itertools.count(step=0.4)
    clock = SimpleNamespace(monotonic=lambda: next(now_s), time=time.time, sleep=time.sleep)
    monkeypatch.setattr("trainer.failure.time", clock)

    def n_done() -> int:
        whereabouts.begins("another")
        if whereabouts.n_phases == 10:
            enough.set()
        return 0

    with HangWatcher(Reporter(tmp_path, ranks(0), whereabouts), n_done, limit_s=0.5, period_s=0.01, end=codes.append):
        assert enough.wait(60)
    assert codes == []


# Its report takes a second; its first argument is the folder.
_RANK = """
import os, signal, sys, threading, time
from pathlib import Path
from trainer.failure import HangWatcher, Reporter, StopWatcher, Whereabouts, reported
from trainer.ranks import Ranks

def slowly():
    time.sleep(1.0)
    return None

reporter = Reporter(Path(sys.argv[1]), Ranks(), Whereabouts(memory_bytes=slowly))
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

reporter.whereabouts.memory_bytes = stopped_meanwhile
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


def test_a_rank_that_is_stopped_while_it_leaves_a_refusal_to_others_says_it(tmp_path: Path) -> None:
    waiting = """
StopWatcher(reporter, Ranks(), grace_s=0.1).start()
reporter.whereabouts.refusal = "cell.json: cannot read it"
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(30)
"""
    done = script("-c", _RANK + waiting, str(tmp_path), timeout_s=240)
    assert done.returncode == 143
    error = parse_error((tmp_path / rank_error(0)).read_text())
    assert (error.error_class, error.message) == (ErrorClass.REFUSED, "cell.json: cannot read it")


@dataclass
class FakeBackend:
    name: str

    def get_error(self) -> FakeBackend:
        return self


def test_an_nccl_backend_says_what_kind_of_error_it_has_met() -> None:
    well = FakeBackend("SUCCESS")
    assert nccl.error([]) == nccl.error([well, well]) == ""
    assert "time-out" in nccl.error([well, FakeBackend("TIMEOUT")])
    assert nccl.error([FakeBackend("NEW")]) == "NEW"
    kinds: Any = torch._C._distributed_c10d.ErrorType  # type: ignore[attr-defined]  # not in torch's stubs
    for kind in kinds.__members__:
        assert kind == "SUCCESS" or " " in nccl.error([FakeBackend(kind)])


def test_nccl_notes_errors_instead_of_aborting_unless_the_user_says_otherwise() -> None:
    environ: dict[str, str] = {}
    nccl.prepare(environ)
    assert environ == {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "2", "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0"}
    for name in ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING"):
        said = {name: "1", "TORCH_NCCL_RETHROW_CUDA_ERRORS": "1"}
        nccl.prepare(said)
        assert said == {name: "1", "TORCH_NCCL_RETHROW_CUDA_ERRORS": "1"}
    torn_down = {"TORCHELASTIC_RUN_ID": "x", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}
    nccl.prepare(torn_down)
    assert torn_down["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "3"


@pytest.mark.torchrun
def test_what_torchrun_says_of_nccls_errors_by_itself_is_not_the_users_word(tmp_path: Path) -> None:
    name = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
    program = tmp_path / "rank.py"
    program.write_text(
        "import os\nfrom trainer import nccl\n"
        f"before = os.environ[{name!r}]\nnccl.prepare(os.environ)\nprint(before, os.environ[{name!r}])\n"
    )
    done = torchrun(1, str(program))
    assert done.stdout.split() == ["1", "2"], done.stderr


def test_steps_that_go_on_ending_are_left_alone(tmp_path: Path) -> None:
    codes: list[int] = []
    counted = iter(range(10**6))
    reporter = Reporter(tmp_path, ranks(0), Whereabouts())
    with HangWatcher(reporter, lambda: next(counted), limit_s=0.5, period_s=0.01, end=codes.append):
        time.sleep(1.0)
    assert codes == []
    assert list(tmp_path.iterdir()) == []


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
