"""Faults of the run directory's file system: full, read-only, deleted while a sweep is in it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commands import wait_for
from tests.disks import fill, remount, small_disk
from tests.integration.conftest import SlurmUnderTest
from tests.integration.fault_run import FaultRun, fault_run

pytestmark = pytest.mark.slurm


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk") as folder:
        yield folder


def _run_on(disk: Path, slurm: SlurmUnderTest, tmp_path: Path, name: str, **changes: object) -> FaultRun:
    from dataclasses import replace

    run = fault_run(
        slurm,
        tmp_path,
        name,
        "nodes=1",
        "seq_len=[32,64]",
        f"run_dir={disk}/run",
        "tables=false",
        "policy.outcomes.STORAGE_ERROR.backoff_s=1",
        "policy.outcomes.LOST.backoff_s=1",
        **changes,
    )  # type: ignore[arg-type]  # keywords
    return replace(run, run_dir=disk / "run")


def test_a_full_disk_stops_the_sweep_with_a_clear_message_and_costs_no_measurement(
    slurm: SlurmUnderTest, tmp_path: Path, disk: Path
) -> None:
    """The disk fills while the canary runs, so its result does not fit. With room again the other cell is measured."""
    run = _run_on(disk, slurm, tmp_path, "full", gated=True)
    started = run.shell.start(*run.arguments)
    run.job_of(32)
    filler = fill(disk)
    run.gate.touch()
    text, _ = started.communicate(timeout=240)
    assert started.returncode == 3, text
    assert "No space left on device" in text
    assert "Traceback" not in text
    full = run.shell.run(*run.arguments)
    assert full.code == 2
    assert "cannot be written" in full.err
    run.wait_left()
    assert not [path for path in run.run_dir.rglob(".*")], "no draft is left"
    filler.unlink()
    # With room again the same command measures all: what found no room is no trainer's fault, nor a node's.
    done = run.shell.run(*run.arguments)
    assert done.code == 0, done.err
    assert sorted(run.outcomes()) == ["STORAGE_ERROR", "SUCCEEDED", "SUCCEEDED"]
    failed = next(event for event in run.events("ended") if event["outcome"] == "STORAGE_ERROR")
    assert "No space left on device" in str(failed["reason"])
    assert failed["evidence"]["blamed"] == []  # type: ignore[index]  # JSON
    run.audit()


def test_a_sweep_stops_on_a_read_only_file_system_and_resumes_once_it_is_writable(
    slurm: SlurmUnderTest, tmp_path: Path, disk: Path
) -> None:
    run = _run_on(disk, slurm, tmp_path, "readonly")
    slurm.run("scontrol", "update", "partitionname=debug", "state=down")
    try:
        started = run.shell.start(*run.arguments, "policy.canary=false")
        wait_for(lambda: len(run.in_queue()) == 2, 60, "both are queued")
        # Only while no file is open there for writing.
        wait_for(lambda: remount(disk, "ro"), 60, "it turns read-only")
    finally:
        slurm.run("scontrol", "update", "partitionname=debug", "state=up")
    text, _ = started.communicate(timeout=240)
    assert started.returncode == 3, text
    assert "Read-only file system" in text
    assert "Traceback" not in text
    refused = run.shell.run(*run.arguments)
    assert refused.code == 2
    assert "cannot be written" in refused.err
    assert run.shell.status(run.run_dir), "status needs no right to write"
    run.wait_left()
    assert remount(disk, "rw")
    done = run.shell.run(*run.arguments)
    assert done.code == 0, done.err
    assert set(run.outcomes()) <= {"STORAGE_ERROR", "LOST", "SUCCEEDED"}, "Slurm gives no word where it has no log"
    assert not [event for event in run.events("ended") if event["evidence"]["blamed"]]  # type: ignore[index]  # JSON
    run.audit(by_sacct=False)


def test_a_run_directory_deleted_under_a_sweep_stops_it_and_nothing_is_submitted_any_more(
    slurm: SlurmUnderTest, tmp_path: Path
) -> None:
    notified = tmp_path / "notified.json"
    run = fault_run(
        slurm, tmp_path, "deleted", "nodes=1", "seq_len=[32,64]", "tables=false", f"notify=[tee,{notified}]", seconds=3
    )
    started = run.shell.start(*run.arguments)
    run.wait_running()
    names = run.names()
    wait_for(lambda: _is_deleted(run.run_dir), 60, "it is deleted, though a job writes in it")
    text, _ = started.communicate(timeout=240)
    assert started.returncode == 2, text
    assert "Traceback" not in text
    assert "is now held by nobody" in json.loads(notified.read_text())["problem"], "the notify command gets the problem"
    assert not run.run_dir.exists() or not any(run.run_dir.glob("submissions/*.json")), "it is not made anew"

    def is_over() -> bool:
        lines = slurm.run("squeue", "-h", "-o", "%j").splitlines()
        return not names & set(lines)

    wait_for(is_over, 60, "its job ends")
    # Files that a job has written there since do not make a run directory.
    shutil.rmtree(run.run_dir, ignore_errors=True)
    run.tally.unlink(missing_ok=True)
    fresh = run.shell.run(*run.arguments)
    assert fresh.code == 0, fresh.err
    run.audit()


def _is_deleted(folder: Path) -> bool:
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()
