"""What the command line answers without running anything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from sweep.cli.display.cells_table import print_cells
from sweep.cli.main import main
from sweep.config import load
from sweep.core.attempts.history import History
from sweep.core.grids.grid import expand
from sweep.usecases.plan import sweep_file_of
from sweep.usecases.status import statuses

PLAN = ["plan", "+grid=weak_scaling", "cluster=local"]


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(words) == 2
    err = capsys.readouterr().err
    assert "Traceback" not in err
    assert len(err.splitlines()) < 40, "one screen"
    return err


def test_help_lists_the_grids_and_shows_three_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    for grid in ("weak_scaling", "strong_scaling", "model_parallel", "model_size", "context_length"):
        assert grid in out
    assert out.count("python -m sweep ") >= 3


def test_plan_prints_every_cell_its_action_and_reason_and_writes_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(PLAN) == 0
    out = capsys.readouterr().out
    assert out.count("not run yet") == 3
    assert "GPU-hours" in out
    assert list(tmp_path.iterdir()) == []


def test_plan_shows_rows_in_the_order_of_submission_and_its_seed(capsys: pytest.CaptureFixture[str]) -> None:
    def planned(*more: str) -> tuple[list[tuple[str, int]], object]:
        assert main([*PLAN, "repeats=2", "seq_len=[64,128,256]", "--json", *more]) == 0
        plan = json.loads(capsys.readouterr().out)
        return [(cell["cell"], cell["repeat"]) for cell in plan["cells"]], plan["totals"]["order_seed"]

    shuffled, seed = planned()
    in_grid, none = planned("order=grid")
    assert (type(seed), none) == (int, None)
    assert [repeat for _, repeat in shuffled] == [1] * 9 + [2] * 9
    assert [cell for cell, repeat in in_grid if repeat == 1] != [cell for cell, repeat in shuffled if repeat == 1]
    assert [repeat for _, repeat in in_grid] == [1, 2] * 9
    assert (shuffled, seed) == planned("run_dir=elsewhere/weak_scaling-local"), "the run's name decides"
    assert planned("run_dir=other")[1] != seed
    assert main([*PLAN, "repeats=2"]) == 0
    assert f"in rounds, shuffled with the seed {seed} (order=grid: not)" in capsys.readouterr().out


def test_plan_as_json_is_one_object_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(
            [
                "plan",
                "+grid=weak_scaling",
                "--json",
                "scale=paper",
                "cluster=slurm",
                "tp=[1,3]",
                "budget.gpu_hours=70000",
            ]
        )
        == 0
    )
    captured = capsys.readouterr()
    plan = json.loads(captured.out)
    assert set(plan) >= {"cells", "rejections", "totals"}
    assert {cell["action"] for cell in plan["cells"]} == {"submit", "later"}, "the smallest cell goes first"
    assert plan["totals"]["rejections"] == len(plan["rejections"]) > 0
    assert all(item["rule"] and item["reason"] for item in plan["rejections"])
    gpus = sum(cell["gpus"] for cell in plan["cells"])
    assert plan["totals"]["gpu_hours_at_most"] == pytest.approx(gpus * plan["totals"]["walltime_min"] / 60)
    assert (plan["totals"]["budget_gpu_hours"], plan["totals"]["budget_gpu_hours_left"]) == (70000.0, 70000.0)
    assert "Nothing was submitted" in captured.err


@pytest.mark.parametrize("grid", ["weak_scaling", "strong_scaling", "model_parallel", "model_size", "context_length"])
def test_the_papers_grids_can_be_planned_anywhere(capsys: pytest.CaptureFixture[str], grid: str) -> None:
    assert main(["plan", f"+grid={grid}", "cluster=slurm", "scale=paper", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["cells"]
    assert len({cell["cell"] for cell in plan["cells"]}) == len(plan["cells"])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["plan", "+grid=weak_scalign"], "weak_scaling"),
        (["plan", "+grid=weak_scaling", "ndoes=[1,2]"], "nodes"),
        (["plan", "+grid=weak_scaling", "model=llama2_7"], "llama2_7b"),
        (["plan", "+grid=weak_scaling", "nodes=1,2,4"], "nodes=[1,2,4]"),
        (["plan", "+grid=weak_scaling", "nodes=two"], "whole number"),
        (["plan", "+grid=weak_scaling", "trainer.lrr=1"], "lr"),
        (["plan", "+grid=weak_scaling", "cluster=slrum"], "slurm"),
        (["plan"], "weak_scaling"),
        (["--config-dir", ".", *PLAN], "the verb plan comes first"),
        ([*PLAN, "budget.gpu_hours=0"], "error: budget.gpu_hours=0 would let nothing run"),
        (["plna", "+grid=weak_scaling"], "plan"),
        (["plan", "+grid=weak_scaling", "--jsno"], "--json"),
        (["run", "status"], "two verbs: run and status"),
        (["logs", "nosuch"], "'nosuch' is neither a cell nor an override"),
        (["logs", "abcd", "--attempt", "x"], "'x' is no whole number"),
    ],
)
def test_a_typo_is_answered_with_the_nearest_valid_name(
    capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    assert says in _refused(capsys, *words)


def test_a_grid_without_a_cell_counts_its_rejections_by_rule(capsys: pytest.CaptureFixture[str]) -> None:
    err = _refused(capsys, *PLAN, "tp=3")
    assert "no cell left" in err
    assert "3 combinations" in err


def test_a_file_in_the_way_of_the_run_directory_is_one_clear_error(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    err = _refused(capsys, "+grid=weak_scaling", "cluster=local", "run_dir=file/run")
    assert "cannot be written" in err


def test_no_slurm_commands_is_reported_before_anything_is_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    err = _refused(capsys, "+grid=weak_scaling", "cluster=slurm")
    assert "sbatch" in err
    assert list(tmp_path.iterdir()) == []


def test_verbs_about_a_run_say_how_to_name_one_when_there_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("status", "tables"):
        assert "run_dir=" in _refused(capsys, verb)


def test_a_run_directory_of_a_newer_version_is_refused_and_kept(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run_dir = tmp_path / "runs" / "weak_scaling-local"
    run_dir.mkdir(parents=True)
    (run_dir / "sweep.json").write_text('{"schema": 99, "kind": "sweep"}')
    assert "schema version 99" in _refused(capsys, *PLAN)
    assert "schema version 99" in _refused(capsys, "+grid=weak_scaling", "cluster=local")
    assert json.loads((run_dir / "sweep.json").read_text())["schema"] == 99


def test_planning_imports_neither_torch_nor_pandas() -> None:
    code = (
        "import sys; from sweep.cli.main import main; main(sys.argv[1:]); "
        "print([name for name in ('torch', 'pandas', 'numpy', 'matplotlib', 'submitit') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, *PLAN], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_output_cut_short_by_a_pipe_is_no_error() -> None:
    command = f"{sys.executable} -m sweep plan +grid=weak_scaling cluster=local repeats=300 | head -1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_locale_without_a_letter_is_no_error() -> None:
    command = [sys.executable, "-m", "sweep", "--help"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    assert "arXiv 2411.13055 ?4.1" in subprocess.check_output(command, env=environment, text=True)


def test_a_python_without_the_packages_is_shown_which_to_use() -> None:
    # -S: as the system's own Python, which knows nothing of the environment
    command = [sys.executable, "-S", "-m", "sweep", *PLAN]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "not installed for" in done.stderr
    assert ".venv/bin/python" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_narrow_terminal_gets_every_column_whole(capsys: pytest.CaptureFixture[str]) -> None:
    spec = load(["+grid=model_parallel", "cluster=local"])
    content = sweep_file_of(spec, expand(spec.grid))
    listed = statuses(content, History(), None)
    for width in (40, 130, 300):
        print_cells(Console(width=width), content, listed, walltime_min=15)
        printed = capsys.readouterr().out
        assert all(word in printed for word in ("virtual_stages", "layout", "state", "why"))
        for name, cell in content.cells.items():
            row = next(line for line in printed.splitlines() if name in line)
            assert cell.parallelism.equation() in row
            assert row.rstrip().endswith("not run yet")
            assert len(row) <= 130 or width == 300


def test_brackets_of_a_rejections_reason_are_text_not_style(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*PLAN, "nodes=[1,2]", "exclude=['nodes in [tp, pp]']"]) == 0
    assert "excluded by the grid's condition: nodes in [tp, pp]" in capsys.readouterr().out


def test_a_local_run_cannot_be_left_alone(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    err = _refused(capsys, "+grid=weak_scaling", "cluster=local", "watch=false")
    assert "watch=false" in err
    assert list(tmp_path.iterdir()) == []


def test_variables_that_sbatch_would_obey_are_named_where_the_configuration_decides(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["plan", "+grid=weak_scaling", "nodes=1", "cluster.slurm.account=ours"]
    monkeypatch.setenv("SBATCH_ACCOUNT", "theirs")
    monkeypatch.setenv("SBATCH_QOS", "")
    assert main([*words, "cluster=slurm"]) == 0
    shown = " ".join(capsys.readouterr().err.split())
    assert "SBATCH_ACCOUNT=theirs is set and not used: cluster.slurm.account decides, and is 'ours'." in shown
    assert "SBATCH_QOS" not in shown
    monkeypatch.setenv("SBATCH_ACCOUNT", "ours")
    assert main([*words, "cluster=slurm"]) == 0
    assert "SBATCH" not in capsys.readouterr().err
    assert main(PLAN) == 0
    assert "SBATCH" not in capsys.readouterr().err
