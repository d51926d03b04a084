"""The Slurm scheduler on a real Slurm: jobs run to their ends, and its reports of them are true."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from sweep.adapters.slurm.commands import SlurmCommands
from sweep.adapters.slurm.scheduler import SlurmScheduler
from sweep.adapters.slurm.script import log_file
from sweep.core.attempts.attempt import JobReport, Outcome, Phase
from sweep.core.jobs.submission import Submission
from sweep.core.settings.spec import GpuFlag, SlurmSpec
from sweep.ports import SubmissionRejectedError
from tests.commands import wait_for
from tests.fakes import submission_of
from tests.integration.conftest import SlurmUnderTest
from tests.stubs.jobs import hash_of, publish

pytestmark = pytest.mark.slurm

SITE = SlurmSpec(mem="100", cpus_per_task=1)

# Replaces the snapshot's launcher: writes down its arguments and environment, then sleeps as long as they say. It
# ignores Slurm's warning before the end, which comes at once where the end is near.
_LAUNCH = """
import json, os, signal, sys, time
signal.signal(signal.SIGUSR2, signal.SIG_IGN)
seen = {"argv": sys.argv[1:], "file": __file__, "environ": dict(os.environ)}
name, node = os.environ["SLURM_JOB_NAME"], os.environ["SLURM_NODEID"]
folder = os.path.join(os.path.dirname(sys.argv[2]), "seen")
os.makedirs(folder, exist_ok=True)
with open(os.path.join(folder, f"{name}-{os.environ.get('SLURM_ARRAY_TASK_ID', '0')}-{node}"), "w") as file:
    json.dump(seen, file)
print("node", node, "was here", flush=True)
time.sleep(float(os.environ.get("STUB_SLEEP_S", "0")))
"""


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run directory whose name has signs that shells and Slurm expand; the sources in it are the stub."""
    run = tmp_path / "it's a run %j"
    (run / "sources" / "stub" / "sweep").mkdir(parents=True)
    (run / "sources" / "stub" / "sweep" / "__init__.py").touch()
    (run / "sources" / "stub" / "sweep" / "launch.py").write_text(_LAUNCH)
    return run


def submission(run: Path, name: str, *, tasks: int = 1, nodes: int = 1, gpus_per_node: int = 1) -> Submission:
    sources = run / "sources" / "stub"
    made = submission_of(
        tasks,
        name=f"{name}-{time.time_ns():x}",
        run_dir=str(run),
        created_at=time.time(),
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        sources_dir=str(sources),
        sources_hash=hash_of(sources),
    )
    return publish(made)


def scheduler(slurm: SlurmUnderTest, run_dir: Path, spec: SlurmSpec = SITE, **environ: str) -> SlurmScheduler:
    return SlurmScheduler(spec, run_dir, commands=SlurmCommands({**slurm.env, **environ}))


def watch(
    on: SlurmScheduler, jobs: tuple[str, ...], until: Callable[[JobReport], bool], timeout_s: float = 120
) -> Mapping[str, JobReport]:
    """Poll until every job is as wanted; on the way no job may ever be unknown to both the queue and accounting.

    One that has left the queue is absent until accounting, which then still says that it is alive, hears of its end.
    """
    since, deadline = time.time(), time.monotonic() + timeout_s
    while True:
        reports = on.poll(jobs, since=since)
        assert all(report.phase is not Phase.ABSENT or report.state for report in reports.values())
        if all(map(until, reports.values())):
            return reports
        assert time.monotonic() < deadline, reports
        time.sleep(0.3)


def has_ended(report: JobReport) -> bool:
    return report.phase is Phase.ENDED


def is_running(report: JobReport) -> bool:
    return report.phase is Phase.RUNNING


def seen_by(run: Path, of: Submission, index: int = 0, node: int = 0) -> dict[str, dict[str, str]]:
    return json.loads((run / "submissions" / "seen" / f"{of.name}-{index}-{node}").read_text())


def test_an_array_and_a_two_node_job_run_to_their_ends(slurm: SlurmUnderTest, run_dir: Path) -> None:
    """A site's settings and an enclosing job's environment must not reach the jobs."""
    spec = replace(
        SITE,
        partition="debug",
        sbatch={"comment": 'it\'s "ours" #1', "export": "NONE"},
        setup=("export FROM_SETUP=1",),
        container=("env", '"FROM_CONTAINER=$FROM_SETUP"'),
    )
    inherited = {"SLURM_CPU_BIND": "none", "SBATCH_PARTITION": "nope", "SLURM_ARRAY_TASK_ID": "7", "RANK": "3"}
    on = scheduler(slurm, run_dir, spec, **inherited)
    array, pair = submission(run_dir, "array", tasks=3), submission(run_dir, "pair", nodes=2, gpus_per_node=3)
    began = time.time()
    jobs = (*on.submit(array), *on.submit(pair))
    assert [job.partition("_")[2] for job in jobs] == ["0", "1", "2", ""]
    reports = watch(on, jobs, has_ended)
    assert {report.state for report in reports.values()} == {"COMPLETED"}
    for report in reports.values():
        assert report.started_at is not None
        assert report.ended_at is not None
        # Slurm counts whole seconds.
        assert began - 1 <= report.started_at <= report.ended_at <= time.time() + 1
    assert [len(reports[job].nodes) for job in jobs] == [1, 1, 1, 2]
    assert set(reports[jobs[3]].nodes) <= set(slurm.nodes)

    for index in range(3):
        environ = seen_by(run_dir, array, index)["environ"]
        assert environ["SLURM_ARRAY_TASK_ID"] == str(index)
        assert environ["SLURM_GPUS_ON_NODE"] == "1"
    for node in range(2):
        word = seen_by(run_dir, pair, node=node)
        assert word["argv"] == ["--submission", f"{run_dir}/{pair.file}"]
        assert word["file"] == f"{run_dir}/sources/stub/sweep/launch.py"
        assert word["environ"]["SLURM_GPUS_ON_NODE"] == "3"
        assert word["environ"]["SLURM_NTASKS"] == "2"
        assert word["environ"]["FROM_CONTAINER"] == "1"
        assert word["environ"].get("SLURM_CPU_BIND") != "none"
        assert word["environ"].keys().isdisjoint({"SBATCH_PARTITION", "RANK", "SLURM_ARRAY_TASK_ID"})
    logs = run_dir / "submissions" / "logs"
    zone, *lines = (run_dir / log_file(pair.name, jobs[3])).read_text().splitlines()
    assert re.fullmatch(r"sweep: zone [+-]\d{4}", zone)
    assert sorted(lines) == [
        "0: node 0 was here",
        "1: node 1 was here",
    ]
    assert len(list(logs.iterdir())) == 2 + 4  # a script for each submission, a log for each job

    # Accounting reports the same once the queue has forgotten the jobs.
    accounting = dict(on._queries.recorded(jobs, {}, since=began).exact)
    deadline = time.monotonic() + 120
    while set(accounting) != set(jobs) or not all(map(has_ended, accounting.values())):
        assert time.monotonic() < deadline, accounting
        time.sleep(0.5)
        accounting = dict(on._queries.recorded(jobs, {}, since=began).exact)
    assert {job: replace(report, exit_code=None) for job, report in accounting.items()} == dict(reports)
    assert {report.exit_code for report in accounting.values()} == {0}


def test_a_submission_is_found_by_its_name_from_before_it_runs_until_it_is_over(
    slurm: SlurmUnderTest, run_dir: Path
) -> None:
    """The job is held and then cancelled: accounting has jobs that never ran, too."""
    held = scheduler(slurm, run_dir, replace(SITE, sbatch={"hold": True}))
    lost = submission(run_dir, "lost", tasks=2)
    assert held.find(lost) is None
    jobs = held.submit(lost)
    on = scheduler(slurm, run_dir)
    assert on.find(lost) == jobs
    assert on.find(replace(lost, name=lost.name[:-1])) is None
    assert all(report.phase is Phase.PENDING for report in on.poll(jobs, since=lost.created_at).values())
    while not on._queries.recorded(jobs, {}, since=lost.created_at).arrays:
        time.sleep(0.2)  # accounting gets a new array a moment later
    on.cancel({jobs[1]: lost.name}, only_pending=True)
    assert {report.state for report in watch(on, jobs[1:], has_ended).values()} == {"CANCELLED"}
    assert on.poll(jobs[:1], since=lost.created_at)[jobs[0]].phase is Phase.PENDING, "the other waiting task stays"
    on.cancel(dict.fromkeys(jobs, lost.name))
    watch(on, jobs, has_ended)
    deadline = time.monotonic() + 120
    forgetful = scheduler(slurm, run_dir)
    # The queue has forgotten it, as after MinJobAge (the test does not wait that long).
    forgetful._queries._squeue = lambda *_: ""  # type: ignore[method-assign]  # the one method that asks squeue
    while (found := forgetful.find(lost)) is None:
        assert time.monotonic() < deadline
        time.sleep(0.5)
    assert found == jobs


def test_kill_minus_9_between_sbatch_and_recording_loses_no_job(slurm: SlurmUnderTest, run_dir: Path) -> None:
    """A wrapper of sbatch kills its caller as soon as Slurm has taken the job."""
    real = slurm.run("sh", "-c", "command -v sbatch")
    wrapper = run_dir / "bin" / "sbatch"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\n{real} "$@"\nkill -9 $PPID\n')
    wrapper.chmod(0o755)
    lost = submission(run_dir, "killed")
    code = (
        "import os, sys\nfrom pathlib import Path\nfrom sweep.adapters.slurm.scheduler import SlurmScheduler\n"
        "from sweep.core.settings.spec import SlurmSpec\nfrom sweep.core.jobs.submission import Submission\n"
        "on = SlurmScheduler(SlurmSpec(mem='100'), Path())\n"
        "on.submit(Submission.parse(Path(sys.argv[1]).read_text()))\n"
    )
    file = run_dir / lost.file
    env = {**slurm.env, "PATH": f"{wrapper.parent}:{slurm.env['PATH']}"}
    done = subprocess.run([sys.executable, "-c", code, str(file)], env=env, timeout=240, check=False)
    assert done.returncode == -9
    on = scheduler(slurm, run_dir)
    found = on.find(lost)
    assert found is not None
    assert {report.state for report in watch(on, found, has_ended).values()} == {"COMPLETED"}


def test_another_job_of_the_user_is_left_alone_although_a_record_holds_its_name_and_id(
    slurm: SlurmUnderTest, run_dir: Path, tmp_path: Path
) -> None:
    on = scheduler(slurm, run_dir, STUB_SLEEP_S="120")
    submitted = submission(run_dir, "own")
    (ours,) = on.submit(submitted)
    unrelated = slurm.sbatch("sleep 120", f"--job-name={submitted.name}")
    script = tmp_path / f"{submitted.name}.sh"
    script.write_text("#!/bin/sh\nsleep 120\n")
    beside = slurm.run("sbatch", "--parsable", "--output=/dev/null", str(script)).split(";")[0]
    left_alone = on.cancel(dict.fromkeys((ours, unrelated, beside), submitted.name))
    assert [line.split()[0] for line in left_alone] == [unrelated, beside]
    assert all(line.endswith(f"is none of {run_dir}: it is left alone") for line in left_alone)
    assert {report.outcome for report in watch(on, (ours,), has_ended).values()} == {Outcome.CANCELLED}
    left = slurm.run("squeue", "-h", "-j", f"{unrelated},{beside}", "-o", "%T").split()
    assert len(left) == 2
    assert {*left} <= {"PENDING", "RUNNING"}
    slurm.run("scancel", unrelated, beside)


def test_a_cancelled_job_ends_and_cancelling_it_again_is_no_error(slurm: SlurmUnderTest, run_dir: Path) -> None:
    on = scheduler(slurm, run_dir, STUB_SLEEP_S="120")
    submitted = submission(run_dir, "cancelled", tasks=3)
    jobs = on.submit(submitted)
    watch(on, jobs, is_running)
    on.cancel(dict.fromkeys(jobs[:2], submitted.name))
    reports = watch(on, jobs[:2], has_ended)
    assert {report.outcome for report in reports.values()} == {Outcome.CANCELLED}
    assert on.poll(jobs[2:], since=time.time())[jobs[2]].phase is Phase.RUNNING
    for _ in range(2):
        on.cancel(dict.fromkeys(jobs, submitted.name))
    watch(on, jobs, has_ended)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            replace(SITE, partition="a; touch HACKED"),
            "invalid partition specified: a; touch HACKED; Batch job submission",
        ),
        (replace(SITE, account="nobodys"), "Invalid account or account/partition combination"),
        (replace(SITE, exclude="no-such-node"), "Invalid node name specified"),
        (
            replace(SITE, gpu_flag=GpuFlag.GRES, sbatch={"gres": "gpu:99"}),
            "Requested node configuration is not available",
        ),
    ],
)
def test_a_refused_submission_gives_slurms_message(
    slurm: SlurmUnderTest, run_dir: Path, spec: SlurmSpec, message: str
) -> None:
    with pytest.raises(SubmissionRejectedError, match=f".*{message}") as caught:
        scheduler(slurm, run_dir, spec).submit(submission(run_dir, "refused"))
    assert not caught.value.is_transient
    assert not list(run_dir.rglob("HACKED"))


def test_a_job_that_slurm_records_while_refusing_it_counts_as_rejected(slurm: SlurmUnderTest, run_dir: Path) -> None:
    """It asks for more GPUs than a node has: sbatch fails, and yet Slurm has a job of that name."""
    on = scheduler(slurm, run_dir)
    refused = submission(run_dir, "too-many-gpus", gpus_per_node=99)
    with pytest.raises(SubmissionRejectedError, match="Requested node configuration is not available"):
        on.submit(refused)
    found = on.find(refused)
    if found is None:
        pytest.skip("this version of Slurm keeps no record of what it refuses")
    report = on.poll(found, since=refused.created_at)[found[0]]
    assert report.outcome is Outcome.REJECTED_BY_SCHEDULER


def test_a_submit_limit_is_a_refusal_that_passes(slurm: SlurmUnderTest, run_dir: Path) -> None:
    slurm.run("sacctmgr", "-i", "modify", "qos", "low", "set", "MaxSubmitJobsPerUser=2")
    on, deadline = scheduler(slurm, run_dir, replace(SITE, qos="low")), time.monotonic() + 60

    def submit_until_limited() -> None:
        while time.monotonic() < deadline:  # the limit reaches the controller a moment later
            limited = submission(run_dir, "limited", tasks=3)
            on.cancel(dict.fromkeys(on.submit(limited), limited.name))
            time.sleep(0.5)

    try:
        with pytest.raises(SubmissionRejectedError, match=r"^QOSMaxSubmitJobPerUserLimit; ") as caught:
            submit_until_limited()
    finally:
        slurm.run("sacctmgr", "-i", "modify", "qos", "low", "set", "MaxSubmitJobsPerUser=-1")
    assert caught.value.is_transient


def test_a_job_past_its_time_is_a_timeout(slurm: SlurmUnderTest, run_dir: Path) -> None:
    on = scheduler(slurm, run_dir, STUB_SLEEP_S="300")
    jobs = on.submit(submission(run_dir, "late"))
    (report,) = watch(on, jobs, is_running).values()
    assert report.ended_at is None
    # A job that ends before its step begins is FAILED: srun finds its job over.
    wait_for(lambda: f"{jobs[0]}.0" in slurm.run("squeue", "-h", "-s", "-j", jobs[0]), 60, "its step runs")
    # Its end is set a few seconds ahead: Slurm refuses one that is past when the update arrives.
    soon = datetime.now() + timedelta(seconds=15)
    slurm.run("scontrol", "update", f"jobid={jobs[0]}", f"EndTime={soon.isoformat(timespec='seconds')}")
    (report,) = watch(on, jobs, has_ended, timeout_s=120).values()
    assert report.outcome is Outcome.TIMEOUT
