from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sweep.adapters.files.run_directory import RunDir
from sweep.core.attempts.attempt import ErrorClass
from sweep.core.jobs.node_command import Node
from sweep.core.jobs.submission import Claim, claim_file
from sweep.core.records.layout import attempt_dir
from sweep.core.settings.spec import Runner
from sweep.launch.__main__ import EXIT_NOT_OURS
from sweep.launch.check import EXIT_REFUSED
from sweep.launch.claim import take
from tests.disks import fill, remount, small_disk
from tests.stubs.jobs import altered, key, processes_under, stub_launch, submission
from tests.sweep.launch.launches import attempt_file, command, error_of, folder, launch, place, wait_ready

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sweep.core.jobs.submission import Submission


def as_job(job: str) -> list[str]:
    return ["--job-id", job, "--restart", "0"]


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[tuple[Submission, subprocess.Popen[bytes]]]:
    made = submission(tmp_path, stub_launch("hangs"))
    process = subprocess.Popen(command(made, *place()), start_new_session=True)
    try:
        wait_ready(folder(made))
        yield made, process
    finally:
        process.kill()
        process.wait()
        for left in processes_under(tmp_path):
            left.kill()


def test_what_a_node_prints_goes_to_its_log_in_the_attempts_folder(tmp_path: Path) -> None:
    made = submission(tmp_path, stub_launch("works"))
    done = launch(made)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    log = (folder(made) / "node-0.log").read_text()
    assert "node 0 says hello" in log
    assert "node 0 complains" in log


def test_the_ranks_get_the_attempts_cell_and_the_snapshots_code(tmp_path: Path) -> None:
    made = submission(tmp_path, stub_launch("works"))
    launch(made)
    saw = json.loads((folder(made) / "saw-0.json").read_text())
    assert saw["cell"] == str(folder(made) / "cell.json")
    assert saw["out"] == str(folder(made))
    assert saw["path"][0] == made.sources_dir
    assert saw["nnodes"] == "1"


def test_a_submission_is_claimed_by_the_first_job_of_it_and_every_part_of_that_job_goes_on(tmp_path: Path) -> None:
    made = submission(tmp_path, stub_launch("works"), nodes=2, tasks=(key(1), key(2)))
    for job, node in (("42_0", 0), ("42_0", 1), ("42_1", 0)):
        index = job[-1]
        assert launch(made, *as_job(job), "--index", index, "--node-rank", str(node), "--hosts", "a,b").returncode == 0
    again = ("--job-id", "42_0", "--restart", "1", "--index", "0", "--node-rank", "0", "--hosts", "a,b")
    assert launch(made, *again).returncode == 0, "requeued under its id"
    claim = Claim.parse((tmp_path / claim_file(made.name)).read_text())
    assert claim.job_id == "42"
    assert not list((tmp_path / "submissions").glob(".*")), "no drafts are left"


@pytest.mark.parametrize(("holder", "words"), [("42", "job 42 runs it since"), ("", "it was given back at")])
def test_a_job_that_comes_too_late_says_so_and_touches_nothing(tmp_path: Path, holder: str, words: str) -> None:
    made = submission(tmp_path, stub_launch("works"))
    (tmp_path / claim_file(made.name)).write_text(Claim(job_id=holder, time=1.0, host="login1").render())
    before = sorted(tmp_path.rglob("*"))
    done = launch(made, *as_job("43"), "--node-rank", "0", "--hosts", "a")
    assert done.returncode == EXIT_NOT_OURS
    assert f"launch: submission stub is not for job 43: {words}" in done.stderr
    assert "Nothing is run" in done.stderr
    assert sorted(tmp_path.rglob("*")) == before


def test_of_jobs_that_begin_at_once_one_gets_the_submission(tmp_path: Path) -> None:
    def begin(job: int) -> Claim:
        return take(tmp_path / "s.claim", Claim(job_id=str(job), time=float(job), host="h"))

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(begin, range(8)))) == 1


def test_a_damaged_claim_lets_nothing_begin(tmp_path: Path) -> None:
    made = submission(tmp_path, stub_launch("works"))
    (tmp_path / claim_file(made.name)).write_text('{"kind": "claim"')
    done = launch(made)
    assert done.returncode == EXIT_REFUSED
    assert "claim is not whole JSON" in done.stderr
    assert not folder(made).exists()


def test_the_attempt_file_tells_the_start_and_the_end(tmp_path: Path) -> None:
    made = submission(tmp_path, stub_launch("works", "--exit-code", "7"))
    before = time.time()
    assert launch(made).returncode == 7
    written = attempt_file(folder(made))
    assert (written.key, written.job_id, written.restart, written.hosts) == (key(), "job.0", 0, ("127.0.0.1",))
    assert (written.exit_code, written.stopped_by) == (7, "")
    assert written.ended_at is not None
    assert before <= written.started_at <= written.ended_at <= time.time()
    assert written.command[1].endswith("works.py")
    assert written.sources_hash == made.sources_hash
    assert written.provenance == {"git_commit": "abc"}
    assert written.environment["OMP_NUM_THREADS"] == str(len(os.sched_getaffinity(0)))


@pytest.mark.parametrize("is_full", [True, False], ids=["full", "read-only"])
def test_a_launcher_that_can_write_nothing_ends_with_the_number_of_the_error(tmp_path: Path, is_full: bool) -> None:
    with small_disk(tmp_path / "disk") as disk:
        made = submission(disk, stub_launch("works"))
        if is_full:
            fill(disk)
        else:
            assert remount(disk, "ro")
        done = launch(made)
        assert done.returncode == (errno.ENOSPC if is_full else errno.EROFS), done.stderr
        assert not [path for path in disk.rglob(".*") if path.is_file()], "no draft is left"


def test_a_disk_that_fills_while_it_runs_gives_the_number_of_the_error_too(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        made = submission(disk, stub_launch("works", "--fills", str(disk / "filler")))
        assert launch(made).returncode == errno.ENOSPC
        (error,) = RunDir(disk).errors(made.tasks[0])
        assert (error.error_class, error.node_rank) == (ErrorClass.STORAGE, 0)
        assert error.message == "its records could not be written: No space left on device"
        assert not [path for path in disk.rglob(".*") if path.is_file()], "no draft is left"


def test_an_error_of_a_file_system_is_reported_although_the_rank_could_not(tmp_path: Path) -> None:
    words = "OSError: [Errno 122] Disk quota exceeded: '/data/tokens'"
    made = submission(tmp_path, stub_launch("works", "--exit-code", "1", "--says", words))
    assert launch(made).returncode == 1
    error = error_of(folder(made))
    assert (error.error_class, error.message) == (ErrorClass.STORAGE, f"the last lines of its log say: {words}")


def test_while_it_runs_the_attempt_file_has_no_end(hanging: tuple[Submission, subprocess.Popen[bytes]]) -> None:
    made, process = hanging
    written = attempt_file(folder(made))
    assert (written.pid, written.ended_at, written.exit_code) == (process.pid, None, None)


def test_only_node_0_writes_the_attempt_file(tmp_path: Path) -> None:
    made = submission(tmp_path, stub_launch("works"), nodes=2)
    assert launch(made, *place(node=1, hosts="a,b")).returncode == 0
    assert (folder(made) / "node-1.log").exists()
    assert not (folder(made) / "attempt.json").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_stopped_launcher_leaves_no_process(
    hanging: tuple[Submission, subprocess.Popen[bytes]], number: signal.Signals
) -> None:
    made, process = hanging
    process.send_signal(number)
    assert process.wait(timeout=60) == 128 + number
    assert not processes_under(Path(made.run_dir))
    written = attempt_file(folder(made))
    assert (written.stopped_by, written.exit_code) == (number.name, -signal.SIGTERM)
    assert error_of(folder(made)).error_class is ErrorClass.STOPPED


def test_usr2_means_that_the_time_limit_is_near(hanging: tuple[Submission, subprocess.Popen[bytes]]) -> None:
    made, process = hanging
    process.send_signal(signal.SIGUSR2)
    assert process.wait(timeout=60) == 128 + signal.SIGUSR2
    assert attempt_file(folder(made)).stopped_by == "SIGUSR2"
    assert error_of(folder(made)).error_class is ErrorClass.TIMEOUT


def test_ranks_inherit_an_ignored_usr2(tmp_path: Path) -> None:
    # Slurm signals every process of the step: a rank that USR2 kills would take the job down before its time.
    made = submission(tmp_path, stub_launch("works"))
    launch(made)
    assert json.loads((folder(made) / "saw-0.json").read_text())["usr2_is_ignored"]


def test_what_does_not_stop_is_killed_after_the_grace(tmp_path: Path) -> None:
    made = submission(tmp_path, replace(stub_launch("hangs", "--deaf"), stop_grace_s=0.5))
    process = subprocess.Popen(command(made, *place()), start_new_session=True)
    wait_ready(folder(made))
    asked_at = time.monotonic()
    process.terminate()
    assert process.wait(timeout=10) == 143
    assert 0.4 < time.monotonic() - asked_at < 10
    assert attempt_file(folder(made)).exit_code == -signal.SIGKILL
    assert not processes_under(tmp_path)


def test_what_outlives_its_trainer_is_killed(hanging: tuple[Submission, subprocess.Popen[bytes]]) -> None:
    made, process = hanging
    (trainer,) = [each for each in processes_under(folder(made)) if "--child" not in each.cmdline()]
    trainer.kill()
    assert process.wait(timeout=60) == 137
    assert not processes_under(Path(made.run_dir))


def test_altered_sources_are_refused_before_anything_starts(tmp_path: Path) -> None:
    made = submission(tmp_path, stub_launch("works"))
    with (Path(made.sources_dir) / "trainer" / "__init__.py").open("a") as file:
        file.write("# a change\n")
    assert launch(made).returncode == 2
    assert not (folder(made) / "saw-0.json").exists()
    error = error_of(folder(made))
    assert error.error_class is ErrorClass.REFUSED
    assert made.sources_hash in error.message
    assert not (folder(made) / "attempt.json").exists(), "the snapshot's launcher did not run"


def test_a_missing_snapshot_is_refused(tmp_path: Path) -> None:
    made = altered(submission(tmp_path, stub_launch("works")), sources_dir=str(tmp_path / "sources" / "gone"))
    assert launch(made).returncode == 2
    assert "missing" in error_of(folder(made)).message


def test_a_restart_has_a_folder_of_its_own_and_the_attempts_cell(tmp_path: Path) -> None:
    made = submission(tmp_path, stub_launch("works"))
    assert launch(made, *place(restart=2)).returncode == 0
    own = folder(made) / "restart-2"
    saw = json.loads((own / "saw-0.json").read_text())
    assert (saw["cell"], saw["out"]) == (str(folder(made) / "cell.json"), str(own))
    assert attempt_file(own).restart == 2
    assert list(folder(made).iterdir()) == [own]


def test_slurms_variables_say_which_task_and_node_it_is(tmp_path: Path) -> None:
    made = submission(tmp_path, stub_launch("works"), tasks=(key(1), key(2)), nodes=2)
    slurm = {
        "SLURM_JOB_ID": "43",
        "SLURM_ARRAY_JOB_ID": "42",
        "SLURM_ARRAY_TASK_ID": "1",
        "SLURM_NODEID": "0",
        "SLURM_JOB_NODELIST": "gpu[08-09]",
        "SLURM_RESTART_COUNT": "1",
    }
    assert launch(made, "--submission", str(Path(made.run_dir) / made.file), **slurm).returncode == 0
    written = attempt_file(Path(made.run_dir) / attempt_dir(key(2)) / "restart-1")
    assert (written.job_id, written.hosts, written.restart) == ("42_1", ("gpu08", "gpu09"), 1)
    assert written.environment["SLURM_JOB_ID"] == "43"


def test_a_job_without_an_array_is_task_0(tmp_path: Path) -> None:
    made = submission(tmp_path, stub_launch("works"))
    slurm = {"SLURM_JOB_ID": "43", "SLURM_NODEID": "0", "SLURM_JOB_NODELIST": "gpu08"}
    assert launch(made, "--submission", str(Path(made.run_dir) / made.file), **slurm).returncode == 0
    assert attempt_file(folder(made)).job_id == "43"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--node-rank", "0", "--job-id", "1"], "hosts"),
        (["--node-rank", "0", "--job-id", "1", "--hosts", ""], "hosts"),
        (["--node-rank", "0", "--job-id", "1", "--hosts", "a,b"], "1 are needed"),
        (["--node-rank", "1", "--job-id", "1", "--hosts", "a"], "node rank 1"),
        (["--node-rank", "0", "--job-id", "1", "--hosts", "a", "--index", "3"], "array index 3"),
        (["--node-rank", "0", "--job-id", "1", "--hosts", "a[1"], "a[1"),
    ],
)
def test_a_place_that_does_not_exist_is_refused_in_words(tmp_path: Path, options: list[str], words: str) -> None:
    made = submission(tmp_path, stub_launch("works"))
    done = launch(made, *options)
    assert done.returncode == 2
    assert words in done.stderr
    assert not (tmp_path / "cells").exists()


def test_a_damaged_submission_file_is_refused_in_words(tmp_path: Path) -> None:
    made = submission(tmp_path, stub_launch("works"))
    (tmp_path / made.file).write_text("{")
    done = launch(made)
    assert done.returncode == 2
    assert "submission" in done.stderr


def test_a_python_that_is_not_there_is_an_error_of_the_attempt(tmp_path: Path) -> None:
    made = submission(tmp_path, replace(stub_launch("works"), python="/no/such/python"))
    assert launch(made).returncode == 127
    assert "/no/such/python" in error_of(folder(made)).message
    assert attempt_file(folder(made)).exit_code == 127


def test_a_python_without_torch_is_reported_before_torchrun_is_started(tmp_path: Path) -> None:
    made = submission(tmp_path, stub_launch("works", runner=Runner.TORCHRUN))
    python, *options = command(made, *place())
    # -S: without the environment's packages, as on a node where they are not installed
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run([python, "-S", *options], env=environ, capture_output=True, timeout=240, check=False)
    error = error_of(folder(made))
    assert (done.returncode, error.error_class) == (EXIT_REFUSED, ErrorClass.REFUSED)
    assert error.message.startswith(f"{sys.executable} has no torch. Install the extra 'trainer'")


def test_no_secret_is_written_anywhere(tmp_path: Path) -> None:
    made = submission(tmp_path, stub_launch("works"))
    assert launch(made, *place(), NCCL_AUTH_TOKEN="hunter2", WANDB_API_KEY="hunter2").returncode == 0
    assert attempt_file(folder(made)).environment["NCCL_AUTH_TOKEN"] == "(redacted)"
    written = [path for path in tmp_path.rglob("*") if path.is_file() and "sources" not in path.parts]
    assert len(written) >= 4
    assert not [path for path in written if "hunter2" in path.read_text()]


def test_a_taken_port_is_worth_another_attempt(tmp_path: Path) -> None:
    made = submission(tmp_path, stub_launch("works", runner=Runner.TORCHRUN))
    port = Node(submission=made, index=0, node_rank=0, job_id="job.0", hosts=("127.0.0.1",)).port
    with socket.socket() as taken:
        # Of an earlier test's rendezvous there something may be left to time out.
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("", port))
        taken.listen()
        assert launch(made).returncode == 2
    error = error_of(folder(made))
    assert error.error_class is ErrorClass.COMMUNICATION
    assert str(port) in error.message
