from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sweep.adapters.files import lease as module
from sweep.adapters.files.lease import Lease, LeaseHeldError, LeaseLostError, current_holder, start_of, watch_text
from sweep.core.records.layout import LEASE_FILE

_HOLD = """
import sys, time
from pathlib import Path
from sweep.adapters.files.lease import Lease
with Lease(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def _another_process_holds(path: Path) -> subprocess.Popen[str]:
    holder = subprocess.Popen([sys.executable, "-c", _HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline().strip() == "held"
    return holder


def test_a_lease_is_given_back_at_the_end(tmp_path: Path) -> None:
    with Lease(tmp_path):
        holder = current_holder(tmp_path)
        assert holder is not None
        assert holder.pid == os.getpid()
    assert list(tmp_path.iterdir()) == []


def test_the_second_of_two_processes_learns_who_holds_it(tmp_path: Path) -> None:
    holder = _another_process_holds(tmp_path)
    try:
        with pytest.raises(LeaseHeldError, match=f"process {holder.pid} on "), Lease(tmp_path):
            pass
    finally:
        holder.kill()
        holder.wait()


def test_the_lease_of_a_killed_process_is_taken_over_at_once(tmp_path: Path) -> None:
    holder = _another_process_holds(tmp_path)
    holder.kill()
    holder.wait()
    started = time.monotonic()
    with Lease(tmp_path) as lease:
        lease.check()
    assert time.monotonic() - started < 5


def test_a_killed_process_that_nobody_has_waited_for_holds_nothing(tmp_path: Path) -> None:
    holder = _another_process_holds(tmp_path)
    holder.kill()
    os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and stays a zombie
    with Lease(tmp_path) as lease:
        lease.check()
    holder.wait()


def test_a_reused_pid_is_not_taken_for_the_holder(tmp_path: Path) -> None:
    body = {"host": module.socket.gethostname(), "pid": os.getpid(), "started": 1.0, "token": "old"}
    (tmp_path / LEASE_FILE).write_text(json.dumps(body))
    with Lease(tmp_path) as lease:
        lease.check()


def test_a_holder_on_another_host_counts_until_its_heartbeat_stops(tmp_path: Path) -> None:
    body = {"host": "login2.example", "pid": 1, "started": 1.0, "token": "other"}
    path = tmp_path / LEASE_FILE
    path.write_text(json.dumps(body))
    with pytest.raises(LeaseHeldError, match=r"process 1 on login2\.example"), Lease(tmp_path):
        pass
    past = time.time() - module.STALE_AFTER_S - 1
    os.utime(path, (past, past))
    with Lease(tmp_path) as lease:
        lease.check()


def test_a_host_whose_clock_is_ahead_does_not_take_over_from_a_living_holder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"host": "login2.example", "pid": 1, "started": 1.0, "token": "other"}
    (tmp_path / LEASE_FILE).write_text(json.dumps(body))
    monkeypatch.setattr(module.time, "time", lambda now=time.time: now() + 10 * module.STALE_AFTER_S)
    with pytest.raises(LeaseHeldError), Lease(tmp_path):
        pass


def test_an_unreadable_lease_is_nobodys(tmp_path: Path) -> None:
    (tmp_path / LEASE_FILE).write_text("{half")
    with Lease(tmp_path) as lease:
        lease.check()


def test_who_lost_the_lease_learns_it_before_writing_and_does_not_take_it_away(tmp_path: Path) -> None:
    body = {"host": "thief", "pid": 1, "started": 1.0, "token": "new"}
    with Lease(tmp_path) as lost:
        (tmp_path / LEASE_FILE).write_text(json.dumps(body))
        with pytest.raises(LeaseLostError, match="held by process 1 on thief"):
            lost.check()
    assert (tmp_path / LEASE_FILE).exists()


def test_a_held_lease_is_kept_fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HEARTBEAT_S", 0.05)
    with Lease(tmp_path):
        path = tmp_path / LEASE_FILE
        os.utime(path, (1.0, 1.0))
        deadline = time.monotonic() + 60
        while path.stat().st_mtime < 2.0:
            assert time.monotonic() < deadline, "no heartbeat"
            time.sleep(0.02)


@pytest.mark.parametrize(
    ("ahead_s", "who", "when"),
    [
        (30, "watched by process 7 on far", "30 s ago"),
        (-400, "watched by process 7 on far", "400 s from now"),
        (400, "nobody watches it, or process 7 on far does", "400 s ago"),
    ],
)
def test_status_says_of_a_holder_on_another_host_what_it_rests_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead_s: float, who: str, when: str
) -> None:
    path = tmp_path / LEASE_FILE
    path.write_text(json.dumps({"host": "far", "pid": 7, "started": "", "token": "t"}))
    os.utime(path, (1e9, 1e9))
    monkeypatch.setattr(module.time, "time", lambda: 1e9 + ahead_s)
    assert watch_text(tmp_path) == f"{who} (its last heartbeat was {when} by the clock of this host)"


def test_a_living_holder_stays_one_when_the_clock_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Lease(tmp_path):
        # Where a start is reckoned from the time of boot, it moves with every step of the clock.
        monkeypatch.setattr(module.psutil.Process, "create_time", lambda self: 12345.0)
        monkeypatch.setattr(module.time, "time", lambda: 2e9)
        with pytest.raises(LeaseHeldError):
            Lease(tmp_path).__enter__()
        assert current_holder(tmp_path) is not None


def test_the_start_of_a_process_tells_it_from_another_of_its_number() -> None:
    mine = start_of(os.getpid())
    assert mine is not None
    assert start_of(os.getpid()) == mine
    assert start_of(1) not in (mine, None)
    child = os.posix_spawn("/bin/true", ["true"], {})
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert start_of(child) is None, "a zombie holds nothing"
    os.waitpid(child, 0)
    assert start_of(child) is None
