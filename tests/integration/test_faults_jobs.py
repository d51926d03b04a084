"""Faults of jobs and nodes on a real Slurm, and the outcomes that they lead to."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from sweep.core.records.layout import RESULT_FILE
from tests.commands import wait_for
from tests.integration.conftest import SlurmUnderTest
from tests.integration.fault_run import fault_run
from tests.stubs.stub_trainer import LATE_FILE

pytestmark = pytest.mark.slurm


def test_a_node_that_fails_under_a_job_of_two_is_blamed_and_the_retry_keeps_away_from_it(
    slurm: SlurmUnderTest, tmp_path: Path
) -> None:
    run = fault_run(slurm, tmp_path, "nodefail", "nodes=2", "seq_len=64", mode="hang@1", seconds=1)
    started = run.shell.start(*run.arguments)
    run.wait_running()
    (job,) = run.jobs()
    run.job_of(64)
    # Before srun has reached it, Slurm only sees srun fail.
    wait_for(lambda: any(run.run_dir.glob("cells/*/repeat-01/attempt-01/node-1.log")), 60, "both nodes are at work")
    nodes = slurm.run("scontrol", "show", "hostnames", slurm.run("squeue", "-h", "-j", job, "-o", "%N")).split()
    slurm.fail_node(nodes[1])
    try:
        text, _ = started.communicate(timeout=240)
    finally:
        slurm.restore_node(nodes[1])
    assert started.returncode == 0, text
    assert run.outcomes() == ["NODE_FAIL", "SUCCEEDED"]
    failed = run.events("ended")[0]
    assert failed["evidence"]["blamed"] == [nodes[1]]  # type: ignore[index]  # JSON
    retried = json.loads((run.run_dir / "submissions" / f"{run.events('submitted')[1]['submission']}.json").read_text())
    assert retried["exclude"] == [nodes[1]]
    assert run.by_length()["64"]["attempt"].endswith("attempt-02")
    run.audit()


def test_a_node_that_fails_before_srun_reaches_it_is_blamed_although_it_is_well_again(
    slurm: SlurmUnderTest, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    site = {"setup": [f"until [ -e {gate} ]; do sleep 0.1; done"]}
    run = fault_run(slurm, tmp_path, "launch", "nodes=2", "seq_len=64", mode="hang@1", site=site)
    started = run.shell.start(*run.arguments)
    run.wait_running()
    (job,) = run.jobs()
    nodes = slurm.run("scontrol", "show", "hostnames", slurm.run("squeue", "-h", "-j", job, "-o", "%N")).split()
    slurm.fail_node(nodes[1], is_noticed=False)
    try:
        gate.touch()
        wait_for(lambda: run.in_queue() == ["COMPLETING"], 60, "srun has given up")
    finally:
        slurm.restore_node(nodes[1])
    text, _ = started.communicate(timeout=180)
    assert started.returncode == 0, text
    assert run.outcomes() == ["NODE_FAIL", "SUCCEEDED"]
    assert run.events("ended")[0]["evidence"]["blamed"] == [nodes[1]]  # type: ignore[index]  # JSON
    run.audit()


def test_a_preempted_job_is_retried_and_a_requeued_one_goes_on_under_its_id(
    slurm: SlurmUnderTest, tmp_path: Path
) -> None:
    """32: preempted, and Slurm requeues it; 64: preempted for good; 96: requeued by an administrator."""
    run = fault_run(
        slurm, tmp_path, "preempted", "nodes=1", "seq_len=[32,64,96]", "policy.canary=false", "budget.gpu_hours=2",
        plan={"32": "hang_at_first", "64": "hang@1", "96": "hang_at_first"},
        site={"qos": "low", "sbatch": {"nodelist": "node1"}},
    )  # fmt: skip
    started = run.shell.start(*run.arguments)
    run.wait_running(3)
    jobs = {length: run.job_of(length) for length in (32, 64, 96)}
    time.sleep(8)  # what they use before the requeue must be well above the audit's tolerance
    for length in (32, 96):
        slurm.run("scontrol", "update", f"jobid={jobs[length]}", "requeue=1")
    slurm.run("scontrol", "requeue", jobs[96])
    urgent = slurm.sbatch("sleep 1", "--qos=high", "--gres=gpu:8", "--nodelist=node1", "--mem=100")
    text, _ = started.communicate(timeout=200)
    assert started.returncode == 0, text
    assert slurm.wait_ended(urgent) == "COMPLETED"
    assert sorted(run.outcomes()) == ["PREEMPTED", "SUCCEEDED", "SUCCEEDED", "SUCCEEDED"]
    attempts = {length: row["attempt"].partition("repeat-01/")[2] for length, row in run.by_length().items()}
    assert attempts == {"32": "attempt-01/restart-1", "64": "attempt-02", "96": "attempt-01/restart-1"}
    run.audit(budget=2)


def test_memory_that_slurm_limits_by_cgroups_ends_in_oom_host(slurm: SlurmUnderTest, tmp_path: Path) -> None:
    """Only the job of 32 runs out of memory. As on most clusters the kernel kills it and Slurm says OUT_OF_MEMORY."""
    if not os.access("/sys/fs/cgroup/memory/memory.limit_in_bytes", os.W_OK):
        pytest.skip("no memory controller of cgroup v1 here, which this Slurm needs")
    with slurm.settings(TaskPlugin="task/cgroup", JobAcctGatherParams="UsePss"):
        for sacct in (True, False):
            run = fault_run(
                slurm, tmp_path / f"sacct-{sacct}", "cgroups", "nodes=1", "seq_len=[32,64]", "policy.canary=false",
                "budget.gpu_hours=2", plan={"32": "eat_memory"}, site={"mem": "200", "sacct": sacct}, lost_after_s=6,
            )  # fmt: skip
            done = run.shell.run(*run.arguments)
            assert done.code == 0, done.err
            shown = {length: row["status"] for length, row in run.by_length().items()}
            assert shown == {"32": "oom_host", "64": "measured"}
            assert sorted(run.outcomes()) == ["OOM_HOST", "SUCCEEDED"]
            (found,) = (event for event in run.events("ended") if event["outcome"] == "OOM_HOST")
            evidence = json.loads(json.dumps(found["evidence"]))
            assert evidence["state"] == "OUT_OF_MEMORY"
            assert [error["error_class"] for error in evidence["errors"]] == ["oom_host"], "the launcher saw it too"
            run.audit(budget=2, by_sacct=sacct)


def test_a_set_up_line_that_fails_is_the_nodes_fault_where_it_passed_on_others_and_a_trainer_error_else(
    slurm: SlurmUnderTest, tmp_path: Path
) -> None:
    """As old versions do, this ``module`` returns 0 for a module that is not there."""
    words = 'Lmod has detected the following error: The following module(s) are unknown: "nosuch"'
    module = f"module() {{ echo '{words}' >&2; }}"
    on_node1 = ['if [ "$SLURMD_NODENAME" = node1 ]; then', "  module load nosuch", "fi"]
    site = {"setup": [module, *on_node1], "exclusive": True}
    run = fault_run(
        slurm, tmp_path, "setup", "nodes=1", "seq_len=[32,64]", "policy.canary=false", "policy.pause_after=2", site=site
    )
    done = run.shell.run(*run.arguments)
    assert done.code == 0, done.err
    assert sorted(run.outcomes()) == ["NODE_FAIL", "SUCCEEDED", "SUCCEEDED"]
    failed = next(event for event in run.events("ended") if event["outcome"] == "NODE_FAIL")
    assert failed["evidence"]["blamed"] == ["node1"]  # type: ignore[index]  # JSON
    assert words in str(failed["reason"])
    assert "it passed on node2" in str(failed["reason"])
    run.audit()
    run.reshaped("setup", site={"setup": [module, "true && module load nosuch"]})
    everywhere = run.shell.run(*run.arguments, "seq_len=[96,128,160]", "policy.max_concurrent_jobs=2")
    assert everywhere.code == 1, everywhere.err
    table = run.by_length()
    assert [table[length]["status"] for length in ("96", "128", "160")] == ["trainer_error", "trainer_error", "paused"]
    assert f"`true && module load nosuch` ended with exit code 0: {words}" in table["96"]["reason"]
    run.audit()


def test_every_other_way_to_fail_has_its_own_outcome(slurm: SlurmUnderTest, tmp_path: Path) -> None:
    """32 hangs, 64 is slow, 96 eats memory, 128 is cancelled by hand, 160 is late, 192 and 224 have no valid result."""
    run = fault_run(
        slurm, tmp_path, "mixed", "nodes=1", "seq_len=[32,64,96,128,160,192,224]", "policy.canary=false",
        "policy.watchdog_s=20", "policy.outcomes.COMM_FAILURE.backoff_s=1", "budget.gpu_hours=2",
        plan={
            "32": "hang@1", "64": "slow@1", "96": "eat_memory", "128": "slow", "160": "late", "192": "no_result",
            "224": "truncated",
        },
        # Slurm sends its signal up to half a minute early; the watchdog must end the hang before.
        walltime_min=1, result_grace_s=45.0, site={"mem": "200", "signal_delay_s": 1},
    )  # fmt: skip
    started = run.shell.start(*run.arguments)
    run.wait_running(3)
    slurm.run("scancel", run.job_of(128))
    wait_for(lambda: any(run.run_dir.glob(f"cells/*/repeat-01/attempt-01/{LATE_FILE}")), 60, "it is there")
    (late,) = run.run_dir.glob(f"cells/*/repeat-01/attempt-01/{LATE_FILE}")
    wait_for(lambda: json.loads(late.with_name("attempt.json").read_text())["ended_at"] is not None, 60, "it ends")
    wait_for(lambda: late.stat().st_mtime + 6 < time.time(), 60, "six seconds pass")
    late.rename(late.with_name(RESULT_FILE))
    text, _ = started.communicate(timeout=400)
    assert started.returncode == 1, text
    table = run.by_length()
    assert {length: row["status"] for length, row in table.items()} == {
        "32": "measured", "64": "measured", "96": "oom_host", "128": "cancelled", "160": "measured",
        "192": "trainer_error", "224": "trainer_error",
    }  # fmt: skip
    assert sorted(run.outcomes()) == sorted(
        ["COMM_FAILURE", "TIMEOUT", "OOM_HOST", "CANCELLED", *["TRAINER_ERROR"] * 2, *["SUCCEEDED"] * 3]
    )
    walltimes = sorted(float(str(event["gpu_hours"])) * 60 for event in run.events("reserved"))
    assert walltimes == [1.0, 1.0, 2.0], "after a TIMEOUT twice as long"
    assert "(exit code 0) without a result" in table["192"]["reason"]
    assert "not whole JSON" in table["224"]["reason"]
    assert "no step for" in next(str(e["reason"]) for e in run.events("ended") if e["outcome"] == "COMM_FAILURE")
    run.audit(budget=2)
    run.reshaped("mixed", plan={"96": "eat_memory", "192": "no_result", "224": "truncated"}, walltime_min=1)
    again = run.shell.run(*run.arguments)
    assert again.code == 1
    assert len(run.events("reserved")) == 3, "cancelled by hand: not resubmitted unless asked"
    asked = run.shell.run(*run.arguments, "retry=[CANCELLED]")
    assert asked.code == 1
    assert run.by_length()["128"]["status"] == "measured"
    assert len(run.events("reserved")) == 4
    run.audit(budget=2)


def test_a_result_that_appears_after_its_attempt_was_given_up_counts_and_nothing_runs_again(
    slurm: SlurmUnderTest, tmp_path: Path
) -> None:
    run = fault_run(
        slurm, tmp_path, "toolate", "nodes=1", "seq_len=[32,64]", "policy.canary=false", plan={"64": "late"},
        result_grace_s=0.5,
    )  # fmt: skip
    first = run.shell.run(*run.arguments)
    assert first.code == 1, first.err
    assert run.by_length()["64"]["status"] == "trainer_error"
    (late,) = run.run_dir.glob(f"cells/*/repeat-01/attempt-01/{LATE_FILE}")
    late.rename(late.with_name(RESULT_FILE))
    again = run.shell.run(*run.arguments)
    assert again.code == 0, again.err
    assert run.by_length()["64"]["status"] == "measured"
    assert run.outcomes().count("SUCCEEDED") == 2
    assert sum(len(event["tasks"]) for event in run.events("reserved")) == 2  # type: ignore[arg-type]  # JSON
