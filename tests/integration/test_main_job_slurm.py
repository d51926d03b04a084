"""The main job on a real Slurm, as a user runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.commands import Shell, events, rows, stub_cluster, wait_for
from tests.integration.conftest import SlurmUnderTest

TINY = ["model=debug_1m", "seq_len=64", "trainer.steps=6", "trainer.warmup_steps=2", "trainer.threads_per_rank=1"]
GRES = {"gpu_flag": "gres", "cpus_per_task": 1, "signal_delay_s": 10}


@pytest.fixture
def shell(slurm: SlurmUnderTest, tmp_path: Path) -> Shell:
    return Shell(folder=tmp_path, env=slurm.env, config_dir=tmp_path / "conf")


def _stub(shell: Shell, name: str, **changes: object) -> tuple[list[str], Path]:
    assert shell.config_dir is not None
    stub_cluster(shell.config_dir, name, base="slurm", **{"slurm": GRES, **changes})  # type: ignore[arg-type]  # keywords
    return ["+grid=weak_scaling", f"cluster={name}", *TINY], shell.folder / "runs" / f"weak_scaling-{name}"


def _jobs_of(slurm: SlurmUnderTest, run_dir: Path) -> list[str]:
    """Every job that accounting knows under the names of the run's submissions, however it ended."""
    names = {path.stem for path in run_dir.glob("submissions/*.json")}
    found = slurm.run("sacct", "-X", "-n", "-P", "-S", "now-1hours", "-o", "JobID,JobName").splitlines()
    return [line.split("|")[0] for line in found if line.split("|")[1] in names]


def _running(slurm: SlurmUnderTest, run_dir: Path) -> bool:
    """True if a job of the run runs and the ledger knows it."""
    names = {path.stem for path in run_dir.glob("submissions/*.json")}
    queue = slurm.run("squeue", "--array", "-h", "-o", "%j|%T").splitlines()
    is_any = any(line.split("|") == [name, "RUNNING"] for line in queue for name in names)
    return is_any and bool(events(run_dir, "submitted"))


@pytest.mark.slurm
@pytest.mark.torchrun
def test_a_killed_orchestrator_over_real_training_is_resumed_with_the_same_jobs_and_a_complete_table(
    slurm: SlurmUnderTest, tmp_path: Path
) -> None:
    shell = Shell(folder=tmp_path, env=slurm.env)
    run_dir = tmp_path / "runs" / "weak_scaling-private_slurm"
    arguments = ["+grid=weak_scaling", "cluster=private_slurm", "nodes=[1,2,4]", *TINY]
    first = shell.start(*arguments)
    wait_for(lambda: _running(slurm, run_dir), 60, "a job runs")
    first.kill()
    first.wait()
    jobs = [event["jobs"] for event in events(run_dir, "submitted")]
    second = shell.run(*arguments, timeout_s=800)
    assert second.code == 0, second.err
    assert [event["jobs"] for event in events(run_dir, "submitted")][: len(jobs)] == jobs
    assert len(_jobs_of(slurm, run_dir)) == 3, "no job was doubled"
    table = rows(run_dir)
    assert [(row["nodes"], row["status"]) for row in table] == [("1", "measured"), ("2", "measured"), ("4", "measured")]
    assert {row["attempt"].rsplit("/", 1)[1] for row in table} == {"attempt-01"}
    reserved = slurm.run("sacct", "-X", "-n", "-P", "-S", "now-1hours", "-o", "JobName,AllocTRES").splitlines()
    names = {path.stem for path in run_dir.glob("submissions/*.json")}
    mine = [line for line in reserved if line.split("|")[0] in names]
    assert sorted(line.partition("gres/gpu=")[2].split(",")[0] for line in mine) == ["1", "2", "4"]


@pytest.mark.slurm
def test_a_job_whose_node_fails_is_retried_and_the_table_is_complete(slurm: SlurmUnderTest, shell: Shell) -> None:
    arguments, run_dir = _stub(shell, "failing", mode="hang@1", environment={"STUB_PLAN": '{"64": "hang@1"}'})
    started = shell.start(*arguments, "nodes=1")
    wait_for(lambda: _running(slurm, run_dir), 60, "a job runs")
    wait_for(lambda: any(run_dir.glob("cells/*/*/attempt-01/attempt.json")), 60, "its launcher has begun")
    (submitted,) = events(run_dir, "submitted")
    (job,) = submitted["jobs"]  # type: ignore[misc]  # a list of ids
    node = slurm.run("squeue", "-h", "-j", job, "-o", "%N")
    slurm.fail_node(node)
    try:
        text, _ = started.communicate(timeout=240)
    finally:
        slurm.restore_node(node)
    assert started.returncode == 0, text
    assert [event["outcome"] for event in events(run_dir, "ended")] == ["NODE_FAIL", "SUCCEEDED"]
    (row,) = rows(run_dir)
    assert row["status"] == "measured"
    assert row["attempt"].endswith("attempt-02")


@pytest.mark.slurm
def test_status_shows_a_sweep_that_was_left_and_a_later_command_takes_it_over(
    slurm: SlurmUnderTest, shell: Shell
) -> None:
    """One cell is measured and one cancelled by hand while nobody watches."""
    gate = shell.folder / "gate"
    arguments, run_dir = _stub(shell, "left", environment={"STUB_GATE": str(gate)})
    slurm.run("scontrol", "update", "nodename=node[2-4]", "state=drain", "reason=a test")
    try:
        canary = shell.run(*arguments, "nodes=[1,2]", "watch=false")
        assert canary.code == 3, canary.err
        assert len(events(run_dir, "submitted")) == 1
        assert "1 more follow when the same command is given again" in canary.err
        left = shell.run(*arguments, "nodes=[1,2]", "policy.canary=false", "watch=false")
        assert left.code == 3, left.err
        waiting = events(run_dir, "submitted")[1]["jobs"][0]  # type: ignore[index]  # a list of ids
        slurm.run("scancel", waiting)
    finally:
        slurm.run("scontrol", "update", "nodename=node[2-4]", "state=resume")
    gate.touch()
    slurm.wait_ended(events(run_dir, "submitted")[0]["jobs"][0])  # type: ignore[index]  # a list of ids
    before = (run_dir / "ledger.jsonl").read_text()
    seen: dict[str, Any] = shell.status(run_dir)
    assert [(cell["state"], cell["outcome"], cell["recorded"]) for cell in seen["cells"]] == [
        ("done", "SUCCEEDED", False),
        ("cancelled", "CANCELLED", False),
    ]
    assert seen["totals"]["unrecorded"] == 2
    of_cell = shell.run("status", seen["cells"][1]["cell"], f"run_dir={run_dir}").out
    assert "repeat 1 attempt 1: CANCELLED (not recorded yet)" in of_cell
    assert seen["totals"]["gpu_hours_spent"] > 0
    tables = shell.run("tables", f"run_dir={run_dir}")
    assert "2 attempts have ended since the run was left" in tables.err
    assert (run_dir / "ledger.jsonl").read_text() == before, "status and tables only look"
    taken = shell.run(*arguments, "nodes=[1,2]")
    assert taken.code == 1, taken.err
    assert len(events(run_dir, "submitted")) == 2
    assert [row["status"] for row in rows(run_dir)] == ["measured", "cancelled"]


@pytest.mark.slurm
def test_ctrl_c_leaves_the_jobs_running_and_says_so(slurm: SlurmUnderTest, shell: Shell) -> None:
    import signal

    gate = shell.folder / "gate"
    arguments, run_dir = _stub(shell, "interrupted", environment={"STUB_GATE": str(gate)})
    started = shell.start(*arguments, "nodes=1")
    wait_for(lambda: _running(slurm, run_dir), 60, "a job runs")
    started.send_signal(signal.SIGINT)
    text, _ = started.communicate(timeout=60)
    gate.touch()
    assert started.returncode == 130
    assert "1 job goes on" in text
    assert shell.run(*arguments, "nodes=1").code == 0
    assert len(_jobs_of(slurm, run_dir)) == 1


@pytest.mark.slurm
def test_equal_cells_are_submitted_as_one_array_and_cancel_ends_only_one_task(
    slurm: SlurmUnderTest, shell: Shell
) -> None:
    gate = shell.folder / "gate"
    arguments, run_dir = _stub(shell, "array", environment={"STUB_GATE": str(gate)})
    arguments = [word for word in arguments if not word.startswith("seq_len")] + ["order=grid"]
    left = shell.run(*arguments, "nodes=1", "seq_len=[32,64,96]", "watch=false", "policy.canary=false")
    assert left.code == 3, left.err
    (submitted,) = events(run_dir, "submitted")
    assert len(submitted["jobs"]) == 3  # type: ignore[arg-type]  # a list of ids
    status = shell.status(run_dir)
    cell = status["cells"][1]["cell"]  # type: ignore[index]  # JSON
    cancelled = shell.run("cancel", cell, f"run_dir={run_dir}")
    assert cancelled.code == 0, cancelled.err
    alive = ("PENDING", "RUNNING", "COMPLETING")
    wait_for(lambda: slurm.squeue_state(submitted["jobs"][1]) not in alive, 60, "it ends")  # type: ignore[index]  # ids
    gate.touch()
    done = shell.run(*arguments, "nodes=1", "seq_len=[32,64,96]")
    assert done.code == 1, done.err
    assert [row["status"] for row in rows(run_dir)] == ["measured", "cancelled", "measured"]


@pytest.mark.slurm
def test_a_refused_submission_shows_slurms_message(slurm: SlurmUnderTest, shell: Shell) -> None:
    arguments, run_dir = _stub(shell, "refused", slurm={**GRES, "partition": "no_such_partition"})
    done = shell.run(*arguments, "nodes=1")
    assert done.code == 1
    (row,) = rows(run_dir)
    assert row["status"] == "rejected_by_scheduler"
    assert "invalid partition specified: no_such_partition" in row["reason"]


@pytest.mark.slurm
def test_code_that_changes_while_jobs_are_queued_is_an_error_of_the_attempt_not_a_number(
    slurm: SlurmUnderTest, shell: Shell
) -> None:
    arguments, run_dir = _stub(shell, "altered")
    slurm.run("scontrol", "update", "partitionname=debug", "state=down")
    try:
        assert shell.run(*arguments, "nodes=1", "watch=false").code == 3
        (module,) = run_dir.glob("sources/*/trainer/__init__.py")
        module.chmod(0o600)
        module.write_text("altered = True\n")
    finally:
        slurm.run("scontrol", "update", "partitionname=debug", "state=up")
    # The same command would mend the copy before the job starts; here the job reads it first.
    wait_for(lambda: any(run_dir.glob("cells/*/repeat-01/attempt-01/error-node-0.json")), 60, "the launcher refuses")
    done = shell.run(*arguments, "nodes=1")
    assert done.code == 1, done.err
    (row,) = rows(run_dir)
    assert row["status"] == "trainer_error"
    assert "sources" in row["reason"]
    assert row["tokens_per_s"] == ""
