"""No other user can reach a store of a job that stays on one machine."""

from __future__ import annotations

import ipaddress
import os
import stat
import tempfile
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import psutil
import pytest

from sweep.adapters.local.scheduler import LocalScheduler
from sweep.core.attempts.attempt import Phase
from sweep.core.records.layout import CELL_FILE, attempt_dir
from sweep.core.settings.spec import LaunchSpec
from tests.stubs.jobs import processes_under, submission
from tests.trainer.cells import cell, cell_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.torchrun


@pytest.fixture
def scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalScheduler]:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    made = LocalScheduler(tmp_path, environ={**os.environ, "TMPDIR": str(tmp_path / "tmp")})
    yield made
    made.close()
    for left in processes_under(tmp_path):
        left.kill()


def listening(processes: list[psutil.Process]) -> set[str]:
    """Addresses on which the processes accept connections, by the kernel's list."""
    found = set()
    for process in processes:
        try:
            sockets = process.net_connections(kind="inet")
        except psutil.Error:  # it has ended meanwhile
            continue
        found |= {socket.laddr.ip for socket in sockets if socket.status == psutil.CONN_LISTEN}
    return found


def test_a_local_job_listens_on_the_loopback_interface_only(tmp_path: Path, scheduler: LocalScheduler) -> None:
    task = cell_file(cell(gpus=2, nodes=2))
    made = submission(tmp_path, LaunchSpec(), tasks=(task.key,), nodes=2)
    folder = tmp_path / attempt_dir(task.key)
    folder.mkdir(parents=True)
    (folder / CELL_FILE).write_text(replace(task, sources_hash=made.sources_hash).render())
    (job_id,) = scheduler.submit(made)
    seen: set[str] = set()
    modes: set[int] = set()
    deadline = time.monotonic() + 240
    while scheduler.poll([job_id], since=0.0)[job_id].phase is not Phase.ENDED:
        assert time.monotonic() < deadline
        seen |= listening(processes_under(tmp_path))
        modes |= {stat.S_IMODE(each.stat().st_mode) for each in (tmp_path / "tmp").glob("sweep-????????????????")}
    assert (folder / "result.json").exists(), (folder / "node-0.log").read_text()
    assert seen, "gloo listens for its peers: a run in which nothing was seen shows nothing"
    assert all(ipaddress.ip_address(address).is_loopback for address in seen), seen
    assert modes == {0o700}
    assert not list((tmp_path / "tmp").iterdir())
