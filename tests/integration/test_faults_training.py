"""Faults of real training on a real Slurm: a hang in a collective; sources that change while a job is queued."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from sweep.adapters.files.sources_snapshot import packages_root
from tests.integration.conftest import SlurmUnderTest
from tests.integration.fault_run import fault_run
from tests.trainer.processes import SABOTAGE

pytestmark = pytest.mark.slurm


@pytest.mark.torchrun
def test_a_rank_that_leaves_its_peer_alone_in_a_collective_is_a_communication_failure_and_is_retried(
    slurm: SlurmUnderTest, tmp_path: Path
) -> None:
    """Two nodes, torchrun and gloo. In the first attempt rank 1 hangs in step 3, and rank 0 waits for it in vain."""
    run = fault_run(
        slurm, tmp_path, "deserted", "nodes=2", "seq_len=64", "trainer.comm_timeout_s=20", "tables=false",
        "policy.outcomes.COMM_FAILURE.backoff_s=1", "budget.gpu_hours=2",
        launch={
            "runner": "torchrun", "entry": [str(SABOTAGE), "hang@1", "1", "3"], "rendezvous_host": "127.0.0.1",
            "join_timeout_s": 120, "stop_grace_s": 5.0,
        },
    )  # fmt: skip
    done = run.shell.run(*run.arguments, timeout_s=600)
    assert done.code == 0, done.err
    assert run.outcomes() == ["COMM_FAILURE", "SUCCEEDED"]
    (first, _) = sorted(run.run_dir.glob("cells/*/repeat-01/attempt-*"))
    error = json.loads((first / "error-rank-0.json").read_text())
    assert (error["error_class"], error["step"]) == ("communication", 3)
    assert (first / "flight-rank-0").exists()
    run.wait_left()


def test_a_checkout_edited_while_a_job_is_queued_does_not_change_the_job(slurm: SlurmUnderTest, tmp_path: Path) -> None:
    checkout, module = tmp_path / "checkout", "sweep/core/records/layout.py"
    for name in ("sweep", "trainer", "analysis", "conf"):
        shutil.copytree(packages_root() / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
    path = os.pathsep.join([str(checkout), os.environ.get("PYTHONPATH", "")])
    run = fault_run(slurm, tmp_path, "edited", "nodes=1", "seq_len=64", "policy.canary=false")
    run = run.with_env(PYTHONPATH=path, PYTHONSAFEPATH="1")
    slurm.run("scontrol", "update", "partitionname=debug", "state=down")
    try:
        assert run.shell.run(*run.arguments, "watch=false").code == 3
        # A job that ran this code would leave no record at all.
        (checkout / module).write_text("raise SystemExit('edited')\n")
    finally:
        slurm.run("scontrol", "update", "partitionname=debug", "state=up")
    assert "edited" in run.shell.run("status", f"run_dir={run.run_dir}").err, "the checkout is what the command runs"
    run.wait_left()
    shutil.copy(packages_root() / module, checkout / module)
    (checkout / "trainer" / "__init__.py").write_text('"""Another trainer."""\n')
    done = run.shell.run(*run.arguments)
    assert done.code == 0, done.err
    assert run.by_length()["64"]["status"] == "measured"
    assert len(run.jobs()) == 1
    submitted = {json.loads(file.read_text())["sources_hash"] for file in run.run_dir.glob("cells/*/*/*/cell.json")}
    assert len(submitted) == 1
    assert len(list(run.run_dir.glob("sources/*"))) == 2, "a later job would run the new sources"
    run.audit()
