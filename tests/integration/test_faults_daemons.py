"""Faults of Slurm's daemons: the controller or the accounting away for a while, or no accounting at all."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sweep.adapters.files.run_directory import RunDir
from tests.commands import wait_for
from tests.integration.conftest import SlurmUnderTest
from tests.integration.fault_run import fault_run

pytestmark = pytest.mark.slurm

# What has ended is not shown: a controller whose MinJobAge is over.
FORGETFUL = r'"$REAL" "$@" | grep -v -E "\|(COMPLETED|FAILED|COMPLETING|CANCELLED|PREEMPTED)\|"; exit 0'

# squeue itself tries for half a minute, in which the job would end: too few looks for an absence that lasts.
IMPATIENT = (
    '[ -e "$HERE/away" ] || exec "$REAL" "$@"; '
    'echo "slurm_load_jobs error: Unable to contact slurm controller (connect failure)" >&2; exit 1'
)


def test_a_controller_that_is_away_while_a_job_is_submitted_and_while_it_runs_costs_only_time(
    slurm: SlurmUnderTest, tmp_path: Path
) -> None:
    run = fault_run(slurm, tmp_path, "away", "nodes=1", "seq_len=64", gated=True, lost_after_s=3)
    run = run.in_the_way(
        "sbatch", 'touch "$HERE/asked"; until [ -e "$HERE/go" ]; do sleep 0.1; done; exec "$REAL" "$@"'
    )
    run = run.in_the_way("squeue", IMPATIENT)
    folder = run.shell.folder / "bin"
    started = run.shell.start(*run.arguments)
    wait_for(lambda: (folder / "asked").exists(), 60, "sbatch is called")
    slurm.stop_controller()
    try:
        (folder / "go").touch()
        wait_for(lambda: RunDir(run.run_dir).away() is not None, 60, "the controller is known to be away")
        assert "the scheduler has not been reached since" in run.shell.run("status", f"run_dir={run.run_dir}").out
    finally:
        slurm.start_controller()
    # Not before its srun has what it needs of the controller.
    wait_for(lambda: any(run.run_dir.glob("cells/*/repeat-01/*/attempt.json")), 60, "its launcher runs")
    (folder / "away").touch()
    slurm.stop_controller()
    try:
        # The job ends while the controller is away.
        run.gate.touch()
        wait_for(lambda: bool(run.measured()), 60, "it measures")
    finally:
        slurm.start_controller()
        (folder / "away").unlink()
    text, _ = started.communicate(timeout=120)
    assert started.returncode == 0, text
    assert "the scheduler was not reached" in text
    assert "the scheduler answers again" in text
    assert run.outcomes() == ["SUCCEEDED"]
    assert run.by_length()["64"]["attempt"].endswith("attempt-01"), "what never arrived is no attempt"
    assert len(run.events("reserved")) == 1
    run.audit()


def test_accounting_that_is_away_delays_facts_that_only_it_has(slurm: SlurmUnderTest, tmp_path: Path) -> None:
    run = fault_run(
        slurm, tmp_path, "unaccounted", "nodes=1", "seq_len=[32,64]", "policy.canary=false", plan={"64": "no_result"},
        # The controller may take as long to bring the accounting up to date.
        lost_after_s=120,
    )  # fmt: skip
    run = run.in_the_way("squeue", FORGETFUL)
    slurm.stop_accounting()
    try:
        started = run.shell.start(*run.arguments)
        wait_for(lambda: "SUCCEEDED" in run.outcomes(), 120, "a result needs no scheduler")
        assert run.outcomes() == ["SUCCEEDED"], "without a word of Slurm nothing else is decided"
    finally:
        slurm.start_accounting()
    text, _ = started.communicate(timeout=240)
    assert started.returncode == 1, text
    assert "the scheduler cannot be asked" in text
    table = run.by_length()
    assert table["32"]["status"] == "measured"
    assert table["64"]["status"] == "trainer_error"
    assert "without a result" in table["64"]["reason"]
    # Without Slurm's word the launcher's own times count, which leave out how long the job took to start.
    run.audit(by_sacct=False)


def test_a_cluster_without_accounting_is_never_asked_for_it(slurm: SlurmUnderTest, tmp_path: Path) -> None:
    run = fault_run(
        slurm, tmp_path, "nosacct", "nodes=1", "seq_len=[32,64,96]", "policy.canary=false",
        plan={"64": "no_result", "96": "truncated"}, site={"sacct": False}, lost_after_s=6,
    )  # fmt: skip
    run = run.in_the_way(
        "sacct", 'echo >> "$HERE/sacct.calls"; echo "sacct: error: accounting storage is disabled" >&2; exit 1'
    )
    # Worse: the queue forgets every job at its end.
    run = run.in_the_way("squeue", FORGETFUL)
    done = run.shell.run(*run.arguments)
    assert done.code == 1, done.err
    assert run.calls("sacct") == 0
    table = run.by_length()
    assert [row["status"] for row in table.values()] == ["measured", "trainer_error", "trainer_error"]
    assert "not whole JSON" in table["96"]["reason"]
    run.audit(by_sacct=False)


@pytest.mark.parametrize("forgets", [False, True], ids=["remembered", "forgotten"])
def test_without_accounting_jobs_that_slurm_ended_still_get_their_outcomes(
    slurm: SlurmUnderTest, tmp_path: Path, *, forgets: bool
) -> None:
    """32 eats memory, 64 is cancelled by hand; what the queue forgets, the job's log still says."""
    run = fault_run(
        slurm, tmp_path, "unknown", "nodes=1", "seq_len=[32,64]", "policy.canary=false",
        plan={"32": "eat_memory", "64": "slow"}, site={"sacct": False, "mem": "200"}, lost_after_s=6,
        result_grace_s=3.0,
    )  # fmt: skip
    if forgets:
        run = run.in_the_way("squeue", FORGETFUL)
    started = run.shell.start(*run.arguments)
    slurm.run("scancel", run.job_of(64))
    text, _ = started.communicate(timeout=240)
    assert started.returncode == 1, text
    table = run.by_length()
    assert {length: row["status"] for length, row in table.items()} == {"32": "oom_host", "64": "cancelled"}
    assert sorted(run.outcomes()) == ["CANCELLED", "OOM_HOST"]
    # Of its two ways to say it one comes from the step and one from the job.
    assert re.search("exceeded (job )?memory limit", table["32"]["reason"], re.IGNORECASE)
    run.audit(by_sacct=not forgets)


def test_a_sweep_that_no_controller_answered_leaves_no_run_directory(slurm: SlurmUnderTest, tmp_path: Path) -> None:
    run = fault_run(slurm, tmp_path, "unanswered", "nodes=1", "seq_len=64")
    away = 'echo "scontrol: error: Unable to contact slurm controller (connect failure)" >&2; exit 1'
    done = run.in_the_way("scontrol", away).shell.run(*run.arguments)
    assert done.code == 2, done.err
    assert "Nothing was submitted" in done.err
    assert not run.run_dir.exists()
    missing = run.with_env(SLURM_CONF=str(tmp_path / "gone.conf")).shell.run(*run.arguments)
    assert missing.code == 2
    assert f"SLURM_CONF names {tmp_path}/gone.conf, which is no file" in missing.err
    assert not run.run_dir.exists()
