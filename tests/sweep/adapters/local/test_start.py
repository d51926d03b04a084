from __future__ import annotations

import json
import os
import re
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from sweep.adapters.files.sources_snapshot import check_text
from sweep.adapters.local.jobs import LocalJob, new_job
from sweep.adapters.local.launchers import (
    MEMORY_PER_RANK_BYTES,
    has_room,
    launcher_command,
    launcher_environment,
    meeting_dir,
)
from sweep.adapters.local.scheduler import LocalScheduler
from sweep.core.attempts.attempt import AttemptKey, JobReport, Phase
from sweep.core.jobs.submission import Submission
from sweep.core.records.layout import attempt_dir
from sweep.core.settings.spec import LaunchSpec
from tests.fakes import submission_of
from tests.stubs.jobs import key, stub_launch, submission

HERE = Path("/runs/weak")
BASE = submission_of((key(),), sources_dir="/snapshot")


def job(*, nodes: int = 1, gpus_per_node: int = 1, device_type: str = "cpu", threads: int | None = 1) -> LocalJob:
    made = replace(BASE, nodes=nodes, gpus_per_node=gpus_per_node, device_type=device_type)
    return new_job(made, 0, now=1.0, environ={} if threads is None else {"OMP_NUM_THREADS": str(threads)})


def room(
    new: LocalJob,
    *running: LocalJob,
    cores: int = 4,
    max_concurrent: int | None = None,
    available_bytes: int = 64 * MEMORY_PER_RANK_BYTES,
) -> bool:
    return has_room(new, running, max_concurrent=max_concurrent, cores=cores, available_bytes=available_bytes)


def test_one_job_may_always_run() -> None:
    assert room(job(nodes=16), cores=2, available_bytes=0)
    assert room(job(nodes=16), cores=2, max_concurrent=1)


def test_jobs_run_side_by_side_while_every_thread_has_a_core() -> None:
    assert room(job(threads=2), job(threads=2))
    assert not room(job(threads=2), job(threads=3))
    assert room(job(nodes=2), job(nodes=2))
    assert not room(job(nodes=2), job(nodes=2), job(nodes=1))
    assert not room(job(nodes=1, gpus_per_node=3), job(nodes=2))


def test_a_job_without_a_number_of_threads_takes_all_cores() -> None:
    assert not room(job(threads=None), job())
    assert not room(job(), job(threads=None))


def test_the_sites_number_of_threads_wins_over_the_inherited_one() -> None:
    made = replace(BASE, launch=LaunchSpec(environment={"OMP_NUM_THREADS": "3"}))
    assert new_job(made, 0, now=1.0, environ={"OMP_NUM_THREADS": "2"}).threads_per_rank == 3
    assert new_job(BASE, 0, now=1.0, environ={"OMP_NUM_THREADS": "2"}).threads_per_rank == 2
    assert new_job(BASE, 0, now=1.0, environ={}).threads_per_rank is None


def test_jobs_run_side_by_side_only_while_memory_is_free() -> None:
    assert room(job(nodes=2), job(), available_bytes=2 * MEMORY_PER_RANK_BYTES)
    assert not room(job(nodes=2), job(), available_bytes=2 * MEMORY_PER_RANK_BYTES - 1)


def test_the_users_limit_replaces_the_limit_of_cores() -> None:
    assert room(job(nodes=4), job(nodes=4), max_concurrent=2, cores=1)
    assert not room(job(), job(), max_concurrent=1, cores=64)


def test_jobs_share_no_gpus_unless_the_user_sets_a_limit() -> None:
    assert not room(job(device_type="cuda"), job())
    assert not room(job(), job(device_type="cuda"))
    assert room(job(device_type="cuda"), job(device_type="cuda"), max_concurrent=2)


def test_a_launcher_gets_its_place_on_its_command_line() -> None:
    here = replace(job(nodes=2), python="py")
    command = launcher_command(here, 1, Path("/runs/weak"))
    assert command == [
        *("py", "-I", "-S", "-c", check_text(), "/snapshot", "abc", "-m", "sweep.launch"),
        *("--submission", "/runs/weak/submissions/weak.json", "--index", "0"),
        *("--node-rank", "1", "--job-id", "weak.0", "--hosts", "127.0.0.1,127.0.0.1", "--restart", "0"),
        *("--meeting-dir", str(meeting_dir(here, Path("/runs/weak")))),
    ]


@pytest.mark.parametrize("marker", ["", "../../home", "89c35e1f02ab77d4/..", "89C35E1F02AB77D4", job().marker])
def test_a_mark_that_a_stranger_wrote_names_no_folder_of_anybody(marker: str) -> None:
    folder = meeting_dir(replace(job(), marker=marker), Path("/runs/strange"))
    assert folder.parent == Path(tempfile.gettempdir())
    assert re.fullmatch(r"sweep-[0-9a-f]{16}", folder.name)
    assert folder != meeting_dir(job(), Path("/runs/weak")), "the folder of a job of another run"


def test_only_the_check_puts_the_snapshots_code_on_a_launchers_path() -> None:
    made = launcher_environment(job(), 0, HERE, {"PYTHONPATH": "/mine"})
    assert made["PYTHONPATH"] == "/mine"
    assert "CUDA_VISIBLE_DEVICES" not in made


def test_nodes_on_one_machine_have_gpus_of_their_own() -> None:
    gpus = job(nodes=2, gpus_per_node=2, device_type="cuda")
    shares = [launcher_environment(gpus, rank, HERE, {})["CUDA_VISIBLE_DEVICES"] for rank in (0, 1)]
    assert shares == ["0,1", "2,3"]
    given = {"CUDA_VISIBLE_DEVICES": "7,5,3,1"}
    assert [launcher_environment(gpus, rank, HERE, given)["CUDA_VISIBLE_DEVICES"] for rank in (0, 1)] == ["7,5", "3,1"]


def test_two_jobs_have_different_markers() -> None:
    assert (
        new_job(BASE, 0, now=1.0, environ={}).marker
        != new_job(replace(BASE, name="other"), 0, now=1.0, environ={}).marker
    )
    assert (
        new_job(BASE, 0, now=1.0, environ={}).marker
        != new_job(replace(BASE, run_dir="/else"), 0, now=1.0, environ={}).marker
    )


@dataclass(frozen=True, kw_only=True)
class Ran:
    """When a job ran, as its trainer and as its scheduler say."""

    began: float
    ended: float
    report: JobReport


def run_all(run_dir: Path, scheduler: LocalScheduler, *made: Submission) -> dict[AttemptKey, Ran]:
    tasks = {job: task for each in made for job, task in zip(scheduler.submit(each), each.tasks, strict=True)}
    deadline = time.monotonic() + 240
    while any(report.phase is not Phase.ENDED for report in scheduler.poll(tasks, since=0.0).values()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    ran, reports = {}, scheduler.poll(tasks, since=0.0)
    for job, task in tasks.items():
        folder = run_dir / attempt_dir(task)
        began = json.loads((folder / "saw-0.json").read_text())["started_at"]
        ended = json.loads((folder / "ended-0.json").read_text())
        ran[task] = Ran(began=began, ended=ended, report=reports[job])
    return ran


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [1, 2])
def test_jobs_run_in_the_order_of_their_submission_as_many_as_fit(tmp_path: Path, at_once: int) -> None:
    tasks = tuple(key(attempt) for attempt in (3, 1, 2))
    made = submission(tmp_path, stub_launch("works", "--sleep", "1"), tasks=tasks)
    scheduler = LocalScheduler(tmp_path, max_concurrent_cells=at_once, environ=os.environ)
    ran = run_all(tmp_path, scheduler, made)
    first, second, third = (ran[task] for task in tasks)
    # Trainers that are started together may begin long after one another.
    starts, ends = (
        [float(str(getattr(ran[task].report, name))) for task in tasks] for name in ("started_at", "ended_at")
    )
    assert starts == sorted(starts)
    assert (starts[1] < ends[0]) is (at_once == 2)
    assert third.began > min(first.ended, second.ended)
    assert at_once == 2 or second.began > first.ended


@pytest.mark.slow
def test_a_large_job_is_not_overtaken_by_small_ones(tmp_path: Path) -> None:
    launch = stub_launch("works", "--sleep", "1")
    small = submission(tmp_path, launch, name="a-small", tasks=(key(1),))
    large = submission(tmp_path, launch, name="b-large", tasks=(key(2),), nodes=2)
    late = submission(tmp_path, launch, name="c-late", tasks=(key(3),))
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    scheduler = LocalScheduler(tmp_path, environ=environ, cores=2)
    ran = run_all(tmp_path, scheduler, small, large, late)
    assert ran[key(1)].ended < ran[key(2)].began
    assert ran[key(2)].ended < ran[key(3)].began


def test_jobs_inherit_nothing_from_an_enclosing_job(tmp_path: Path) -> None:
    environ = {**os.environ, "SLURM_JOB_ID": "42", "SLURM_CPU_BIND": "mask", "RANK": "3", "OMP_NUM_THREADS": "3"}
    scheduler = LocalScheduler(tmp_path, environ=environ)
    run_all(tmp_path, scheduler, submission(tmp_path, stub_launch("works")))
    written = json.loads((tmp_path / attempt_dir(key()) / "attempt.json").read_text())
    assert not [name for name in written["environment"] if name.startswith("SLURM") or name == "RANK"]
    assert written["environment"]["OMP_NUM_THREADS"] == "3"
