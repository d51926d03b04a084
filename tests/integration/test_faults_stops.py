"""Jobs that the tool itself ends on a real Slurm: an attempt is over only once its job is gone."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest

from sweep.core.records.layout import PROGRESS_FILE
from tests.commands import wait_for
from tests.integration.conftest import SlurmUnderTest
from tests.integration.fault_run import fault_run

pytestmark = pytest.mark.slurm

# Each is asked three times before it is given up.
DEAF_TWICE = """
echo >> "$HERE/scancel.calls"
[ $(wc -l < "$HERE/scancel.calls") -gt 6 ] && exec "$REAL" "$@"
echo "scancel: error: Kill job error on job id: Unable to contact slurm controller (connect failure)" >&2
exit 1
"""


def test_a_hanging_job_is_judged_only_once_it_is_gone_and_a_suspended_job_is_no_hang(
    slurm: SlurmUnderTest, tmp_path: Path
) -> None:
    """The job of 32 hangs, and scancel fails twice. The job of 64 is suspended for longer than the watchdog waits."""
    run = fault_run(
        slurm, tmp_path, "deaf", "nodes=1", "seq_len=[32,64]", "policy.canary=false", "policy.watchdog_s=15",
        "policy.outcomes.COMM_FAILURE.backoff_s=1", "budget.gpu_hours=2", plan={"32": "hang@1", "64": "ten_steps"},
    ).in_the_way("scancel", DEAF_TWICE)  # fmt: skip
    started = run.shell.start(*run.arguments)
    suspended = run.job_of(64)
    wait_for(lambda: any(run.run_dir.glob(f"cells/*/*/*/{PROGRESS_FILE}")), 60, "64 makes steps")
    slurm.run("scontrol", "suspend", suspended)
    since = time.monotonic()
    hung = run.job_of(32)
    wait_for(lambda: run.calls("scancel") > 3, 120, "the watchdog tries")
    assert run.outcomes() == []
    wait_for(lambda: time.monotonic() - since > 17, 30, "64 stands still for longer than the watchdog waits")
    slurm.run("scontrol", "resume", suspended)
    text, _ = started.communicate(timeout=240)
    assert started.returncode == 0, text
    assert text.count("the scheduler did not take the cancel") == 1
    assert sorted(run.outcomes()) == ["COMM_FAILURE", "SUCCEEDED", "SUCCEEDED"]
    assert [event["kind"] for event in run.events("stop_requested")] == ["hang"]
    (retry,) = set(run.jobs()) - {hung, suspended}
    ended, began = slurm.sacct_time(hung, "End"), slurm.sacct_time(retry, "Submit")
    assert ended <= began, "the retry began beside the job that hung"
    run.audit(budget=2)


def test_a_job_that_could_never_begin_is_ended_and_costs_nothing(slurm: SlurmUnderTest, tmp_path: Path) -> None:
    run = fault_run(
        slurm, tmp_path, "hopeless", "nodes=1", "seq_len=32", "policy.hopeless_after_s=1", "budget.gpu_hours=0.5",
        walltime_min=20,
    )  # fmt: skip
    slurm.run("scontrol", "update", "partitionname=debug", "MaxTime=5")
    try:
        done = run.shell.run(*run.arguments)
    finally:
        slurm.run("scontrol", "update", "partitionname=debug", "MaxTime=INFINITE")
    assert done.code == 1, done.err
    assert run.outcomes() == ["REJECTED_BY_SCHEDULER"]
    assert "PartitionTimeLimit" in run.by_length()["32"]["reason"]
    run.audit(budget=0)


def test_a_pause_withdraws_queued_jobs_and_all_cells_run_once_the_error_is_mended(
    slurm: SlurmUnderTest, tmp_path: Path
) -> None:
    """The smallest cell succeeds, so all others are submitted at once; they fail alike, one after the other.

    160, the fifth, may have begun before the pause is decided; then it goes on.
    """
    lengths = ",".join(str(32 * number) for number in range(1, 13))
    run = fault_run(
        slurm, tmp_path, "paused", "nodes=1", f"seq_len=[{lengths}]", "budget.gpu_hours=2", mode="error",
        plan={"32": "ok"}, gated="160", site={"sbatch": {"nodelist": "node1"}, "exclusive": True},
    )  # fmt: skip
    started = run.shell.start(*run.arguments)
    wait_for(lambda: len(run.events("withdrawn")) >= 7, 240, "what has not begun is taken back")
    run.gate.touch()
    text, _ = started.communicate(timeout=120)
    assert started.returncode == 1, text
    outcomes = Counter(run.outcomes())
    assert outcomes in ({"SUCCEEDED": 1, "TRAINER_ERROR": 3}, {"SUCCEEDED": 1, "TRAINER_ERROR": 4})
    held = 11 - outcomes["TRAINER_ERROR"]
    assert len(run.events("withdrawn")) == held
    assert Counter(row["status"] for row in run.by_length().values())["paused"] == held
    assert "3 cells failed alike" in text
    run.audit(budget=2)
    run.reshaped("paused")
    again = run.shell.run(*run.arguments, "retry=[TRAINER_ERROR]")
    assert again.code == 0, again.err
    assert Counter(run.outcomes())["SUCCEEDED"] == 12
    run.audit(budget=2)


def test_a_requeued_job_whose_next_run_may_not_fit_into_the_budget_is_taken_from_the_queue(
    slurm: SlurmUnderTest, tmp_path: Path
) -> None:
    """Each run may take two minutes, and the budget is 126 seconds; ten are used when Slurm requeues the job."""
    run = fault_run(
        slurm, tmp_path, "requeued", "nodes=1", "seq_len=32", "budget.gpu_hours=0.035", mode="slow", walltime_min=2
    )  # fmt: skip
    started = run.shell.start(*run.arguments)
    run.wait_running()
    job = run.job_of(32)
    time.sleep(10)
    slurm.run("scontrol", "update", f"jobid={job}", "requeue=1")
    slurm.run("scontrol", "requeue", job)
    text, _ = started.communicate(timeout=240)
    assert started.returncode == 1, text
    assert run.outcomes() == ["PREEMPTED"]
    assert [event["kind"] for event in run.events("stop_requested")] == ["over_budget"]
    row = run.by_length()["32"]
    assert row["status"] == "over_budget"
    assert "after PREEMPTED" in row["reason"]
    run.audit(budget=0.035)
