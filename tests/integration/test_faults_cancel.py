"""Cancelling on a real Slurm: what runs, what is held back, and what is nobody's business."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sweep.core.records.layout import LEDGER_FILE
from tests.commands import wait_for
from tests.integration.conftest import SlurmUnderTest
from tests.integration.fault_run import FaultRun, fault_run

pytestmark = pytest.mark.slurm


def _cancel_all(run: FaultRun) -> tuple[int, int]:
    """How many attempts and how many other repeats the command says it cancelled."""
    done = run.shell.run("cancel", "--all", "--json", f"run_dir={run.run_dir}")
    assert done.code == 0, done.err
    cancelled = json.loads(done.out)
    return len(cancelled["attempts"]), len(cancelled["held_back"])


def test_cancel_all_holds_back_waiting_cells_whether_or_not_a_process_watches(
    slurm: SlurmUnderTest, tmp_path: Path
) -> None:
    run = fault_run(
        slurm, tmp_path, "held", "nodes=1", "seq_len=[32,64,96]", "policy.canary=false", "policy.max_concurrent_jobs=1",
        mode="slow",
    )  # fmt: skip
    first = run.shell.start(*run.arguments)
    run.wait_running()
    first.kill()
    first.wait()
    assert _cancel_all(run) == (1, 2), "nobody watches"
    done = run.shell.run(*run.arguments)
    assert done.code == 1, done.err
    assert {length: row["status"] for length, row in run.by_length().items()} == dict.fromkeys(
        ("32", "64", "96"), "cancelled"
    )
    assert run.by_length()["96"]["reason"] == "cancelled by the user before it was submitted"
    states = [cell["state"] for cell in run.shell.status(run.run_dir)["cells"]]  # type: ignore[attr-defined]  # JSON
    assert states == ["cancelled"] * 3
    again = run.shell.start(*run.arguments, "retry=[CANCELLED]")
    run.wait_running()
    assert _cancel_all(run) == (1, 2), "by the process that watches"
    text, _ = again.communicate(timeout=120)
    assert again.returncode == 1, text
    assert _cancel_all(run) == (0, 0)
    assert run.outcomes() == ["CANCELLED"] * 2
    run.reshaped("held", mode="ok")
    assert run.shell.run(*run.arguments, "retry=[CANCELLED]").code == 0
    run.audit()


@contextmanager
def operator(slurm: SlurmUnderTest) -> Iterator[Callable[..., str]]:
    """Runs commands as another user, who may end anybody's jobs."""
    folder = Path(tempfile.mkdtemp())
    try:
        folder.chmod(0o755)
        conf = shutil.copy(slurm.env["SLURM_CONF"], folder)
        Path(conf).chmod(0o644)
        slurm.run("sacctmgr", "-i", "add", "user", "nobody", "account=sweep", "adminlevel=Operator")
        ask = ("scontrol", "show", "assoc_mgr", "users=nobody", "flags=users")
        wait_for(lambda: "AdminLevel=Operator" in slurm.run(*ask), 60, "the controller knows the other user")
        yield lambda *argv: slurm.run("runuser", "-u", "nobody", "--", "env", f"SLURM_CONF={conf}", *argv)
    finally:
        shutil.rmtree(folder)
        slurm.run("scancel", "--user=nobody")
        wait_for(lambda: not slurm.run("squeue", "-h", "--user=nobody"), 30, "the other user has no jobs")
        slurm.run("sacctmgr", "-i", "delete", "user", "nobody")


def test_the_reason_says_who_cancelled_a_job(slurm: SlurmUnderTest, tmp_path: Path) -> None:
    """32 is ended by the user's own scancel, 64 by an operator's, 96 by this tool; who it was, only accounting says."""
    run = fault_run(
        slurm, tmp_path, "who", "nodes=1", "seq_len=[32,64,96]", "policy.canary=false", mode="slow",
        result_grace_s=20.0,
    )  # fmt: skip
    watched = run.shell.start(*run.arguments)
    run.wait_running(3)
    with operator(slurm) as as_nobody:
        slurm.run("scancel", run.job_of(32))
        as_nobody("scancel", run.job_of(64))
        (cell,) = [
            cell["cell"]
            for cell in run.shell.status(run.run_dir)["cells"]  # type: ignore[attr-defined]  # JSON
            if cell["axes"]["seq_len"] == 96
        ]
        assert run.shell.run("cancel", cell, f"run_dir={run.run_dir}").code == 0
        text, _ = watched.communicate(timeout=120)
    assert watched.returncode == 1, text
    table = run.by_length()
    assert {row["status"] for row in table.values()} == {"cancelled"}
    reasons = {length: row["reason"].partition(" on ")[0] for length, row in table.items()}
    assert reasons == {
        "32": "CANCELLED: cancelled by you outside of this tool (scancel)",
        "64": "CANCELLED: cancelled by nobody (an administrator)",
        "96": "CANCELLED: cancelled by the user",
    }
    assert {str(event["evidence"]["ended_by"])[:3] for event in run.events("ended")} >= {"you", "nob"}  # type: ignore[index]  # JSON
    run.audit()


def test_a_job_that_had_failed_before_the_cancel_is_shown_as_it_failed(slurm: SlurmUnderTest, tmp_path: Path) -> None:
    run = fault_run(
        slurm, tmp_path, "failed", "nodes=1", "seq_len=[32,64]", "policy.canary=false", mode="slow",
        plan={"32": "error"},
    )  # fmt: skip
    assert run.shell.run(*run.arguments, "watch=false").code == 3
    wait_for(lambda: run.in_queue() == ["RUNNING"], 60, "one has failed, and the other runs")
    assert _cancel_all(run) == (1, 0)
    done = run.shell.run(*run.arguments)
    assert done.code == 1, done.err
    assert {length: row["status"] for length, row in run.by_length().items()} == {
        "32": "trainer_error",
        "64": "cancelled",
    }
    run.audit()


def test_a_foreign_job_that_got_the_id_of_an_attempts_job_is_not_cancelled(
    slurm: SlurmUnderTest, tmp_path: Path
) -> None:
    """A controller that lost its state gives the numbers anew: one to this user, one to another."""
    run = fault_run(
        slurm, tmp_path, "anew", "nodes=1", "seq_len=[32,64]", "policy.canary=false", "tables=false", seconds=60,
        lost_after_s=2,
    )  # fmt: skip
    assert run.shell.run(*run.arguments, "watch=false").code == 3
    mine = run.jobs()
    with operator(slurm) as as_nobody:
        others = [slurm.sbatch("sleep 300", "--job-name=another-sweep")]
        others += [as_nobody("sbatch", "--parsable", "--output=/dev/null", "--chdir=/", "--hold", "--wrap=true")]
        try:
            slurm.run("scancel", *mine)
            ledger = run.run_dir / LEDGER_FILE
            text = ledger.read_text()
            for job, other in zip(mine, others, strict=True):
                text = text.replace(f'"{job}"', f'"{other}"')
            ledger.write_text(text)
            asked = run.shell.run("cancel", "--all", f"run_dir={run.run_dir}")
            assert asked.code == 0, asked.err
            assert f"{others[0]} is now the id of another job, another-sweep: it is left alone" in asked.err
            assert f"{others[1]} is now the id of another job, wrap of nobody: it is left alone" in asked.err
            done = run.shell.run(*run.arguments)
            assert done.code == 1, done.err
            assert run.outcomes() == ["CANCELLED"] * 2
            assert {slurm.squeue_state(job) for job in others} <= {"RUNNING", "PENDING"}
        finally:
            slurm.run("scancel", *others)


def test_a_job_whose_name_is_changed_stays_watched_is_measured_once_and_can_be_cancelled(
    slurm: SlurmUnderTest, tmp_path: Path
) -> None:
    """As ``scontrol update`` does it, or a site's job_submit plugin to every job."""
    run = fault_run(
        slurm, tmp_path, "renamed", "nodes=1", "seq_len=[32,64]", "policy.canary=false", "tables=false",
        plan={"64": "slow"}, gated=True, lost_after_s=2,
    )  # fmt: skip
    watched = run.shell.start(*run.arguments)
    run.wait_running(2)
    mine, other = run.job_of(32), run.job_of(64)
    for job in (mine, other):
        slurm.run("scontrol", "update", f"jobid={job}", "jobname=mine")
    run.gate.touch()
    wait_for(lambda: run.outcomes() == ["SUCCEEDED"], 60, "the one is measured")
    assert slurm.squeue_state(other) == "RUNNING"
    assert run.shell.run("cancel", "--all", f"run_dir={run.run_dir}").code == 0
    text, _ = watched.communicate(timeout=120)
    assert watched.returncode == 1, text
    assert run.outcomes() == ["SUCCEEDED", "CANCELLED"]
    assert slurm.squeue_state(other) != "RUNNING"
    run.audit(by_sacct=False)


def test_the_first_retry_covers_what_failed_or_was_cancelled_while_nobody_watched(
    slurm: SlurmUnderTest, tmp_path: Path
) -> None:
    run = fault_run(
        slurm, tmp_path, "unseen", "nodes=1", "seq_len=[32,64]", "policy.canary=false", mode="slow",
        plan={"32": "error"},
    )  # fmt: skip
    assert run.shell.run(*run.arguments, "watch=false").code == 3
    wait_for(lambda: run.in_queue() == ["RUNNING"], 60, "one has failed and one runs")
    run.job_of(64)
    assert run.shell.run("cancel", "--where", "seq_len > 32", f"run_dir={run.run_dir}").code == 0
    run.reshaped("unseen")
    asked = run.shell.run(*run.arguments, "retry=[TRAINER_ERROR,CANCELLED]")
    assert asked.code == 0, asked.err
    assert sorted(run.outcomes()) == ["CANCELLED", "SUCCEEDED", "SUCCEEDED", "TRAINER_ERROR"]
    run.audit()
