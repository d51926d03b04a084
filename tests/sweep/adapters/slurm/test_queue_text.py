"""The rows of squeue and sacct, as a real Slurm 22.05 printed them (tests/golden/slurm) and as others may."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweep.adapters.slurm.queue_text import (
    Rows,
    best_report,
    read_sacct,
    read_squeue,
)
from sweep.core.attempts.attempt import JobReport, Phase

GOLDEN = Path(__file__).parents[3] / "golden" / "slurm"


def queue(name: str) -> Rows:
    return read_squeue((GOLDEN / name).read_text())


def test_a_running_two_node_job_is_read_from_squeue() -> None:
    assert queue("squeue-array.txt").exact["31"] == JobReport(
        state="RUNNING", phase=Phase.RUNNING, nodes=("node1", "node2"), started_at=1795970834.0
    )


def test_the_expected_start_of_a_waiting_job_is_not_a_start() -> None:
    assert "34|job|PENDING||1795971434|" in (GOLDEN / "squeue-array.txt").read_text()
    assert queue("squeue-array.txt").exact["34"] == JobReport(state="PENDING", phase=Phase.PENDING, reason="BeginTime")


def test_the_time_of_a_requeue_is_not_a_start_while_the_jobs_processes_end() -> None:
    requeued = read_squeue("2|job|COMPLETING|node1|1796030411|NONE|None|/run/job.sh").exact["2"]
    assert (requeued.phase, requeued.started_at) == (Phase.RUNNING, None)
    ending = read_squeue("2|job|COMPLETING|node1|1796030405|1796030411|None|/run/job.sh").exact["2"]
    assert ending.started_at == 1796030405.0


def test_the_end_expected_by_walltime_is_not_an_end() -> None:
    assert "30|job|RUNNING|node1|1795970834|1795970842|" in (GOLDEN / "squeue-array.txt").read_text()
    assert queue("squeue-array.txt").exact["30"].ended_at is None


@pytest.mark.parametrize(
    ("job_id", "state", "reason"),
    [
        ("45", "NODE_FAIL", "NodeDown"),
        ("46", "NODE_FAIL", "NodeDown"),
        ("47", "PREEMPTED", ""),
        ("51", "FAILED", "NonZeroExitCode"),
        ("52_1", "COMPLETED", ""),
        ("54", "FAILED", "JobLaunchFailure"),
        ("55", "FAILED", "BadConstraints"),
        ("33_2", "CANCELLED", "JobHeldUser"),
    ],
)
def test_an_end_is_read_from_squeue_until_min_job_age(job_id: str, state: str, reason: str) -> None:
    report = queue("squeue-ended.txt").exact[job_id]
    assert (report.state, report.phase, report.reason) == (state, Phase.ENDED, reason)
    assert report.ended_at is not None


def test_a_job_that_never_got_a_node_has_no_start_although_slurm_prints_one() -> None:
    report = queue("squeue-ended.txt").exact["55"]
    assert (report.nodes, report.started_at, report.ended_at) == ((), None, 1795970906.0)


def test_the_job_that_slurm_requeued_waits_again() -> None:
    assert queue("squeue-ended.txt").exact["48"].phase is Phase.PENDING


@pytest.mark.parametrize(
    ("job_id", "state", "exit_code"),
    [
        ("45", "NODE_FAIL", 0),
        ("47", "PREEMPTED", 0),
        ("51", "FAILED", 9),
        ("53", "FAILED", 3),
        ("54", "FAILED", 128 + 9),
        ("52_0", "COMPLETED", 0),
        ("32_1", "CANCELLED by 0", 0),
        ("32_137", "CANCELLED by 0", 0),
        ("50_4", "CANCELLED by 0", 0),
        ("48", "RUNNING", None),
    ],
)
def test_every_kind_of_end_is_read_from_sacct(job_id: str, state: str | None, exit_code: int | None) -> None:
    report = read_sacct((GOLDEN / "sacct.txt").read_text()).exact.get(job_id)
    assert (report and report.state, report and report.exit_code) == (state, exit_code)


def test_nodes_and_times_are_read_from_sacct() -> None:
    report = read_sacct((GOLDEN / "sacct.txt").read_text()).exact["46"]
    assert report.nodes == ("node3", "node4")
    assert (report.started_at, report.ended_at) == (1795970906.0, 1795970909.0)


def test_pending_tasks_of_a_list_cut_short_are_alive() -> None:
    rows = queue("squeue-truncated.txt")
    assert rows.exact["32_11"].phase is Phase.PENDING
    assert "32_137" not in rows.exact
    report = best_report("32_137", rows, Rows())
    assert report is not None
    assert report.phase is Phase.PENDING


def test_the_last_number_of_a_list_without_its_bracket_is_dropped() -> None:
    """Slurm cut 56 to 5 here; there is no task 5."""
    rows = queue("squeue-cut.txt")
    assert "46,5|" in (GOLDEN / "squeue-cut.txt").read_text()
    assert "60_46" in rows.exact
    assert "60_5" not in rows.exact
    assert best_report("60_56", rows, Rows()) is not None


def test_pending_tasks_cancelled_in_one_record_are_all_cancelled() -> None:
    rows = queue("squeue-array-cancelled.txt")
    report = best_report("61_3", rows, Rows())
    assert report is not None
    assert (report.state, report.nodes) == ("CANCELLED", ())
    assert best_report("61_0", rows, Rows()) == rows.exact["61_0"]
    assert rows.exact["61_0"].nodes == ("node1",)


def test_a_task_that_had_ended_before_keeps_its_own_end_when_the_rest_is_cancelled() -> None:
    accounting = read_sacct("61_3|job|COMPLETED|node1|100|200|0:0|None")
    report = best_report("61_3", queue("squeue-array-cancelled.txt"), accounting)
    assert report is not None
    assert report.state == "COMPLETED"


def test_accounting_that_lags_does_not_bring_a_cancelled_task_back() -> None:
    accounting = read_sacct("61_[1-4%1]|job|PENDING|None assigned|Unknown|Unknown|0:0|None")
    report = best_report("61_3", queue("squeue-array-cancelled.txt"), accounting)
    assert report is not None
    assert report.state == "CANCELLED"


@pytest.mark.parametrize("row", ["61_3", "61", "61_[1,2,4...%1]"])
def test_a_task_in_accounting_alone_is_read_from_its_row_or_its_arrays(row: str) -> None:
    for word in ("RUNNING", "CANCELLED"):
        report = best_report("61_3", Rows(), read_sacct(f"{row}|job|{word}|None assigned|Unknown|1795970985|0:0|None"))
        assert report is not None
        assert report.state == word


def test_an_unknown_state_counts_as_alive() -> None:
    assert read_squeue("42|job|FROBNICATING|node1|100|200|None").exact["42"].phase is Phase.RUNNING


def test_a_line_cut_short_still_reports_the_job() -> None:
    assert read_squeue("42|").exact["42"].phase is Phase.RUNNING
    assert read_sacct("42|job|COMPLETED|node1").exact["42"].phase is Phase.ENDED


def test_a_reason_may_contain_the_separator() -> None:
    assert read_squeue("42|job|PENDING||N/A|N/A|ask ops | room 3").exact["42"].reason == "ask ops | room 3"


def test_banners_and_steps_are_skipped() -> None:
    rows = read_squeue("Welcome | to the cluster\n\n42.batch|COMPLETED|node1|1|2|None\n")
    assert rows == Rows()


@given(st.text(alphabet="0123456789_[],-%:.|RUNNINGCOMPLETED \nNone", max_size=80))
def test_no_text_makes_the_reader_fail(text: str) -> None:
    read_squeue(text)
    read_sacct(text)
