"""Ranks that a signal ends leave nothing themselves: their launcher says which signal, and the judge what follows."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from sweep.core.attempts.attempt import ErrorClass, JobReport, Outcome, Phase, RankError
from sweep.core.attempts.verdict import Evidence, judge
from sweep.core.settings.spec import Runner
from sweep.launch.exits import RankExit, Witness, explain, explain_agent, read, render
from tests.stubs.jobs import altered, stub_launch, submission
from tests.sweep.launch.launches import attempt_file, command, error_of, folder, launch, place, wait_ready

ENDED = JobReport(state="FAILED", phase=Phase.ENDED, exit_code=1)


def ended(rank: int, exit_code: int, at: float = 100.0) -> RankExit:
    return RankExit(rank=rank, exit_code=exit_code, time=at)


def silent(rank: int) -> bool:
    return False


@pytest.mark.parametrize(
    ("counts_kills", "words"),
    [
        (True, "not for want of host memory"),
        (False, "or for want of host memory; the kernel does not tell"),
    ],
)
def test_a_kill_that_the_kernel_did_not_count_is_a_lost_peer(counts_kills: bool, words: str) -> None:
    found = explain([ended(1, -9), ended(0, -9)], silent, counts_kills=counts_kills)
    assert found is not None
    assert (found.error_class, found.time) == (ErrorClass.COMMUNICATION, 100.0)
    assert found.message.startswith("ranks 0, 1 were ended by SIGKILL: ")
    assert words in found.message
    error = RankError(rank=None, node_rank=0, time=100.0, error_class=found.error_class, message=found.message)
    assert judge(Evidence(has_result=False, report=ENDED, errors=[error])).outcome is Outcome.COMM_FAILURE


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE])
def test_a_crash_is_named_and_is_the_cause_beside_peers_that_were_lost(number: signal.Signals) -> None:
    # Rank 0 lost its peer, said so, and left before torchrun looked; rank 2 was stopped by torchrun.
    exits = [ended(0, 1), ended(1, -number), ended(2, -15, 101.0)]
    found = explain(exits, lambda rank: rank == 0, counts_kills=True)
    assert found is not None
    assert found.error_class is ErrorClass.EXCEPTION
    assert found.message.startswith(f"rank 1 was ended by {number.name}: ")
    lost = RankError(rank=0, node_rank=0, time=99.0, error_class=ErrorClass.COMMUNICATION, message="peer lost")
    found = RankError(rank=None, node_rank=0, time=100.0, error_class=found.error_class, message=found.message)
    verdict = judge(Evidence(has_result=False, report=ENDED, errors=[lost, found]))
    assert verdict.outcome is Outcome.TRAINER_ERROR
    assert f"rank 1 was ended by {number.name}" in verdict.reason


def test_a_crash_comes_before_a_kill() -> None:
    found = explain([ended(0, -9), ended(1, -11)], silent, counts_kills=True)
    assert found is not None
    assert "SIGSEGV" in found.message


def test_what_torchrun_ended_itself_is_not_blamed() -> None:
    # Rank 0 raised an exception; rank 1 did not stop in time, and was killed for it.
    assert explain([ended(0, 1), ended(1, -9, 130.0)], lambda rank: rank == 0, counts_kills=True) is None
    assert explain([ended(0, 1), ended(1, -15)], silent, counts_kills=True) is None
    assert explain([], silent, counts_kills=True) is None


def test_a_rank_that_has_spoken_is_not_spoken_for() -> None:
    # NCCL aborts a process after the trainer's own watcher has written why.
    assert explain([ended(0, -6)], lambda rank: True, counts_kills=True) is None


# As torch words what its NCCL watchdog throws: the message, then a stack of frames.
THROWN = (
    "terminate called after throwing an instance of 'c10::DistBackendError'\n  what():  [PG ID 0 PG GUID 0 Rank 0] "
)
DIED = f"{THROWN}Process group watchdog thread terminated with exception: "
FRAMES = "\nframe #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x80 (0x7f in libc10.so)" * 60
WORDS = {
    "a lost peer": (
        f"{THROWN}NCCL error: remote process exited\nncclRemoteError: A call failed{FRAMES}",
        "communication",
    ),
    "a device": (f"{DIED}CUDA error: an illegal memory access was encountered{FRAMES}", "device"),
    "bad memory": (f"{DIED}CUDA error: uncorrectable ECC error encountered{FRAMES}", "device"),
    "what warned early on": ("node1:1:1 NCCL WARN Failed to open libibverbs.so\nfree(): invalid pointer", "exception"),
    "a warning of torch": (
        "[W1130 05:57:44.3 socket.cpp:1] sendBytes failed: Broken pipe\n"
        "python: a.cpp:12: f(int): Assertion `x > 0' failed.",
        "exception",
    ),
    "another error before the end": (
        f"CUDA out of memory, trying again with less\n{THROWN}NCCL error: ncclRemoteError: remote process exited",
        "communication",
    ),
    "an error that NCCL warns of": ("n:1:1 NCCL WARN Call to recv failed with error: reset\nAborted", "communication"),
    "a failed assertion": ("NCCL version 2.27.5\npython: a.cpp:12: f(int): Assertion `x > 0' failed.", "exception"),
}


@pytest.mark.parametrize("name", WORDS)
def test_an_abort_on_a_gpu_is_what_the_rank_printed_before_it(name: str) -> None:
    text, expected = WORDS[name]
    found = explain([ended(0, -6)], silent, counts_kills=True, witness=Witness(last_messages={0: text.splitlines()}))
    assert found is not None
    assert found.error_class == expected
    # A CPU's ranks raise what they meet; there an abort is the code's own.
    found = explain([ended(0, -6)], silent, counts_kills=True)
    assert found is not None
    assert found.error_class is ErrorClass.EXCEPTION


def test_of_ranks_that_aborted_the_one_that_names_a_cause_or_nothing_comes_before_those_that_lost_it() -> None:
    lost, device, nothing = (WORDS[name][0].splitlines() for name in ("a lost peer", "a device", "a failed assertion"))
    for words, expected in (
        ({0: lost, 1: device}, ErrorClass.DEVICE),
        ({0: lost, 1: nothing}, ErrorClass.EXCEPTION),
        ({0: lost, 1: lost}, ErrorClass.COMMUNICATION),
    ):
        found = explain([ended(0, -6), ended(1, -6)], silent, counts_kills=True, witness=Witness(last_messages=words))
        assert found is not None
        assert found.error_class is expected


@pytest.mark.parametrize(("at", "expected"), [(97.0, ErrorClass.COMMUNICATION), (100.4, ErrorClass.EXCEPTION)])
def test_a_silent_abort_follows_from_a_lost_peer_only_where_that_was_reported_before(
    at: float, expected: ErrorClass
) -> None:
    found = explain([ended(1, -6)], silent, counts_kills=True, witness=Witness(peers_lost_at=[at]))
    assert found is not None
    assert found.error_class is expected


@pytest.mark.parametrize(("code", "named"), [(-9, True), (-11, True), (-15, False), (1, False), (0, False)])
def test_an_agent_that_a_signal_ended_is_spoken_for_too(code: int, named: bool) -> None:
    found = explain_agent(code, "torchrun", counts_kills=True)
    assert (found is not None) == named
    assert found is None or found.message.startswith(f"torchrun was ended by {signal.Signals(-code).name}: ")


def test_what_the_agent_leaves_is_read_back_and_nothing_where_it_left_nothing(tmp_path: Path) -> None:
    exits = [ended(0, 1), ended(1, -9)]
    (tmp_path / "exits.json").write_text(render(exits))
    assert read(tmp_path / "exits.json") == exits
    (tmp_path / "half.json").write_text(render(exits)[:-3])
    assert read(tmp_path / "half.json") == read(tmp_path / "none.json") == []


@pytest.mark.torchrun
@pytest.mark.parametrize(
    ("fates", "error_class", "words"),
    [
        ("9,9", ErrorClass.COMMUNICATION, "SIGKILL"),
        ("-1,11", ErrorClass.EXCEPTION, "rank 1 was ended by SIGSEGV"),
    ],
)
def test_ranks_that_a_signal_ended_under_torchrun_are_in_the_nodes_error_file(
    fates: str, error_class: ErrorClass, words: str, tmp_path: Path
) -> None:
    entry = stub_launch("ends_itself", "--fates", fates, runner=Runner.TORCHRUN)
    made = submission(tmp_path, entry, gpus_per_node=2)
    assert launch(made).returncode == 1
    error = error_of(folder(made))
    assert (error.error_class, error.rank, error.node_rank) == (error_class, None, 0)
    assert words in error.message
    assert attempt_file(folder(made)).exit_code == 1


@pytest.mark.torchrun
def test_the_last_words_of_a_gpus_rank_are_read_out_of_torchruns_copies(tmp_path: Path) -> None:
    words, _ = WORDS["bad memory"]
    entry = stub_launch("ends_itself", "--fates", "6,0", "--words", words, runner=Runner.TORCHRUN)
    made = altered(submission(tmp_path, entry, gpus_per_node=2), device_type="cuda")
    assert launch(made).returncode == 1
    error = error_of(folder(made))
    assert (error.error_class, error.node_rank) == (ErrorClass.DEVICE, 0)
    assert "rank 0 was ended by SIGABRT" in error.message
    assert "uncorrectable ECC" in error.message
    assert judge(Evidence(has_result=False, report=ENDED, errors=[error])).outcome is Outcome.DEVICE_ERROR


def test_an_entry_that_is_killed_is_in_it_too_and_one_that_fails_is_not(tmp_path: Path) -> None:
    killed = submission(tmp_path / "killed", stub_launch("ends_itself", "--fates", "9"))
    assert launch(killed).returncode == 137
    assert "the entry was ended by SIGKILL" in error_of(folder(killed)).message
    failed = submission(tmp_path / "failed", stub_launch("ends_itself", "--fates", "-1"))
    assert launch(failed).returncode == 1
    assert not list(folder(failed).glob("error-*"))


def test_a_stop_is_reported_as_a_stop(tmp_path: Path) -> None:
    made = submission(tmp_path, stub_launch("hangs", "--deaf"))
    process = subprocess.Popen(command(made, *place()), start_new_session=True)
    wait_ready(folder(made))
    process.terminate()
    assert process.wait(timeout=60) == 143
    assert error_of(folder(made)).error_class is ErrorClass.STOPPED
