"""A submission as sbatch gets it, sbatch's answers, and finding a submission by its name."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from sweep.ports import SchedulerError, SubmissionRejectedError, SubmissionUncertainError
from tests.commands import is_alive, wait_for
from tests.disks import fill, small_disk
from tests.sweep.adapters.fake_slurm import DOWN, NOW, FakeSlurm, submission


def test_an_array_is_one_sbatch_call_and_gives_an_id_for_each_index(slurm: FakeSlurm, tmp_path: Path) -> None:
    slurm.answers("sbatch", out="Submitted batch job 42\n")
    assert slurm.scheduler().submit(submission(tmp_path, tasks=3)) == ("42_0", "42_1", "42_2")
    assert len(slurm.calls("sbatch")) == 1


def test_a_single_task_is_a_plain_job(slurm: FakeSlurm, tmp_path: Path) -> None:
    slurm.answers("sbatch", out="Submitted batch job 42\n")
    assert slurm.scheduler().submit(submission(tmp_path)) == ("42",)


def test_a_submission_leaves_one_script_and_no_pickle(slurm: FakeSlurm, tmp_path: Path) -> None:
    slurm.answers("sbatch", out="Submitted batch job 42\n")
    slurm.scheduler().submit(submission(tmp_path, tasks=3))
    files = [str(path.relative_to(tmp_path / "run")) for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert files == ["submissions/logs/grid-3f2a.sh"]
    assert slurm.calls("sbatch") == [str(tmp_path / "run" / files[0])]


def test_a_disk_without_room_for_the_job_script_is_no_scheduler_that_is_away(slurm: FakeSlurm, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        made = submission(disk)
        fill(disk)
        with pytest.raises(OSError, match="No space left on device"):
            slurm.scheduler().submit(made)
        assert not [path for path in disk.rglob(".*")], "no draft is left"
    assert slurm.calls("sbatch") == []


def test_the_job_id_is_found_between_a_sites_banners(slurm: FakeSlurm, tmp_path: Path) -> None:
    slurm.answers("sbatch", out="Your last job 7 used 3 h.\nSubmitted batch job 42 on cluster main\nbye\n")
    assert slurm.scheduler().submit(submission(tmp_path)) == ("42",)


def test_sbatch_gets_no_variables_of_an_enclosing_job(slurm: FakeSlurm, tmp_path: Path) -> None:
    slurm.answers("sbatch", out="Submitted batch job 42\n")
    inherited = {"SLURM_CPU_BIND": "none", "SBATCH_PARTITION": "x", "SRUN_DEBUG": "3", "PMIX_RANK": "0", "RANK": "1"}
    before, conf = dict(os.environ), tmp_path / "slurm.conf"
    conf.touch()
    scheduler = slurm.scheduler(**inherited, SLURM_CONF=str(conf), HOME="/home/me", LC_ALL="de_DE.UTF-8")
    scheduler.submit(submission(tmp_path))
    seen = slurm.environment("sbatch")
    assert seen.keys().isdisjoint(inherited)
    assert {name: seen[name] for name in ("SLURM_CONF", "HOME", "LC_ALL")} == {
        "SLURM_CONF": str(conf),
        "HOME": "/home/me",
        "LC_ALL": "de_DE.UTF-8",
    }
    assert seen.keys().isdisjoint({"SLURM_TIME_FORMAT", "SLURM_BITSTR_LEN"})
    assert dict(os.environ) == before


def test_no_secret_of_the_environment_gets_into_a_file_or_a_command_line(slurm: FakeSlurm, tmp_path: Path) -> None:
    slurm.answers("sbatch", out="Submitted batch job 42\n")
    slurm.scheduler(HF_TOKEN="hf_s3cr3t", HOME="/home/me").submit(submission(tmp_path))
    texts = [path.read_text() for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert not [text for text in [*texts, *slurm.calls("sbatch")] if "s3cr3t" in text]
    assert slurm.environment("sbatch")["HF_TOKEN"] == "hf_s3cr3t"


def test_a_refusal_has_slurms_message(slurm: FakeSlurm, tmp_path: Path) -> None:
    slurm.answers(
        "sbatch",
        err="sbatch: error: QOSMaxSubmitJobPerUserLimit\nsbatch: error: Batch job submission failed: Job violates "
        "accounting/QOS policy",
        code=1,
    )
    with pytest.raises(
        SubmissionRejectedError, match=r"^QOSMaxSubmit\w+; Batch job submission failed: Job vio"
    ) as caught:
        slurm.scheduler().submit(submission(tmp_path))
    assert caught.value.is_transient
    assert len(slurm.calls("sbatch")) == 1


@pytest.mark.parametrize(
    ("err", "error"),
    [
        (
            "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation",
            SubmissionUncertainError,
        ),
        (
            "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)",
            SchedulerError,
        ),
    ],
)
def test_sbatch_is_never_repeated(slurm: FakeSlurm, tmp_path: Path, err: str, error: type[Exception]) -> None:
    slurm.answers("sbatch", err=err, code=1)
    with pytest.raises(error):
        slurm.scheduler().submit(submission(tmp_path))
    assert len(slurm.calls("sbatch")) == 1


def test_a_submission_is_uncertain_after_an_sbatch_that_hangs_which_is_killed_with_its_children(
    slurm: FakeSlurm, tmp_path: Path
) -> None:
    slurm.answers("sbatch", sleep_s=60)
    began = time.monotonic()
    with pytest.raises(SubmissionUncertainError, match=r"sbatch did not answer within 3 s"):
        slurm.scheduler(timeout_s=3).submit(submission(tmp_path))
    assert time.monotonic() - began < 30
    child = int((slurm.folder / "child").read_text())
    wait_for(lambda: not is_alive(child), 30, "its child is gone")


def test_a_submission_is_uncertain_after_an_sbatch_that_prints_no_job_id(slurm: FakeSlurm, tmp_path: Path) -> None:
    slurm.answers("sbatch", out="ok\n")
    with pytest.raises(SubmissionUncertainError, match="no job id but 'ok'"):
        slurm.scheduler().submit(submission(tmp_path))


def test_a_run_directory_that_cannot_be_written_submits_nothing(slurm: FakeSlurm, tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file in its place")
    with pytest.raises(SchedulerError, match="cannot be written"):
        slurm.scheduler().submit(submission(tmp_path))
    assert slurm.calls("sbatch") == []


def test_a_submission_is_found_in_the_queue_by_its_name(slurm: FakeSlurm, tmp_path: Path) -> None:
    slurm.answers("squeue", out="42_1\n42_[2]\n")
    assert slurm.scheduler().find(submission(tmp_path, tasks=3)) == ("42_0", "42_1", "42_2")
    assert "--name=grid-3f2a" in slurm.calls("squeue")[0]
    assert "-u me" in slurm.calls("squeue")[0]
    assert slurm.calls("sacct") == []


def test_a_submission_that_has_ended_is_found_in_accounting(slurm: FakeSlurm, tmp_path: Path) -> None:
    slurm.answers("sacct", out="42\n")
    assert slurm.scheduler().find(submission(tmp_path)) == ("42",)
    (asked,) = slurm.calls("sacct")
    day = time.strftime("%Y-%m-%d", time.localtime(NOW - 86400))
    assert f"-u me -S {day}" in asked
    assert "--name=grid-3f2a" in asked


def test_a_submission_that_queue_and_accounting_lack_is_not_found(slurm: FakeSlurm, tmp_path: Path) -> None:
    assert slurm.scheduler().find(submission(tmp_path)) is None


def test_two_jobs_of_one_name_are_an_error(slurm: FakeSlurm, tmp_path: Path) -> None:
    slurm.answers("squeue", out="42_[0-1]\n43_0\n")
    with pytest.raises(SchedulerError, match="2 jobs have the name grid-3f2a: 42, 43"):
        slurm.scheduler().find(submission(tmp_path, tasks=2))


@pytest.mark.parametrize("broken", ["squeue", "sacct"])
def test_a_failed_query_is_an_error_and_not_an_absent_submission(slurm: FakeSlurm, tmp_path: Path, broken: str) -> None:
    slurm.answers(broken, err=DOWN, code=1)
    with pytest.raises(SchedulerError, match="Unable to contact"):
        slurm.scheduler().find(submission(tmp_path))
