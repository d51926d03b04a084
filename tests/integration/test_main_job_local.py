"""The main job on the local cluster, as a user runs it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.commands import Shell, events, processes_of, rows, stub_cluster, wait_for
from tests.disks import fill, remount, small_disk

TINY = ["model=debug_1m", "seq_len=64", "trainer.steps=6", "trainer.warmup_steps=2", "trainer.threads_per_rank=1"]


NOW = "policy.outcomes.STORAGE_ERROR.backoff_s=0"


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(folder=tmp_path, config_dir=tmp_path / "conf")


def _stub(shell: Shell, **changes: object) -> tuple[list[str], Path]:
    assert shell.config_dir is not None
    stub_cluster(shell.config_dir, "stub", base="local", **changes)  # type: ignore[arg-type]  # keywords of the file
    return ["+grid=weak_scaling", "cluster=stub", *TINY], shell.folder / "runs" / "weak_scaling-stub"


def _running(
    shell: Shell, *more: str, gate: Path | None = None, **changes: object
) -> tuple[subprocess.Popen[str], list[str], Path]:
    """A sweep with a running cell, which runs for some time or until the gate file exists."""
    environment = {} if gate is None else {"STUB_GATE": str(gate)}
    arguments, run_dir = _stub(shell, environment=environment, **changes)
    started = shell.start(*arguments, *more)
    wait_for(lambda: bool(_launched(run_dir)), 60, "a cell runs")
    return started, arguments, run_dir


def _launched(run_dir: Path) -> set[str]:
    """Cells with an attempt that has begun."""
    return {path.parents[2].name for path in run_dir.glob("cells/*/repeat-01/attempt-*/attempt.json")}


@pytest.mark.torchrun
def test_the_main_job_trains_for_real_and_ends_in_a_table_and_a_figure(tmp_path: Path) -> None:
    shell = Shell(folder=tmp_path)
    arguments = ["+grid=weak_scaling", "cluster=local", "nodes=[1,2]", *TINY]
    done = shell.run(*arguments)
    assert done.code == 0, done.err
    run_dir = tmp_path / "runs" / "weak_scaling-local"
    table = rows(run_dir)
    assert [(row["nodes"], row["gpus"], row["status"], row["global_batch"]) for row in table] == [
        ("1", "1", "measured", "2"),
        ("2", "2", "measured", "4"),
    ]
    for row in table:
        assert float(row["tokens_per_s"]) > 0
        assert row["mfu"] == "", "a CPU has no published peak"
        assert row["fingerprint"]
        assert (run_dir / row["attempt"] / "result.json").exists()
    for name in ("tables/weak_scaling.md", "figures/weak_scaling.png", "figures/weak_scaling.pdf"):
        assert (run_dir / name).stat().st_size > 500
        assert name in done.out
    ledger = (run_dir / "ledger.jsonl").read_text()
    again = shell.run(*arguments)
    assert again.code == 0
    assert (run_dir / "ledger.jsonl").read_text() == ledger, "a finished repeat is not repeated"
    assert processes_of(run_dir) == []


def test_set_up_lines_run_on_this_machine_too_and_one_that_fails_is_named(shell: Shell) -> None:
    arguments, run_dir = _stub(shell, slurm={"setup": ["STUB_SEEN=yes", "[ $STUB_SEEN = yes ]", "nosuch_command"]})
    done = shell.run(*arguments, "nodes=1", "tables=false")
    assert done.code == 1, done.err
    (ended,) = events(run_dir, "ended")
    assert ended["outcome"] == "TRAINER_ERROR"
    assert "the set-up line `nosuch_command` ended with exit code 127: " in str(ended["reason"])
    assert "nosuch_command: command not found" in str(ended["reason"])
    _stub(shell, slurm={"setup": ["STUB_SEEN=yes", "[ $STUB_SEEN = yes ]"]})
    again = shell.run(*arguments, "nodes=1", "tables=false", "retry=[TRAINER_ERROR]")
    assert again.code == 0, again.err


def test_cells_run_in_the_order_of_the_plan_and_a_renamed_run_goes_on_in_it(shell: Shell) -> None:
    arguments, run_dir = _stub(shell, max_concurrent_cells=1)
    command = [*(word for word in arguments if not word.startswith("seq_len=")), "nodes=1", "repeats=2", "tables=false"]
    plan = json.loads(shell.run("plan", *command, "seq_len=[64,128,256]", "--json").out)
    assert shell.run(*command, "seq_len=[64,256]").code == 0
    early = set(_in_order(run_dir))
    renamed = run_dir.rename(shell.folder / "renamed")
    assert shell.run(*command, "seq_len=[64,128,256]", f"run_dir={renamed}").code == 0
    planned = [(cell["cell"], cell["repeat"]) for cell in plan["cells"]]
    assert (len(early), len(planned)) == (4, 6)
    assert _in_order(renamed) == sorted(planned, key=lambda place: place not in early)
    assert json.loads((renamed / "sweep.json").read_text())["order_seed"] == plan["totals"]["order_seed"]


def _in_order(run_dir: Path) -> list[tuple[str, int]]:
    """Cell and repeat of all attempts, as they began."""
    found = [json.loads(path.read_text()) for path in run_dir.glob("cells/*/*/*/attempt.json")]
    found.sort(key=lambda launched: launched["started_at"])
    return [(launched["cell_id"], launched["repeat"]) for launched in found]


@pytest.mark.parametrize("is_stopped", [False, True], ids=["left-alone", "stopped-by-SIGTERM"])
def test_a_full_disk_ends_a_local_sweep_with_a_sentence_and_the_same_command_resumes_it(
    shell: Shell, tmp_path: Path, is_stopped: bool
) -> None:
    """The disk fills while the first cell runs; what it had used by then is what is charged later."""
    gate = tmp_path / "gate"
    with small_disk(tmp_path / "disk") as disk:
        run_dir, more = disk / "run", ("seq_len=[32,64]", "nodes=1", "tables=false", f"run_dir={disk}/run", NOW)
        arguments, _ = _stub(shell, environment={"STUB_GATE": str(gate)})
        began = time.monotonic()
        started = shell.start(*arguments, *more)
        wait_for(lambda: bool(_launched(run_dir)), 60, "a cell runs")
        filler = fill(disk)
        if is_stopped:
            started.send_signal(signal.SIGTERM)
        else:
            gate.touch()
        text, _ = started.communicate(timeout=60)
        ran_s = time.monotonic() - began
        assert "Traceback" not in text
        assert started.returncode == (130 if is_stopped else 3), text
        assert "no process is left" in text
        assert is_stopped or "cannot be used any more: [Errno 28] No space left on device" in text
        assert processes_of(run_dir) == []
        refused = shell.run(*arguments, *more)
        assert (refused.code, "cannot be written" in refused.err) == (2, True), refused.err
        assert remount(disk, "ro")
        cancelled = shell.run("cancel", f"run_dir={run_dir}", "--all")
        assert (cancelled.code, "Read-only file system" in cancelled.err) == (2, True), cancelled.err
        assert "Traceback" not in cancelled.err
        assert remount(disk, "rw")
        assert not [path for path in run_dir.rglob(".*")], "no draft is left"
        filler.unlink()
        gate.touch()
        done = shell.run(*arguments, *more)
        assert done.code == 0, done.err
        ended = events(run_dir, "ended")
        assert [event["outcome"] for event in ended].count("SUCCEEDED") == 2
        used = sum(
            float(str(event["gpu_seconds"])) for event in ended if event["outcome"] in ("STORAGE_ERROR", "PREEMPTED")
        )
        assert used < ran_s, "time that was not run is not charged"
        assert is_stopped or "STORAGE_ERROR" in [event["outcome"] for event in ended]
        assert not [event for event in ended if event["evidence"]["blamed"]]  # type: ignore[index]  # JSON


@pytest.mark.slow
def test_ctrl_c_leaves_no_process_says_so_and_the_same_command_finishes(shell: Shell) -> None:
    started, arguments, run_dir = _running(shell, seconds=600)
    started.send_signal(signal.SIGINT)
    text, _ = started.communicate(timeout=60)
    assert started.returncode == 130, text
    assert "no process is left" in text
    assert processes_of(run_dir) == []
    outcomes = {event["outcome"] for event in events(run_dir, "ended")}
    assert outcomes == {"PREEMPTED"}
    _stub(shell, seconds=0)
    done = shell.run(*arguments)
    assert done.code == 0, done.err
    assert [row["status"] for row in rows(run_dir)] == ["measured"] * 3


@pytest.mark.slow
def test_after_a_kill_the_next_orchestrator_adopts_the_running_cell(shell: Shell) -> None:
    gate = shell.folder / "gate"
    started, arguments, run_dir = _running(shell, gate=gate)
    started.kill()
    started.wait()
    assert processes_of(run_dir), "its cell goes on"
    gate.touch()
    done = shell.run(*arguments)
    assert done.code == 0, done.err
    assert [row["status"] for row in rows(run_dir)] == ["measured"] * 3
    attempts = sorted(str(path.name) for path in run_dir.glob("cells/*/repeat-01/attempt-*"))
    assert attempts == ["attempt-01"] * 3, "nothing ran twice"
    assert processes_of(run_dir) == []


@pytest.mark.slow
def test_the_second_of_two_orchestrators_says_who_holds_the_run_and_stops(shell: Shell) -> None:
    gate = shell.folder / "gate"
    first, arguments, run_dir = _running(shell, gate=gate)
    second = shell.run(*arguments)
    assert second.code == 2
    assert f"held by process {first.pid} on" in second.err
    gate.touch()
    first.communicate(timeout=240)
    assert first.returncode == 0
    assert len(events(run_dir, "reserved")) == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "outcome", "reason"),
    [
        ("error", "TRAINER_ERROR", "rank 0 in step 3: ValueError: as asked"),
        ("no_result", "TRAINER_ERROR", "(exit code 0) without a result"),
        ("truncated", "TRAINER_ERROR", "not whole JSON"),
    ],
)
def test_a_trainer_that_fails_is_explained_in_the_table_and_the_exit_code(
    shell: Shell, mode: str, outcome: str, reason: str
) -> None:
    arguments, run_dir = _stub(shell, mode=mode)
    done = shell.run(*arguments, "nodes=1")
    assert done.code == 1, done.err
    (row,) = rows(run_dir)
    assert row["status"] == outcome.lower()
    assert reason in row["reason"]
    assert row["tokens_per_s"] == ""
    assert len(events(run_dir, "reserved")) == 1, "it would fail again"


@pytest.mark.slow
def test_a_trainer_that_hangs_after_its_result_is_ended_and_its_result_counts(shell: Shell) -> None:
    arguments, run_dir = _stub(shell, mode="hang_after_result")
    done = shell.run(*arguments, "nodes=1")
    assert done.code == 0, done.err
    assert rows(run_dir)[0]["status"] == "measured"
    assert processes_of(run_dir) == []


@pytest.mark.slow
def test_cancel_reaches_the_process_that_watches_and_the_cell_stays_held_until_asked_for(shell: Shell) -> None:
    gate = shell.folder / "gate"
    started, arguments, run_dir = _running(shell, gate=gate)
    (cell,) = _launched(run_dir)
    asked = shell.run("cancel", cell, f"run_dir={run_dir}")
    assert asked.code == 0, asked.err
    wait_for(lambda: bool(events(run_dir, "ended")), 60, "it is ended")
    gate.touch()
    text, _ = started.communicate(timeout=240)
    assert started.returncode == 1, text
    by_cell = {row["cell"]: row["status"] for row in rows(run_dir)}
    assert by_cell.pop(cell) == "cancelled"
    assert set(by_cell.values()) == {"measured"}
    _stub(shell, seconds=0)
    assert shell.run(*arguments).code == 1, "held until it is asked for"
    assert shell.run(*arguments, "retry=[CANCELLED]").code == 0
    assert {row["status"] for row in rows(run_dir)} == {"measured"}


@pytest.mark.slow
def test_a_cancel_in_a_run_that_nobody_watches_leaves_the_other_cells_waiting(shell: Shell) -> None:
    more = ("nodes=[1,2]", "policy.canary=false")
    started, _, run_dir = _running(shell, *more, mode="slow", max_concurrent_cells=1)
    (cell,) = _launched(run_dir)
    started.kill()
    started.wait()
    asked = shell.run("cancel", cell, f"run_dir={run_dir}")
    assert asked.code == 0, asked.err
    assert processes_of(run_dir) == []
    states = [json.loads(path.read_text())["state"] for path in run_dir.glob("local/*.json")]
    assert sorted(states) == ["CANCELLED", "PENDING"]


@pytest.mark.slow
def test_more_points_of_the_same_grid_extend_a_run_and_another_grid_is_refused(shell: Shell) -> None:
    arguments, run_dir = _stub(shell)
    assert shell.run(*arguments, "nodes=[1,2]").code == 0
    assert shell.run(*arguments, "nodes=[2,4]").code == 0
    assert [row["nodes"] for row in rows(run_dir)] == ["1", "2", "4"]
    assert len(events(run_dir, "reserved")) == 3
    other = shell.run("+grid=context_length", "cluster=stub", f"run_dir={run_dir}")
    assert other.code == 2
    assert "weak_scaling" in other.err
    assert len(events(run_dir, "reserved")) == 3


@pytest.mark.slow
def test_logs_and_status_find_a_finished_run_by_themselves(shell: Shell) -> None:
    arguments, run_dir = _stub(shell)
    assert shell.run(*arguments, "nodes=[1,2]").code == 0
    status = json.loads(shell.run("status", "--json").out)
    assert status["totals"]["done"] == 2
    two_nodes = next(cell for cell in status["cells"] if cell["gpus"] == 2)
    logs = shell.run("logs", two_nodes["cell"][:8])
    assert logs.code == 0, logs.err
    assert {line.split(" | ")[0] for line in logs.out.splitlines()} == {"node-0", "node-1"}
    assert "stub trainer" in logs.out
    assert run_dir.name in shell.run("status").out


@pytest.mark.slow
def test_the_analysis_needs_nothing_but_the_run_directory(shell: Shell, tmp_path: Path) -> None:
    arguments, run_dir = _stub(shell)
    assert shell.run(*arguments, "nodes=[1,2]", "tables=false").code == 0
    assert not (run_dir / "tables" / "weak_scaling.csv").exists()
    out = tmp_path / "elsewhere"
    command = [sys.executable, "-m", "analysis", str(run_dir), "--out", str(out)]
    subprocess.run(command, check=True, capture_output=True, cwd=tmp_path)
    assert [row["status"] for row in rows(out)] == ["measured", "measured"]


@pytest.mark.slow
def test_a_failed_cell_shows_its_evidence_and_the_notify_command_runs(shell: Shell) -> None:
    arguments, run_dir = _stub(shell, mode="error")
    notified = shell.folder / "notified.json"
    done = shell.run(*arguments, "nodes=1", f"notify=[tee,{notified}]")
    assert done.code == 1, done.err
    news = json.loads(notified.read_text())
    assert (news["event"], news["exit_code"]) == ("ended", 1)
    assert "ValueError: as asked" in news["holes"][0]["reason"]
    cell = news["holes"][0]["cell"]
    shown = shell.run("status", cell[:8], f"run_dir={run_dir}")
    assert shown.code == 0, shown.err
    assert "rank 0 on node 0 in step 3: exception: ValueError: as asked" in shown.out
    as_json = json.loads(shell.run("status", cell, "--json", f"run_dir={run_dir}").out)
    (attempt,) = as_json["cells"][0]["attempts"]
    assert attempt["outcome"] == "TRAINER_ERROR"
    assert attempt["evidence"]["errors"][0]["error_class"] == "exception"


@pytest.mark.slow
def test_cells_can_be_cancelled_by_a_condition_and_a_budget_leaves_explained_holes(shell: Shell) -> None:
    gate = shell.folder / "gate"
    started, arguments, run_dir = _running(shell, gate=gate)
    asked = shell.run("cancel", "--where", "gpus > 1", f"run_dir={run_dir}")
    assert asked.code == 0, asked.err
    wait_for(lambda: bool(events(run_dir, "cancel_requested")), 60, "the process that watches has heard it")
    gate.touch()
    started.communicate(timeout=240)
    assert [row["status"] for row in rows(run_dir)] == ["measured", "cancelled", "cancelled"]
    # Five minutes of walltime: 2 and 4 GPUs cost up to 0.17 and 0.33 GPU-hours.
    done = shell.run(*arguments, "retry=[CANCELLED]", "budget.gpu_hours=0.2")
    assert done.code == 1, done.err
    statuses = [row["status"] for row in rows(run_dir)]
    assert statuses[:2] == ["measured", "measured"]
    assert "budget: up to 0.33 GPU-hours" in done.err
