"""The probe on one node: it tries the file system, and meets the other nodes."""

from __future__ import annotations

import itertools
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sweep.core.jobs.node_command import Node
from sweep.core.settings.spec import LaunchSpec
from sweep.launch import probe
from tests.fakes import submission_of
from tools.slurmbox.ports import port_is_free


def test_a_file_system_without_hard_links_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr("os.link", refuse)
    assert probe.file_system_problem(tmp_path) == "Operation not permitted (hard link)"
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_whose_hard_links_replace_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.link", lambda *_: None)
    assert probe.file_system_problem(tmp_path) == "a hard link replaces a file that is there"


def test_the_clock_is_compared_with_the_time_stamps_of_files(tmp_path: Path) -> None:
    ahead = probe.ahead_of_files_s(tmp_path)
    assert ahead is not None
    assert abs(ahead) < 5
    assert list(tmp_path.iterdir()) == []
    assert probe.ahead_of_files_s(tmp_path / "none") is None


def test_nodes_connect_and_compare_clocks() -> None:
    """Both ends on this machine, in two threads; and a port that is taken."""
    both = replace(
        submission_of(name="doctor", created_at=1000.0, nodes=2), launch=LaunchSpec(rendezvous_host="127.0.0.1")
    )
    jobs = (Node(submission=both, index=0, node_rank=0, job_id=str(n), hosts=("a", "b")) for n in itertools.count())
    first = next(job for job in jobs if port_is_free(job.port))
    second = replace(first, node_rank=1)
    reported: dict[str, Any] = {}
    host = threading.Thread(target=lambda: reported.update(probe.meet(first, timeout_s=10)))
    host.start()
    met = probe.meet(second, timeout_s=10)
    host.join()
    assert reported["port_free"] is True
    assert met["connected"] is True
    assert met["resolved"] == ["127.0.0.1"]
    assert abs(met["clock_offset_s"]) < 10
    lost = replace(second, submission=replace(both, launch=LaunchSpec(rendezvous_host="nowhere.invalid")))
    assert "cannot be resolved" in probe.meet(lost, timeout_s=0)["connect_error"]
    assert probe.meet(second, timeout_s=0)["connected"] is False
