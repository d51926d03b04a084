"""Every point without a measurement has one status and a reason, whatever happened to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sweep.core.attempts.attempt import ErrorClass, Outcome, RankError
from sweep.core.attempts.ledger import Released, Skipped
from sweep.core.attempts.outcome_rules import OUTCOME_RULES
from sweep.core.decisions.admission import HOLES
from sweep.core.grids.grid import Rejection
from tests.analysis.factory import STARTED, RunDir, row_of, submission_name, table_of

if TYPE_CHECKING:
    from pathlib import Path

    from analysis.rows import Row


def only_row(run: RunDir) -> Row:
    return row_of(table_of(run), nodes=1)


@pytest.mark.parametrize("outcome", Outcome)
def test_every_outcome_is_shown_as_its_rule_says(tmp_path: Path, outcome: Outcome) -> None:
    run = RunDir(tmp_path)
    run.end(run.key(nodes=1), outcome, reason="for a cause")
    row = only_row(run)
    if outcome is Outcome.SUCCEEDED:  # but no result of it is there
        assert row["status"] == "lost"
        assert "the ledger says SUCCEEDED" in str(row["reason"])
    else:
        assert row["status"] == OUTCOME_RULES[outcome].shown_as
        assert "for a cause" in str(row["reason"])
    assert row["step_time_s"] is None
    assert row["repeats"] == 0
    assert row["attempt"] == f"cells/{run.cell_id(nodes=1)}/repeat-01/attempt-01"
    assert row["gpu_hours"] == 1.0


def test_a_cell_that_was_never_tried_is_not_run_and_cost_nothing(tmp_path: Path) -> None:
    row = only_row(RunDir(tmp_path))
    assert (row["status"], row["reason"], row["gpu_hours"], row["attempt"]) == ("not_run", "not run yet", 0.0, None)


def test_a_released_reservation_counts_as_no_attempt(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    key = run.key(nodes=1)
    run.submit(key, job=None)
    run.events.append(Released(time=STARTED, submission=submission_name(key), reason="never reached the scheduler"))
    run.save()
    row = only_row(run)
    assert (row["status"], row["gpu_hours"], row["attempt"]) == ("not_run", 0.0, None)


@pytest.mark.parametrize("kind", HOLES)
def test_a_repeat_that_a_run_ended_without_trying_says_why_until_it_is_tried(tmp_path: Path, kind: str) -> None:
    run = RunDir(tmp_path)
    key = run.key(nodes=1)
    run.events.append(Skipped(time=STARTED, repeats=((key.cell_id, 1),), kind=kind, reason="for a cause"))
    run.save()
    row = only_row(run)
    assert (row["status"], row["reason"], row["gpu_hours"]) == (kind, "for a cause", 0.0)
    run.end(key, Outcome.OOM_DEVICE)
    assert only_row(run)["status"] == "oom_device"


def test_a_retry_that_a_run_ended_without_trying_says_why(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    key = run.key(nodes=1)
    run.end(key, Outcome.PREEMPTED)
    reason = "after PREEMPTED, budget: too little is left"
    run.events.append(Skipped(time=STARTED, repeats=((key.cell_id, 1),), kind="over_budget", reason=reason))
    run.save()
    row = only_row(run)
    assert (row["status"], row["reason"]) == ("over_budget", reason)


def test_an_attempt_in_flight_is_pending_until_its_launcher_writes(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    key = run.key(nodes=1)
    run.submit(key)
    row = only_row(run)
    assert (row["status"], row["reason"], row["gpu_hours"]) == ("pending", "in flight as job 17", None)
    run.launch(key)
    assert only_row(run)["status"] == "running"
    run.progress(key, step=7, steps=60)
    assert only_row(run)["reason"] == "in flight as job 17, at step 7 of 60"


def test_an_error_file_of_an_attempt_in_flight_is_shown(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    key = run.key(nodes=1)
    run.submit(key)
    run.error(key, rank_error_of(ErrorClass.OOM_DEVICE, "out of memory"))
    assert "an error was reported: out of memory" in str(only_row(run)["reason"])


def test_a_reserved_attempt_that_the_scheduler_does_not_know_yet_is_pending(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.submit(run.key(nodes=1), job=None)
    assert only_row(run)["status"] == "pending"


def rank_error_of(error_class: ErrorClass, message: str, *, rank: int = 0, time: float = STARTED) -> RankError:
    return RankError(rank=rank, node_rank=0, time=time, error_class=error_class, message=message)


def test_without_a_ledger_the_error_files_say_how_an_attempt_ended(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    key = run.key(nodes=1)
    run.launch(key, ended_at=STARTED + 1800, exit_code=1)
    run.error(key, rank_error_of(ErrorClass.COMMUNICATION, "peer lost", time=STARTED))
    run.error(key, rank_error_of(ErrorClass.OOM_DEVICE, "CUDA out of memory", rank=3, time=STARTED + 1))
    (tmp_path / "ledger.jsonl").unlink()
    table = table_of(run)
    row = row_of(table, nodes=1)
    assert row["status"] == "oom_device"
    assert "rank 3: CUDA out of memory" in str(row["reason"])
    assert row["gpu_hours"] == pytest.approx(0.5)
    assert any("there is no ledger.jsonl" in note for note in table.notes)


def test_without_a_ledger_an_exit_code_alone_is_a_failure_of_the_trainer(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.launch(run.key(nodes=1), ended_at=STARTED + 60, exit_code=0)
    (tmp_path / "ledger.jsonl").unlink()
    row = only_row(run)
    assert row["status"] == "trainer_error"
    assert "exit code 0" in str(row["reason"])


def test_without_a_ledger_a_launcher_without_an_end_is_running_and_an_empty_folder_pending(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.launch(run.key(nodes=1))
    run.folder(run.key(nodes=2))
    (tmp_path / "ledger.jsonl").unlink()
    table = table_of(run)
    assert [row["status"] for row in table.rows] == ["running", "pending", "not_run"]
    assert row_of(table, nodes=1)["gpu_hours"] is None


def test_a_ledger_that_cannot_be_read_is_noted(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    (tmp_path / "ledger.jsonl").unlink()
    (tmp_path / "ledger.jsonl").mkdir()
    assert any("ledger.jsonl cannot be read" in note for note in table_of(run).notes)


def test_an_attempt_whose_ledger_line_is_lost_takes_its_place_in_order(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.launch(run.key(nodes=1), ended_at=STARTED + 3600, exit_code=1)
    run.end(run.key(nodes=1, attempt=2), Outcome.TIMEOUT, reason="TIMEOUT")
    row = only_row(run)
    assert row["status"] == "timeout"
    assert str(row["attempt"]).endswith("attempt-02")
    assert row["gpu_hours"] == pytest.approx(2.0)


def test_the_row_shows_a_running_repeat_before_one_that_ended_and_one_that_never_ran(tmp_path: Path) -> None:
    run = RunDir(tmp_path, repeats=3)
    run.end(run.key(nodes=1), Outcome.OOM_DEVICE, reason="out of memory")
    assert only_row(run)["status"] == "oom_device"
    run.submit(run.key(nodes=1, repeat=2))
    row = only_row(run)
    assert row["status"] == "pending"
    assert row["reason"] == (
        "repeat 1: OOM_DEVICE: out of memory; repeat 2: in flight as job 17; repeat 3: not run yet"
    )
    run.launch(run.key(nodes=1, repeat=2))
    assert only_row(run)["status"] == "running"


def test_the_order_of_the_repeats_does_not_change_which_one_the_row_shows(tmp_path: Path) -> None:
    run = RunDir(tmp_path, repeats=3)
    run.end(run.key(nodes=1, repeat=3), Outcome.TIMEOUT)
    assert only_row(run)["status"] == "timeout"
    run.submit(run.key(nodes=1))
    run.submit(run.key(nodes=1, repeat=2))
    run.launch(run.key(nodes=1, repeat=2))
    assert only_row(run)["status"] == "running"


def test_rejections_are_rows_and_the_grids_own_conditions_are_counted(tmp_path: Path) -> None:
    run = RunDir(
        tmp_path,
        axes={"nodes": (1, 2), "tp": (1, 3), "dp_shard": ("auto",)},
        exclude=("nodes == 2 and tp == 1",),
    )
    table = table_of(run)
    assert table.left_out == 1
    assert len(table.rows) == 3
    row = row_of(table, nodes=1, tp=3)
    assert row["status"] == "rejected"
    assert str(row["reason"]).startswith("auto_degree: dp_shard=auto: 1 GPU cannot be divided by tp=3")
    assert row["cell"] is None
    assert (row["tp"], row["dp_shard"], row["gpus"], row["n_params"]) == (3, None, 1, 115008)
    assert (row["global_batch"], row["sequences_per_gpu"], row["gpu_hours"]) == (2, 2, None)
    assert table.holes == {"not_run": 1, "rejected": 2}


def test_a_rejection_whose_batch_is_not_whole_has_no_global_batch(tmp_path: Path) -> None:
    run = RunDir(tmp_path, axes={"nodes": (1, 2), "sequences_per_gpu": ("1/2", 1), "model": ("tiny",)})
    row = row_of(table_of(run), nodes=1, sequences_per_gpu="1/2")
    assert row["status"] == "rejected"
    assert row["global_batch"] is None
    assert row["sequences_per_gpu"] == 0.5


def test_a_rejection_of_a_model_that_no_cell_has_shows_no_parameters(tmp_path: Path) -> None:
    run = RunDir(tmp_path, axes={"nodes": (1,), "model": ("tiny", "small")})
    rejected = run.sweep.points[1]
    run.change(
        points=run.sweep.points[:1],
        cells={run.sweep.points[0].cell_id: run.sweep.cells[run.sweep.points[0].cell_id]},
        rejections=(Rejection(axes=rejected.axes, rule="heads_by_tp", reason="does not divide"),),
    )
    assert row_of(table_of(run), model="small")["n_params"] is None


def test_gpu_hours_count_every_attempt_and_are_blank_where_one_is_unknown(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.end(run.key(nodes=1), Outcome.NODE_FAIL, gpu_seconds=1800.0)
    run.measure([0.1] * 20, axes={"nodes": 1}, attempt=2)
    assert only_row(run)["gpu_hours"] == pytest.approx(1.5)
    run.end(run.key(nodes=2), Outcome.NODE_FAIL, gpu_seconds=None)
    assert row_of(table_of(run), nodes=2)["gpu_hours"] is None
