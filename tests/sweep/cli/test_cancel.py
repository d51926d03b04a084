"""``cancel`` of a run that nobody watches, and what ``plan`` says of it afterwards."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sweep.adapters.run_dir import RunDir
from sweep.cli.main import main
from sweep.config import load
from sweep.core.grid import expand
from sweep.usecases.orchestrate import declare, sweep_file_of

RUN_DIR = "run_dir=run"


@pytest.fixture
def grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A run of two cells that was declared only, of a grid and a cluster in a folder of their own."""
    monkeypatch.chdir(tmp_path)
    files = {
        "grid": "batch_rule: sequences_per_gpu\nseries: {kind: free}\n"
        "axes: {nodes: [1, 2], sequences_per_gpu: 1, seq_len: 8, model: debug_1m}\n",
        "cluster": "scheduler: local\nscale: laptop\ngpus_per_node: 1\ndevice: cpu\n",
    }
    for kind, text in files.items():
        (tmp_path / "conf" / kind).mkdir(parents=True)
        (tmp_path / "conf" / kind / "mine.yaml").write_text(f"name: mine\n{text}")
    words = ["+grid=mine", "cluster=mine", RUN_DIR]
    spec = load(words, config_dir=tmp_path / "conf")
    run_dir = RunDir(tmp_path / "run")
    run_dir.create()
    declare(run_dir, sweep_file_of(spec, expand(spec.grid)))
    return ["--config-dir", "conf", *words]


def test_a_cancel_needs_the_run_directory_only(grid: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cancel", "--where", "nodes > 1", RUN_DIR]) == 0
    assert "held back 1 repeat not in the queue" in capsys.readouterr().err
    assert main(["cancel", "--where", "nodes > 1", RUN_DIR]) == 0
    assert "cancelled already" in capsys.readouterr().err


def test_a_condition_that_no_cell_meets_is_told_from_cells_that_are_over(
    grid: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cancel", "--where", "nodes > 8", RUN_DIR]) == 0
    assert capsys.readouterr().err == "nothing to cancel: no cell of this run meets 'nodes > 8'.\n"


def test_plan_shows_what_a_run_would_try_again(grid: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    def planned(*words: str) -> list[str]:
        assert main(["plan", *grid, "--json", *words]) == 0
        return [cell["action"] for cell in json.loads(capsys.readouterr().out)["cells"]]

    main(["cancel", "--where", "nodes > 1", RUN_DIR])
    capsys.readouterr()
    assert planned() == ["submit", "cancelled"]
    assert planned("retry=[CANCELLED]") == ["submit", "submit"]
    assert planned("retry=[TIMEOUT]") == ["submit", "cancelled"], "nothing was written"
