"""Reading a run directory: what counts, what is reported, and that one bad record never costs another."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analysis.load import LoadError, load
from sweep.adapters.files.run_directory import RunDir as OrchestratorsRunDir
from sweep.core.attempts.attempt import ErrorClass, Outcome, RankError
from sweep.core.records.attempt_record import CellFile, render_error
from sweep.core.records.layout import CELL_FILE, RESULT_FILE, STEPS_FILE, attempt_dir, rank_error, restart_dir
from tests.analysis.factory import STARTED, RunDir, make_result, row_of, submission_name, table_of

if TYPE_CHECKING:
    from pathlib import Path


def test_a_folder_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="is not a directory"):
        load(tmp_path / "nowhere")


def test_a_folder_without_a_sweep_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"has no sweep\.json"):
        load(tmp_path)


def test_another_schema_version_is_named(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    text = run.sweep.render().replace('"schema": 1', '"schema": 99')
    (tmp_path / "sweep.json").write_text(text)
    with pytest.raises(LoadError, match="schema version 99"):
        load(tmp_path)


def test_a_valid_result_counts_although_the_ledger_lost_its_lines(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.measure([0.1] * 20, axes={"nodes": 1}, in_ledger=False)
    row = row_of(table_of(run), nodes=1)
    assert row["status"] == "measured"
    assert row["gpu_hours"] == pytest.approx(60 / 3600)
    state = load(run.path).history.attempt(run.key(nodes=1))
    assert state is not None
    assert state.outcome is Outcome.SUCCEEDED


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome is not Outcome.SUCCEEDED])
def test_a_valid_result_counts_whatever_the_ledger_says(tmp_path: Path, outcome: Outcome) -> None:
    run = RunDir(tmp_path)
    run.measure([0.1] * 20, axes={"nodes": 1}, in_ledger=False)
    run.end(run.key(nodes=1), outcome)
    row = row_of(table_of(run), nodes=1)
    assert (row["status"], row["reason"]) == ("measured", "")


def test_a_result_of_another_attempt_in_the_folder_does_not_count(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    first = run.measure([0.1] * 20, axes={"nodes": 1})
    shutil.copytree(first, run.folder(run.key(nodes=2)), dirs_exist_ok=True)
    shutil.copytree(first, run.folder(run.key(nodes=1, repeat=2)), dirs_exist_ok=True)
    table = table_of(run)
    row = row_of(table, nodes=2)
    assert row["status"] == "pending"
    assert f"is that of attempt {run.key(nodes=1)}, not of {run.key(nodes=2)}" in str(row["reason"])
    assert row_of(table, nodes=1)["repeats"] == 1


def test_a_restart_counts_where_its_own_folder_holds_it(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    key = run.key(nodes=1)
    run.launch(key, ended_at=STARTED + 100, stopped_by="SIGTERM", exit_code=1)
    run.launch(key, restart=2, ended_at=STARTED + 50, exit_code=0)
    run.measure([0.1] * 20, axes={"nodes": 1}, restart=2, in_ledger=False)
    row = row_of(table_of(run), nodes=1)
    assert row["status"] == "measured"
    assert str(row["attempt"]).endswith("/attempt-01/restart-2")
    assert row["gpu_hours"] == pytest.approx(150 / 3600)


def test_a_restarts_result_in_the_attempts_own_folder_does_not_count(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    folder = run.measure([0.1] * 20, axes={"nodes": 1}, in_ledger=False)
    cell = run.sweep.cells[run.cell_id(nodes=1)]
    (folder / RESULT_FILE).write_text(make_result(run.key(nodes=1), cell, [0.1] * 20, restart=1).render())
    row = row_of(table_of(run), nodes=1)
    assert row["status"] != "measured"
    assert "is that of restart 1, not of 0" in str(row["reason"])


def test_the_ledger_chooses_between_two_results_of_one_repeat_and_the_other_is_named(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.measure([0.1] * 20, axes={"nodes": 1}, in_ledger=False)
    run.end(run.key(nodes=1), Outcome.LOST)
    run.measure([0.2] * 20, axes={"nodes": 1}, attempt=2)
    row = row_of(table_of(run), nodes=1)
    assert row["step_time_s"] == 0.2
    assert "repeat 1 was measured more than once" in str(row["reason"])
    assert "attempt-01 left out" in str(row["reason"])


def test_the_first_of_two_results_counts_where_the_ledger_knows_neither(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.measure([0.2] * 20, axes={"nodes": 1}, attempt=2, in_ledger=False)
    run.measure([0.1] * 20, axes={"nodes": 1}, in_ledger=False)
    assert row_of(table_of(run), nodes=1)["step_time_s"] == 0.1


def test_a_half_written_result_is_a_hole_that_says_so_and_the_rest_is_kept(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    folder = run.measure([0.1] * 20, axes={"nodes": 1})
    run.measure([0.1] * 20, axes={"nodes": 2})
    text = (folder / RESULT_FILE).read_text()
    (folder / RESULT_FILE).write_text(text[: len(text) // 2])
    table = table_of(run)
    row = row_of(table, nodes=1)
    assert row["status"] == "lost"
    assert "result.json: result is not whole JSON" in str(row["reason"])
    assert any("result is not whole JSON" in warning for warning in table.warnings)
    assert row_of(table, nodes=2)["status"] == "measured"


@pytest.mark.parametrize(
    "changes",
    [
        {"world_size": 7},
        {"window_tokens": 20 * 256 + 1},
        {"n_params": 1},
        {"window_energy_j": -1.0},
        {"throttled": "no"},
        {"source": "guessed"},
        {"ended_at": "noon"},
    ],
    ids=str,
)
def test_a_result_of_another_experiment_or_with_impossible_values_does_not_count(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    run = RunDir(tmp_path)
    run.measure([0.1] * 20, axes={"nodes": 1}, **changes)
    row = row_of(table_of(run), nodes=1)
    assert row["status"] == "lost"
    assert next(iter(changes)) in str(row["reason"])


def test_a_result_whose_mappings_are_none_does_not_count(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    folder = run.measure([0.1] * 20, axes={"nodes": 1})
    text = (folder / RESULT_FILE).read_text().replace('"extra": {}', '"extra": 4')
    (folder / RESULT_FILE).write_text(text)
    assert "extra" in str(row_of(table_of(run), nodes=1)["reason"])


def test_damaged_step_lines_are_left_out_and_reported(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    folder = run.measure([0.1, 0.2, 0.3, 0.4, 0.5], axes={"nodes": 1})
    lines = (folder / STEPS_FILE).read_text().splitlines()
    lines[5] = lines[5][:20]
    lines[4] = lines[4].replace("0.4", "-0.4")
    lines.insert(2, lines[1])
    (folder / STEPS_FILE).write_text("\n".join(lines))
    row = row_of(table_of(run), nodes=1)
    assert row["status"] == "measured"
    assert row["step_time_s"] == 0.2  # of 0.1, 0.2 and 0.3
    assert "3 damaged line(s) left out, the first: line 3: step=1 with step_time_s=0.1" in str(row["reason"])
    assert "holds 3 of the window's 5 steps" in str(row["reason"])
    assert row.number("tokens_per_s") == pytest.approx(5 * 256 / 1.5)


def test_missing_steps_leave_the_step_time_blank(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    (run.measure([0.1] * 20, axes={"nodes": 1}) / STEPS_FILE).unlink()
    row = row_of(table_of(run), nodes=1)
    assert (row["status"], row["step_time_s"], row["step_time_s_ci_low"]) == ("measured", None, None)
    assert "steps.jsonl: cannot be read" in str(row["reason"])


def test_warmup_steps_are_outside_the_window(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.measure([0.1] * 5, axes={"nodes": 1}, warmup=[9.0] * 30)
    assert row_of(table_of(run), nodes=1)["step_time_s"] == 0.1


def test_a_damaged_ledger_line_is_reported_and_the_rest_kept(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.end(run.key(nodes=1), Outcome.OOM_DEVICE)
    with (tmp_path / "ledger.jsonl").open("a") as file:
        file.write('{"v": 1, "event": "ended", "ti')
    table = table_of(run)
    assert row_of(table, nodes=1)["status"] == "oom_device"
    assert any("ledger line 4 cannot be read" in warning for warning in table.warnings)


def test_a_ledger_event_with_senseless_values_is_reported(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.end(run.key(nodes=1), Outcome.OOM_DEVICE)
    text = (tmp_path / "ledger.jsonl").read_text()
    (tmp_path / "ledger.jsonl").write_text(
        text + text.splitlines()[0].replace(f'"{submission_name(run.key(nodes=1))}"', "[1]") + "\n"
    )
    table = table_of(run)
    assert row_of(table, nodes=1)["status"] == "oom_device"
    assert any("ledger line 4 cannot be read" in warning for warning in table.warnings)


def test_damaged_launcher_error_and_progress_files_are_reported(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    key = run.key(nodes=1)
    run.submit(key)
    run.launch(key, started_at="yesterday")
    run.error(key, RankError(rank=0, node_rank=0, time=STARTED, error_class=ErrorClass.DEVICE, message="Xid 79"))
    folder = run.folder(key)
    (folder / "error-rank-1.json").write_text("{")
    (folder / "error-rank-2.json").write_text((folder / "error-rank-0.json").read_text().replace(f"{STARTED}", '"x"'))
    (folder / "progress.json").write_text("[]")
    reason = str(row_of(table_of(run), nodes=1)["reason"])
    assert "/attempt.json: attempt.json is damaged: started_at='yesterday'" in reason
    assert "/error-rank-1.json: error is not whole JSON" in reason
    assert "/error-rank-2.json: an error file is damaged: time='x'" in reason
    assert "progress.json: progress is not a JSON object" in reason
    assert "Xid 79" in reason


def test_a_launcher_file_of_wrong_types_is_reported(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.launch(run.key(nodes=1))
    path = run.folder(run.key(nodes=1)) / "attempt.json"
    path.write_text(path.read_text().replace('"command": []', '"command": 7'))
    assert "attempt.json: " in str(row_of(table_of(run), nodes=1)["reason"])


def test_a_byte_that_is_no_utf8_spoils_only_its_own_record(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    for nodes in (1, 2):
        run.measure([0.1] * 20, axes={"nodes": nodes})
    ledger = tmp_path / "ledger.jsonl"
    ledger.write_bytes(b"\xff\n" + ledger.read_bytes())
    path = run.folder(run.key(nodes=1)) / RESULT_FILE
    path.write_bytes(b"\xff" + path.read_bytes())
    table = table_of(run)
    assert [row["status"] for row in table.rows] == ["lost", "measured", "not_run"]
    assert any("ledger line 1 cannot be read" in warning for warning in table.warnings)


def test_times_that_are_no_dates_are_dropped_and_the_record_is_kept(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.measure([0.1] * 20, axes={"nodes": 1}, in_ledger=False, ended_at=1e300)
    run.measure([0.1] * 20, axes={"nodes": 2}, in_ledger=False, ended_at=STARTED - 10)
    table = table_of(run)
    assert [row["status"] for row in table.rows[:2]] == ["measured", "measured"]
    assert row_of(table, nodes=2)["gpu_hours"] is None
    assert table.provenance.newest == "2023-11-14 22:13 UTC"


def test_rejections_without_their_sizes_are_damage_reported_in_one_line(tmp_path: Path) -> None:
    run = RunDir(tmp_path, axes={"nodes": (1,), "tp": (1, 3)})
    rejection = run.sweep.rejections[0]
    run.change(rejections=(replace(rejection, axes={**rejection.axes, "nodes": "two"}),))
    with pytest.raises(LoadError, match=r"sweep\.json is damaged: .*nodes='two'"):
        load(tmp_path)


def test_folders_that_belong_to_no_cell_or_have_other_names_are_not_read(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    folder = run.measure([0.1] * 20, axes={"nodes": 1})
    shutil.copytree(folder, tmp_path / "cells" / "0123456789abcdef" / "repeat-01" / "attempt-01")
    shutil.copytree(folder, folder.parent / "attempt-0001")
    shutil.copytree(folder, folder.parent / "attempt-1.bak")
    (folder.parent.parent / "repeat-02").write_text("a file")
    table = table_of(run)
    assert any("cells/0123456789abcdef belongs to no cell" in note for note in table.notes)
    assert (row_of(table, nodes=1)["repeats"], row_of(table, nodes=1)["reason"]) == (1, "")


def test_reading_changes_nothing(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.measure([0.1] * 20, axes={"nodes": 1})
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    table_of(run)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    run = RunDir(tmp_path_factory.mktemp("whole"))
    for nodes in (1, 2):
        run.measure([0.1 * nodes] * 10, axes={"nodes": nodes})
        run.launch(run.key(nodes=nodes), ended_at=STARTED + 60, exit_code=0)
    run.submit(run.key(nodes=4))
    run.progress(run.key(nodes=4), step=3, steps=60)
    run.error(
        run.key(nodes=4), RankError(rank=0, node_rank=0, time=STARTED, error_class=ErrorClass.DEVICE, message="Xid 79")
    )
    return run


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_damage_to_a_record_stops_the_analysis_or_costs_another_cell(
    whole: RunDir, tmp_path: Path, data: st.DataObject
) -> None:
    path = tmp_path / "run"
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(whole.path, path)
    victims = sorted(
        file
        for file in path.rglob("*")
        if file.is_file() and file.name != "sweep.json" and whole_is_spared(file, whole)
    )
    victim = data.draw(st.sampled_from(victims))
    content = victim.read_bytes()
    start = data.draw(st.integers(0, len(content)))
    end = data.draw(st.integers(start, min(len(content), start + 12)))
    victim.write_bytes(content[:start] + data.draw(st.binary(max_size=6)) + content[end:])
    damaged = RunDir.__new__(RunDir)
    damaged.path = path
    table = table_of(damaged)
    assert len(table.rows) == 3
    assert row_of(table, nodes=1)["status"] == "measured"


def whole_is_spared(file: Path, run: RunDir) -> bool:
    """Whether the file is not one that the cell on one node rests on."""
    return run.cell_id(nodes=1) not in file.parts


def test_the_latest_restart_with_a_result_counts_for_the_table_and_for_the_orchestrator(
    tmp_path: Path,
) -> None:
    run = RunDir(tmp_path)
    key = run.key(nodes=1)
    own = run.measure([0.1] * 20, axes={"nodes": 1})
    for restart in (2, 10):
        run.measure([0.1 * restart] * 20, axes={"nodes": 1}, restart=restart, in_ledger=False)
    _write_cell_file(run, nodes=1)
    reader = OrchestratorsRunDir(tmp_path)

    def counts() -> tuple[object, object]:
        """Restart whose result counts, for the orchestrator and for the table."""
        result, _ = reader.result(key)
        (measurement,) = load(tmp_path).measurements[key.cell_id]
        return result and result.restart, measurement.result.restart

    assert counts() == (10, 10)
    assert row_of(table_of(run), nodes=1)["step_time_s"] == pytest.approx(1.0)
    assert "restart-2, " in str(row_of(table_of(run), nodes=1)["reason"]), "the others are named"
    (own / "restart-10" / RESULT_FILE).write_text("{half")
    assert counts() == (2, 2)
    # A copy of another run's result is not this run's.
    shutil.copy(own / RESULT_FILE, own / "restart-2" / RESULT_FILE)
    assert counts() == (0, 0)
    (own / RESULT_FILE).write_bytes(b"\xff" + (own / RESULT_FILE).read_bytes())
    assert reader.result(key)[0] is None
    assert load(tmp_path).measurements[key.cell_id] == ()


RESULT_FILES = st.sampled_from(["none", "valid", "torn", "of another restart", "of another attempt", "impossible"])


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kinds=st.dictionaries(st.sampled_from([0, 1, 2, 10]), RESULT_FILES))
def test_table_and_orchestrator_agree_on_any_restarts(tmp_path: Path, kinds: dict[int, str]) -> None:
    shutil.rmtree(tmp_path / "run", ignore_errors=True)
    run = RunDir(tmp_path / "run")
    key = run.key(nodes=1)
    run.submit(key)
    _write_cell_file(run, nodes=1)
    for restart, kind in kinds.items():
        folder = tmp_path / "run" / restart_dir(attempt_dir(key), restart)
        folder.mkdir(parents=True, exist_ok=True)
        changes = {"restart": restart + (kind == "of another restart")}
        made = make_result(key, run.sweep.cells[key.cell_id], [0.1] * 20, **changes)
        made = replace(made, key=replace(key, attempt=7)) if kind == "of another attempt" else made
        made = replace(made, n_params=1) if kind == "impossible" else made
        if kind != "none":
            (folder / RESULT_FILE).write_text(made.render()[: 50 if kind == "torn" else None])
    wanted = max((restart for restart, kind in kinds.items() if kind == "valid"), default=None)
    result, problem = OrchestratorsRunDir(run.path).result(key)
    assert (result and result.restart) == wanted
    measured = load(run.path).measurements[key.cell_id]
    assert [item.result.restart for item in measured] == ([] if wanted is None else [wanted])
    assert bool(problem) == (wanted is None and any(kind != "none" for kind in kinds.values()))


def _write_cell_file(run: RunDir, **axes: Any) -> None:
    key = run.key(**axes)
    cell = run.sweep.cells[key.cell_id]
    folder = run.path / attempt_dir(key)
    folder.mkdir(parents=True, exist_ok=True)
    file = CellFile(cell=cell, device=run.sweep.devices[cell.device], key=key)
    (folder / CELL_FILE).write_text(file.render())


def test_errors_of_an_earlier_run_of_a_job_are_no_evidence_about_its_latest_run(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    key = run.key(nodes=1)
    run.error(key, RankError(rank=0, node_rank=0, time=STARTED, error_class=ErrorClass.OOM_DEVICE, message="early"))
    run.launch(key, ended_at=STARTED + 100, exit_code=1)
    late = RankError(rank=1, node_rank=0, time=STARTED + 200, error_class=ErrorClass.DEVICE, message="late")
    folder = run.folder(key) / "restart-1"
    folder.mkdir()
    (folder / rank_error(1)).write_text(render_error(late))
    state = load(run.path).history.attempt(key)
    assert state is not None
    assert state.outcome is Outcome.DEVICE_ERROR
    assert OrchestratorsRunDir(tmp_path).errors(key) == [late]
