"""``cancel`` ends jobs of this run only, whatever names, ids and markers a record from a stranger holds."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from sweep.adapters.local.jobs import JobFiles, Launched, State, new_job
from sweep.adapters.local.launchers import meeting_dir
from sweep.adapters.local.scheduler import LocalScheduler
from sweep.core.jobs.node_command import MARKER, RUN_DIR
from tests.fakes import submission_of
from tests.sweep.adapters.fake_slurm import RUN_DIR as FAKE_RUN_DIR
from tests.sweep.adapters.fake_slurm import FakeSlurm, fake_slurm

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def slurm(tmp_path: Path) -> FakeSlurm:
    return fake_slurm(tmp_path)


@pytest.mark.parametrize(
    ("script", "shown"),
    [
        ("/home/me/mine.sh", "/home/me/mine.sh"),
        ("/runs/other/submissions/logs/s1.sh", "/runs/other/submissions/logs/s1.sh"),
        (f"{FAKE_RUN_DIR}/s1.sh", f"{FAKE_RUN_DIR}/s1.sh"),
        ("(null)", "(unknown)"),
    ],
)
def test_a_job_with_the_name_and_id_of_a_record_but_another_script_is_left_alone(
    slurm: FakeSlurm, script: str, shown: str
) -> None:
    slurm.answers("squeue", out=f"42|RUNNING|1000|me|s1|{script}\n43|RUNNING|1000|me|s2|/home/me/s2.sh\n")
    answered = slurm.scheduler().cancel({"42": "s1", "43": "s2"})
    assert slurm.calls("scancel") == []
    assert answered[0] == f"42 has the name s1, but its job script {shown} is none of {FAKE_RUN_DIR}: it is left alone"
    assert len(slurm.calls("squeue")) == 1, "one question for all jobs"


def test_a_run_directory_of_two_names_has_its_jobs_by_both(slurm: FakeSlurm, tmp_path: Path) -> None:
    (tmp_path / "run" / "submissions" / "logs").mkdir(parents=True)
    (tmp_path / "alias").symlink_to(tmp_path / "run")
    slurm.answers("squeue", out=f"42|RUNNING|1000|me|s1|{tmp_path}/run/submissions/logs/s1.sh\n")
    assert slurm.scheduler(run_dir=tmp_path / "alias").cancel({"42": "s1"}) == []
    assert slurm.calls("scancel") == ["42"]


def test_a_link_in_a_run_directory_does_not_lead_to_the_jobs_of_another(slurm: FakeSlurm, tmp_path: Path) -> None:
    (tmp_path / "mine" / "submissions" / "logs").mkdir(parents=True)
    (tmp_path / "strange").mkdir()
    (tmp_path / "strange" / "submissions").symlink_to(tmp_path / "mine" / "submissions")
    slurm.answers("squeue", out=f"42|RUNNING|1000|me|s1|{tmp_path}/mine/submissions/logs/s1.sh\n")
    assert len(slurm.scheduler(run_dir=tmp_path / "strange").cancel({"42": "s1"})) == 1
    assert slurm.calls("scancel") == []


@pytest.fixture
def other(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process of another run's job, whose marker a stranger knows."""
    marked = {**os.environ, MARKER: "89c35e1f02ab77d4", RUN_DIR: str(tmp_path / "mine")}
    made = subprocess.Popen([sys.executable, "-c", "print(flush=True); input()"], env=marked, **PIPES)
    assert made.stdout is not None
    made.stdout.readline()
    yield made
    made.kill()
    made.communicate()


PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}


@pytest.mark.parametrize("is_started", [True, False])
def test_a_local_job_that_a_stranger_wrote_ends_no_process_and_removes_no_folder_of_another_run(
    tmp_path: Path, other: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, is_started: bool
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for run in ("mine", "strange"):
        (tmp_path / run).mkdir()
    made = new_job(submission_of(1, run_dir=str(tmp_path / "strange")), 0, now=1.0, environ={})
    launched = Launched(pid=other.pid, started_at=psutil.Process(other.pid).create_time())
    job = replace(made, marker="89c35e1f02ab77d4", state=State.RUNNING, launched=(launched,) if is_started else ())
    JobFiles(tmp_path / "strange").write(job)
    theirs = meeting_dir(job, tmp_path / "mine")
    theirs.mkdir()
    (tmp_path / f"sweep-{job.marker}").mkdir()
    LocalScheduler(tmp_path / "strange").cancel({job.job_id: job.submission})
    assert other.poll() is None
    assert theirs.exists()
    assert (tmp_path / f"sweep-{job.marker}").exists()
