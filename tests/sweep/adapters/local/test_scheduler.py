from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from sweep.adapters.local.jobs import LOCAL_STATES, JobFiles, Launched, LocalJob, State, new_job
from sweep.adapters.local.scheduler import LocalScheduler
from sweep.core.attempts.attempt import ABSENT, JobReport, Outcome, Phase
from sweep.core.records.attempt_record import AttemptFile
from sweep.core.records.layout import attempt_dir
from tests.commands import wait_for
from tests.stubs.jobs import key, processes_under, stub_launch, submission

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sweep.core.jobs.submission import Submission

ROOT = Path(__file__).parents[4]


class Local:
    """A local cluster in a folder, driven by the test."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.later_s = 0.0
        self.scheduler = self.another()

    def another(
        self, *, max_concurrent_cells: int | None = None, drives: bool = True, starts: bool = True
    ) -> LocalScheduler:
        """A scheduler on the same folder that knows only what is on disk."""
        return LocalScheduler(
            self.run_dir,
            max_concurrent_cells=max_concurrent_cells,
            environ=os.environ,
            cores=2,
            drives=drives,
            starts=starts,
            now=lambda: time.time() + self.later_s,
        )

    def report(self, job_id: str) -> JobReport:
        return self.scheduler.poll([job_id], since=0.0)[job_id]

    def until(self, job_id: str, done: Callable[[JobReport], bool], *, within_s: float = 120.0) -> JobReport:
        deadline = time.monotonic() + within_s
        while not done(report := self.report(job_id)):
            assert time.monotonic() < deadline, f"{job_id} is still {report}"
            time.sleep(0.05)
        return report

    def end_of(self, job_id: str) -> JobReport:
        return self.until(job_id, lambda report: report.phase is Phase.ENDED)

    def start_hanging(self, *arguments: str, nodes: int = 1, walltime_min: int = 5, stop_grace_s: float = 3.0) -> str:
        """A job whose trainers hang, all of them up."""
        launch = replace(stub_launch("hangs", *arguments), stop_grace_s=stop_grace_s)
        made = submission(self.run_dir, launch, nodes=nodes, walltime_min=walltime_min)
        (job_id,) = self.scheduler.submit(made)
        self.wait_for(made, "ready-*", nodes)
        return job_id

    def wait_for(self, made: Submission, pattern: str, count: int = 1) -> None:
        folder = self.run_dir / attempt_dir(made.tasks[0])
        ids = [f"{made.name}.{index}" for index in range(len(made.tasks))]
        deadline = time.monotonic() + 120
        while len(list(folder.glob(pattern))) < count:
            assert time.monotonic() < deadline, f"no {pattern}"
            self.scheduler.poll(ids, since=0.0)
            time.sleep(0.05)

    def job(self, job_id: str) -> LocalJob:
        job = JobFiles(self.run_dir).read(job_id)
        assert job is not None
        return job

    def kill_launcher(self, job_id: str, rank: int) -> None:
        """Kill one, and see that it was noticed."""
        self.launchers(job_id)[rank].kill()
        while not self.job(job_id).launched[rank].is_over:
            assert self.report(job_id).phase is Phase.RUNNING
            time.sleep(0.05)

    def launchers(self, job_id: str) -> list[psutil.Process]:
        return [psutil.Process(one.pid) for one in self.job(job_id).launched]


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Local]:
    made = Local(tmp_path)
    yield made
    made.scheduler.close()
    for left in processes_under(tmp_path):
        left.kill()


@pytest.fixture
def orchestrate(tmp_path: Path) -> Iterator[Callable[[Submission], subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def start(made: Submission) -> subprocess.Popen[str]:
        script = [sys.executable, "-m", "tests.stubs.orchestrates", str(tmp_path), made.name]
        process = subprocess.Popen(script, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_job_that_succeeds_is_completed(local: Local) -> None:
    (job_id,) = local.scheduler.submit(submission(local.run_dir, stub_launch("works"), nodes=2))
    assert job_id == "stub.0"
    report = local.end_of(job_id)
    assert (report.state, report.exit_code, report.reason) == ("COMPLETED", 0, "")
    assert report.started_at is not None
    assert report.ended_at is not None
    assert report.outcome is None
    folder = local.run_dir / attempt_dir(key())
    assert json.loads((folder / "saw-1.json").read_text())["nnodes"] == "2"
    assert (folder / "node-1.log").exists()


def test_the_reason_of_a_failed_job_names_node_and_exit_code(local: Local) -> None:
    launch = stub_launch("works", "--exit-code", "7", "--failing-node", "1")
    (job_id,) = local.scheduler.submit(submission(local.run_dir, launch, nodes=2))
    report = local.end_of(job_id)
    assert (report.state, report.exit_code, report.reason) == ("FAILED", 7, "node 1 ended with exit code 7")
    assert report.outcome is None


def test_the_output_of_a_launcher_that_does_not_know_its_attempt_yet_is_kept(local: Local) -> None:
    made = submission(local.run_dir, stub_launch("works"))
    (job_id,) = local.scheduler.submit(made)
    (local.run_dir / made.file).write_text("{")
    assert local.end_of(job_id).exit_code == 2
    assert "not whole JSON" in (local.run_dir / "submissions" / "logs" / f"{job_id}.0.out").read_text()


def test_a_cancelled_job_leaves_no_process(local: Local) -> None:
    job_id = local.start_hanging(nodes=2)
    assert len(processes_under(local.run_dir)) >= 6
    local.scheduler.cancel(dict.fromkeys([job_id], "s"))
    assert not processes_under(local.run_dir)
    report = local.report(job_id)
    assert (report.state, report.outcome) == ("CANCELLED", Outcome.CANCELLED)


@pytest.mark.slow
@pytest.mark.parametrize("stop_grace_s", [1.0, 600.0])
def test_a_job_that_ignores_sigterm_is_cancelled_within_ten_seconds(local: Local, stop_grace_s: float) -> None:
    job_id = local.start_hanging("--deaf", stop_grace_s=stop_grace_s)
    began = time.monotonic()
    local.scheduler.cancel(dict.fromkeys([job_id], "s"))
    assert time.monotonic() - began < 15
    assert not processes_under(local.run_dir)


@pytest.mark.slow
def test_a_stopped_launcher_cannot_delay_a_cancel(local: Local) -> None:
    # A launcher that is not scheduled (SIGSTOP) forwards nothing: its ranks are found by their mark.
    job_id = local.start_hanging()
    (launcher,) = local.launchers(job_id)
    launcher.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    local.scheduler.cancel(dict.fromkeys([job_id], "s"))
    assert time.monotonic() - began < 15
    assert psutil.wait_procs([launcher], timeout=10)[1] == []


def test_a_pending_job_is_cancelled_without_being_started(local: Local) -> None:
    made = submission(local.run_dir, stub_launch("works"), tasks=(key(1), key(2)), gpus_per_node=2)
    first, second = local.scheduler.submit(made)
    assert local.report(second).state == "PENDING"
    local.scheduler.cancel(dict.fromkeys([second], "s"))
    assert local.end_of(first).state == "COMPLETED"
    assert local.report(second).state == "CANCELLED"
    assert not (local.run_dir / attempt_dir(key(2))).exists()


def test_a_job_that_has_begun_is_left_alone_where_only_pending_jobs_are_cancelled(local: Local) -> None:
    made = submission(local.run_dir, stub_launch("works"), tasks=(key(1), key(2)), gpus_per_node=2)
    first, second = local.scheduler.submit(made)
    assert local.report(first).state == "RUNNING"
    local.scheduler.cancel([first, second], only_pending=True)
    assert local.report(second).state == "CANCELLED"
    assert local.end_of(first).state == "COMPLETED"


def test_cancelling_a_job_that_has_ended_changes_nothing(local: Local) -> None:
    (job_id,) = local.scheduler.submit(submission(local.run_dir, stub_launch("works")))
    report = local.end_of(job_id)
    local.scheduler.cancel(dict.fromkeys([job_id, "never-heard-of.0"], "s"))
    assert local.report(job_id) == report


def test_close_interrupts_running_and_pending_jobs(local: Local) -> None:
    made = submission(local.run_dir, stub_launch("hangs"), tasks=(key(1), key(2)), gpus_per_node=2)
    first, second = local.scheduler.submit(made)
    local.wait_for(made, "ready-*")
    local.scheduler.close()
    assert not processes_under(local.run_dir)
    for job_id in (first, second):
        report = local.another().poll([job_id], since=0.0)[job_id]
        assert (report.state, report.outcome) == ("INTERRUPTED", Outcome.PREEMPTED)


@pytest.mark.slow
def test_ctrl_c_on_the_orchestrator_leaves_no_process(
    local: Local, orchestrate: Callable[[Submission], subprocess.Popen[str]]
) -> None:
    made = submission(local.run_dir, stub_launch("hangs"), nodes=2)
    process = orchestrate(made)
    folder = local.run_dir / attempt_dir(key())
    wait_for(lambda: process.poll() is not None or len(list(folder.glob("ready-*"))) == 2, 60, "both are up")
    assert process.poll() is None
    # As a terminal does: to the whole foreground group, of which the jobs are no part.
    os.killpg(process.pid, signal.SIGINT)
    assert process.communicate(timeout=60)[0] == "closed\n"
    assert AttemptFile.parse((folder / "attempt.json").read_text()).stopped_by == "SIGTERM"
    assert not processes_under(local.run_dir)
    assert local.report("stub.0").state == "INTERRUPTED"


def killed_while_hanging(
    local: Local, orchestrate: Callable[[Submission], subprocess.Popen[str]], *arguments: str, nodes: int = 1
) -> str:
    made = submission(local.run_dir, stub_launch("hangs", *arguments), tasks=(key(1), key(2)), nodes=nodes)
    process = orchestrate(made)
    deadline = time.monotonic() + 120
    while len(list((local.run_dir / attempt_dir(key())).glob("ready-*"))) < nodes:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.kill()
    process.wait()
    return "stub.0"


@pytest.mark.slow
def test_a_killed_orchestrators_jobs_are_taken_over(
    local: Local, orchestrate: Callable[[Submission], subprocess.Popen[str]]
) -> None:
    job_id = killed_while_hanging(local, orchestrate, nodes=2)
    before = local.job(job_id)
    assert local.report(job_id).state == "RUNNING"
    assert local.job(job_id).launched == before.launched
    assert all(launcher.is_running() for launcher in local.launchers(job_id))
    local.scheduler.cancel(dict.fromkeys([job_id], "s"))
    assert not processes_under(local.run_dir)


@pytest.mark.slow
def test_a_taken_over_job_has_the_end_that_its_launcher_wrote(
    local: Local, orchestrate: Callable[[Submission], subprocess.Popen[str]]
) -> None:
    for code, state in ((0, "COMPLETED"), (7, "FAILED")):
        launch = stub_launch("works", "--sleep", "1.5", "--exit-code", str(code))
        made = submission(local.run_dir, launch, name=f"exit-{code}", tasks=(key(code + 1),), nodes=2)
        process = orchestrate(made)
        wait_for((local.run_dir / attempt_dir(key(code + 1)) / "saw-0.json").exists, 60, "it runs")
        process.kill()
        process.wait()
        local.scheduler = local.another()
        report = local.end_of(f"exit-{code}.0")
        assert (report.state, report.exit_code) == (state, code)


@pytest.mark.slow
def test_pending_jobs_of_a_killed_orchestrator_are_started(
    local: Local, orchestrate: Callable[[Submission], subprocess.Popen[str]]
) -> None:
    first = killed_while_hanging(local, orchestrate, nodes=2)
    assert local.report("stub.1").state == "PENDING"
    local.scheduler.cancel(dict.fromkeys([first], "s"))
    assert local.report("stub.1").state == "RUNNING"


@pytest.mark.slow
def test_a_job_whose_end_nobody_saw_or_wrote_is_a_node_failure(
    local: Local, orchestrate: Callable[[Submission], subprocess.Popen[str]]
) -> None:
    job_id = killed_while_hanging(local, orchestrate)
    processes = processes_under(local.run_dir)
    for process in processes:
        # Or the launcher might still write how its trainer ended.
        process.suspend()
    for process in processes:
        process.kill()
    # A signal takes its time to end a process.
    psutil.wait_procs(processes, timeout=60)
    report = local.report(job_id)
    assert (report.state, report.outcome) == ("NODE_FAIL", Outcome.NODE_FAIL)
    assert report.reason == "the launcher of node 0 vanished"


def test_a_job_whose_start_was_cut_short_is_ended_and_not_started_again(local: Local) -> None:
    job_id = local.start_hanging()
    JobFiles(local.run_dir).write(replace(local.job(job_id), launched=()))
    heir = local.another()
    report = heir.poll([job_id], since=0.0)[job_id]
    assert (report.state, report.outcome) == ("INTERRUPTED", Outcome.PREEMPTED)
    assert not processes_under(local.run_dir)


@pytest.mark.slow
def test_a_node_whose_launcher_is_killed_takes_the_others_with_it(local: Local) -> None:
    job_id = local.start_hanging(nodes=2)
    local.kill_launcher(job_id, 1)
    local.later_s = 11.0
    report = local.report(job_id)
    assert (report.state, report.reason) == ("NODE_FAIL", "the launcher of node 1 vanished")
    assert not [each for each in processes_under(local.run_dir) if "--child" not in each.cmdline()]


@pytest.mark.slow
def test_after_a_kill_a_job_without_one_of_its_launchers_is_reaped(
    local: Local, orchestrate: Callable[[Submission], subprocess.Popen[str]]
) -> None:
    job_id = killed_while_hanging(local, orchestrate, nodes=2)
    local.kill_launcher(job_id, 1)
    local.later_s = 11.0
    report = local.report(job_id)
    assert (report.state, report.reason) == ("NODE_FAIL", "the launcher of node 1 vanished")


@pytest.fixture
def foreigner() -> Iterator[psutil.Process]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield psutil.Process(process.pid)
    process.kill()
    process.wait()


@pytest.mark.parametrize("says_its_end", [True, False])
def test_a_job_that_ended_while_nobody_watched_is_charged_until_its_end(local: Local, says_its_end: bool) -> None:
    made = submission(local.run_dir, stub_launch("works"))
    began, ended = time.time() - 3000.0, time.time() - 2985.0
    job = replace(new_job(made, 0, now=began, environ={}), state=State.RUNNING, started_at=began)
    JobFiles(local.run_dir).write(replace(job, launched=(Launched(pid=1, started_at=began),)))
    record = AttemptFile(key=key(), job_id=job.job_id, restart=0, hosts=("127.0.0.1",), pid=1, started_at=began)
    file = local.run_dir / attempt_dir(key()) / "attempt.json"
    file.parent.mkdir(parents=True)
    file.write_text((replace(record, ended_at=ended, exit_code=0) if says_its_end else record).render())
    for path in (file, local.run_dir / "local" / f"{job.job_id}.json"):
        os.utime(path, (ended, ended))
    assert local.report(job.job_id).ended_at == pytest.approx(ended, abs=0.01)


@pytest.mark.parametrize("off_by_s", [-1000.0, 0.0])
def test_a_foreign_process_that_got_the_pid_is_left_alone(
    local: Local, foreigner: psutil.Process, off_by_s: float
) -> None:
    # Even where the start times agree: the foreigner does not have the job's mark.
    job = new_job(submission(local.run_dir, stub_launch("works")), 0, now=time.time(), environ={})
    launched = (Launched(pid=foreigner.pid, started_at=foreigner.create_time() + off_by_s),)
    JobFiles(local.run_dir).write(replace(job, state=State.RUNNING, started_at=time.time(), launched=launched))
    assert local.report(job.job_id).state == "NODE_FAIL"
    local.scheduler.cancel(dict.fromkeys([job.job_id], "s"))
    local.scheduler.close()
    assert foreigner.status() != psutil.STATUS_ZOMBIE


def test_a_foreign_pid_survives_a_cancel_of_a_job_that_seems_to_run(local: Local, foreigner: psutil.Process) -> None:
    job = new_job(submission(local.run_dir, stub_launch("works")), 0, now=time.time(), environ={})
    launched = (Launched(pid=foreigner.pid, started_at=foreigner.create_time() - 1000.0),)
    JobFiles(local.run_dir).write(replace(job, state=State.RUNNING, started_at=time.time(), launched=launched))
    local.scheduler.cancel(dict.fromkeys([job.job_id], "s"))
    assert local.report(job.job_id).state == "CANCELLED"
    assert foreigner.status() != psutil.STATUS_ZOMBIE


def test_a_job_over_its_walltime_times_out(local: Local) -> None:
    job_id = local.start_hanging(walltime_min=1)
    local.later_s = 61.0
    report = local.report(job_id)
    assert (report.state, report.outcome) == ("TIMEOUT", Outcome.TIMEOUT)
    assert not processes_under(local.run_dir)


def test_a_submission_is_found_by_its_name(local: Local) -> None:
    made = submission(local.run_dir, stub_launch("works"), tasks=(key(1), key(2)))
    assert local.scheduler.find(made) is None
    assert local.scheduler.submit(made) == ("stub.0", "stub.1")
    assert local.another().find(made) == ("stub.0", "stub.1")


def test_the_files_of_a_half_written_submission_are_removed_and_never_run(local: Local) -> None:
    made = submission(local.run_dir, stub_launch("works"), tasks=(key(1), key(2)))
    local.scheduler.submit(made)
    (local.run_dir / "local" / "stub.0.json").unlink()
    local.scheduler = local.another()
    assert local.report("stub.1") == ABSENT
    assert not processes_under(local.run_dir)
    assert local.scheduler.find(made) is None
    assert not list((local.run_dir / "local").iterdir())


def test_a_submission_exists_only_once_all_its_jobs_are_written(local: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    monkeypatch.setattr(JobFiles, "write", lambda self, job: written.append(job.job_id))
    local.scheduler.submit(submission(local.run_dir, stub_launch("works"), tasks=(key(1), key(2), key(3))))
    assert written == ["stub.2", "stub.1", "stub.0"]


def test_an_unknown_or_damaged_job_is_absent(local: Local) -> None:
    (local.run_dir / "local").mkdir()
    (local.run_dir / "local" / "broken.0.json").write_text('{"schema": 1, "kind": "local_job", "job_id": 3}')
    assert local.report("broken.0") == ABSENT
    assert local.report("unheard-of.0") == ABSENT


def test_a_scheduler_that_only_reads_starts_and_ends_no_job(local: Local) -> None:
    made = submission(local.run_dir, stub_launch("hangs"), tasks=(key(1), key(2)), gpus_per_node=2)
    first, second = local.scheduler.submit(made)
    onlooker = local.another(drives=False)
    assert onlooker.poll([first], since=0.0)[first].state == "PENDING"
    local.wait_for(made, "ready-*")
    local.later_s = 10_000.0
    reports = onlooker.poll([first, second], since=0.0)
    assert [reports[job_id].state for job_id in (first, second)] == ["RUNNING", "PENDING"]
    onlooker.close()
    assert all(launcher.is_running() for launcher in local.launchers(first))
    for launcher in local.launchers(first):
        launcher.kill()
        launcher.wait(10)
    assert onlooker.poll([first], since=0.0)[first].state == "NODE_FAIL"
    assert '"RUNNING"' in (local.run_dir / "local" / f"{first}.json").read_text(), "it only looks"


def test_a_scheduler_that_does_not_stay_ends_jobs_and_starts_none(local: Local) -> None:
    job_id = local.start_hanging()
    made = submission(local.run_dir, stub_launch("hangs"), name="waits", tasks=(key(2), key(3)))
    second, third = local.scheduler.submit(made)
    passer_by = local.another(starts=False)
    passer_by.cancel({job_id: "s", second: made.name})
    reports = passer_by.poll([job_id, second, third], since=0.0)
    assert [reports[one].state for one in (job_id, second, third)] == ["CANCELLED", "CANCELLED", "PENDING"]
    assert local.job(third).launched == ()


def test_every_state_has_a_meaning() -> None:
    assert set(LOCAL_STATES) == set(State)
    for state, meaning in LOCAL_STATES.items():
        assert meaning.outcome is None or meaning.phase is Phase.ENDED, state


def test_a_state_of_another_scheduler_has_no_outcome(local: Local) -> None:
    assert "OUT_OF_MEMORY" not in list(LOCAL_STATES)
    assert local.scheduler.poll(["nobodys.0"], since=0.0)["nobodys.0"].outcome is None


def test_jobs_end_with_the_orchestrator(local: Local) -> None:
    assert local.scheduler.keeps_jobs is False


def test_the_attempt_is_named_after_the_job(local: Local) -> None:
    (job_id,) = local.scheduler.submit(submission(local.run_dir, stub_launch("works")))
    local.end_of(job_id)
    written = AttemptFile.parse((local.run_dir / attempt_dir(key()) / "attempt.json").read_text())
    assert (written.job_id, written.exit_code, written.hosts) == (job_id, 0, ("127.0.0.1",))
