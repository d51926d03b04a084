"""The local cluster with real torchrun agents; importing torch twice a rank makes each test take seconds."""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sweep.adapters.local.scheduler import LocalScheduler
from sweep.core.attempts.attempt import JobReport, Phase
from sweep.core.jobs.node_command import NODE_RANK
from sweep.core.records.layout import CELL_FILE, attempt_dir
from sweep.core.records.result import Result
from sweep.core.settings.spec import LaunchSpec, Runner
from tests.stubs.jobs import key, processes_under, stub_launch, submission
from tests.trainer.cells import cell, cell_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sweep.core.jobs.submission import Submission

pytestmark = pytest.mark.torchrun


@pytest.fixture
def scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalScheduler]:
    # torchrun keeps copies of what ranks print in the temporary folder.
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    made = LocalScheduler(tmp_path, environ={**os.environ, "TMPDIR": str(tmp_path / "tmp")})
    yield made
    made.close()
    for left in processes_under(tmp_path):
        left.kill()


def adds_up(*, sleep_s: float = 0.0) -> LaunchSpec:
    return replace(stub_launch("gloo_sum", runner=Runner.TORCHRUN), environment={"STUB_SLEEP_S": str(sleep_s)})


def end_of(scheduler: LocalScheduler, job_id: str, *, within_s: float = 120.0) -> JobReport:
    deadline = time.monotonic() + within_s
    while (report := scheduler.poll([job_id], since=0.0)[job_id]).phase is not Phase.ENDED:
        assert time.monotonic() < deadline, f"still {report}"
        time.sleep(0.1)
    return report


def wait_for_ranks(scheduler: LocalScheduler, made: Submission, job_id: str) -> None:
    folder = Path(made.run_dir) / attempt_dir(made.tasks[0])
    deadline = time.monotonic() + 120
    while len(list(folder.glob("rank-*.txt"))) < made.gpus:
        assert scheduler.poll([job_id], since=0.0)[job_id].phase is Phase.RUNNING
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_two_nodes_rendezvous_compute_and_end_together(tmp_path: Path, scheduler: LocalScheduler) -> None:
    (job_id,) = scheduler.submit(submission(tmp_path, adds_up(), nodes=2))
    assert (end_of(scheduler, job_id).state, end_of(scheduler, job_id).exit_code) == ("COMPLETED", 0)
    folder = tmp_path / attempt_dir(key())
    assert [(folder / f"rank-{rank}.txt").read_text() for rank in (0, 1)] == ["2\n", "2\n"]
    assert "adds up to 2" in (folder / "node-1.log").read_text()
    assert not list((tmp_path / "tmp").iterdir())
    assert not processes_under(tmp_path)


def test_a_cancel_leaves_no_process_within_ten_seconds(tmp_path: Path, scheduler: LocalScheduler) -> None:
    made = submission(tmp_path, adds_up(sleep_s=300), nodes=2)
    (job_id,) = scheduler.submit(made)
    wait_for_ranks(scheduler, made, job_id)
    assert len(processes_under(tmp_path)) >= 6
    asked_at = time.monotonic()
    scheduler.cancel(dict.fromkeys([job_id], "s"))
    assert time.monotonic() - asked_at < 10
    assert not processes_under(tmp_path)
    assert not list((tmp_path / "tmp").iterdir())


def test_a_killed_rank_ends_the_job(tmp_path: Path, scheduler: LocalScheduler) -> None:
    made = submission(tmp_path, adds_up(sleep_s=300), nodes=2)
    (job_id,) = scheduler.submit(made)
    wait_for_ranks(scheduler, made, job_id)
    # Which of the nodes has rank 1 is torchrun's choice: it sorts its agents by address and process id.
    (rank,) = [each for each in processes_under(tmp_path) if each.environ().get("RANK") == "1"]
    node = rank.environ()[NODE_RANK]
    rank.kill()
    # The other rank sleeps and would never notice: the job's end is what ends it.
    report = end_of(scheduler, job_id)
    assert (report.state, report.reason) == ("FAILED", f"node {node} ended with exit code 1")
    assert not processes_under(tmp_path)


def test_the_trainer_runs_on_two_nodes(tmp_path: Path, scheduler: LocalScheduler) -> None:
    task = cell_file(cell(gpus=2, nodes=2))
    made = submission(tmp_path, LaunchSpec(), tasks=(task.key,), nodes=2)
    folder = tmp_path / attempt_dir(task.key)
    folder.mkdir(parents=True)
    (folder / CELL_FILE).write_text(replace(task, sources_hash=made.sources_hash).render())
    (job_id,) = scheduler.submit(made)
    assert end_of(scheduler, job_id).state == "COMPLETED", (folder / "node-0.log").read_text()
    result = Result.parse((folder / "result.json").read_text(), expected=task.key)
    assert (result.world_size, len(result.hosts)) == (2, 2)
