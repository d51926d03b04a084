"""Cancelling on a real Slurm: what runs, what is held back, and what is nobody's business."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.conftest import SlurmUnderTest
from tests.integration.fault_run import FaultRun, fault_run

pytestmark = pytest.mark.slurm


def _cancel_all(run: FaultRun) -> tuple[int, int]:
    """How many attempts and how many other repeats the command says it cancelled."""
    done = run.shell.run("cancel", "--all", "--json", f"run_dir={run.run_dir}")
    assert done.code == 0, done.err
    said = json.loads(done.out)
    return len(said["attempts"]), len(said["held_back"])


def test_a_cancel_of_everything_holds_back_what_waits_for_its_turn_whether_anybody_watches_or_not(
    slurm: SlurmUnderTest, tmp_path: Path
) -> None:
    run = fault_run(
        slurm, tmp_path, "held", "nodes=1", "seq_len=[32,64,96]", "policy.canary=false", "policy.max_concurrent_jobs=1",
        mode="slow",
    )  # fmt: skip
    first = run.shell.start(*run.words)
    run.wait_running()
    first.kill()
    first.wait()
    assert _cancel_all(run) == (1, 2), "nobody watches"
    done = run.shell.run(*run.words)
    assert done.code == 1, done.err
    assert {length: row["status"] for length, row in run.by_length().items()} == dict.fromkeys(
        ("32", "64", "96"), "cancelled"
    )
    assert run.by_length()["96"]["reason"] == "cancelled by the user before it was submitted"
    states = [cell["state"] for cell in run.shell.status(run.run_dir)["cells"]]  # type: ignore[attr-defined]  # JSON
    assert states == ["cancelled"] * 3
    again = run.shell.start(*run.words, "retry=[CANCELLED]")
    run.wait_running()
    assert _cancel_all(run) == (1, 2), "by the process that watches"
    text, _ = again.communicate(timeout=60)
    assert again.returncode == 1, text
    assert _cancel_all(run) == (0, 0)
    assert run.outcomes() == ["CANCELLED"] * 2
    run.reshaped("held", mode="ok")
    assert run.shell.run(*run.words, "retry=[CANCELLED]").code == 0
    run.audit()
