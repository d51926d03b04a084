"""``cancel`` of a run that nobody watches, and what ``plan`` says of it afterwards."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sweep.adapters.files.run_directory import RunDir
from sweep.cli.main import main
from sweep.config import load
from sweep.core.grids.grid import expand
from sweep.usecases.plan import declare, sweep_file_of

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


def test_cancel_needs_only_the_run_directory(grid: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cancel", "--where", "nodes > 1", RUN_DIR]) == 0
    assert "held back 1 repeat not in the queue" in capsys.readouterr().err
    assert main(["cancel", "--where", "nodes > 1", RUN_DIR]) == 0
    assert "cancelled already" in capsys.readouterr().err


def test_many_cells_are_counted_and_only_some_are_named(
    grid: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sweep.cli.verbs.cancel._MOST_LISTED", 1)
    assert main(["cancel", "--all", RUN_DIR]) == 0
    assert re.search(r"held back 2 repeats not in the queue \(\w+/1 and 1 more\)", capsys.readouterr().err)


def test_a_condition_that_no_cell_meets_is_distinguished_from_cells_that_are_over(
    grid: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cancel", "--where", "nodes > 8", RUN_DIR]) == 0
    assert capsys.readouterr().err == "nothing to cancel: no cell of this run meets 'nodes > 8'.\n"


@contextmanager
def as_somebody_else(run_dir: Path) -> Iterator[None]:
    """Root may do everything in every folder, so it becomes another user; anybody else closes the folder."""
    if os.geteuid() == 0:
        os.seteuid(65534)
    else:
        run_dir.chmod(0)
    try:
        yield
    finally:
        if os.getuid() == 0:
            os.seteuid(0)
        else:
            run_dir.chmod(0o700)


@pytest.mark.parametrize("verb", [["status"], ["cancel", "--all"], ["tables"]])
def test_a_run_directory_of_another_user_is_one_clear_error(
    grid: list[str], capsys: pytest.CaptureFixture[str], verb: list[str], tmp_path: Path
) -> None:
    words = [*verb, f"run_dir={tmp_path / 'run'}"]
    main(words)  # everything is imported
    capsys.readouterr()
    with as_somebody_else(tmp_path / "run"):
        assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "Permission denied. A run directory is its owner's alone" in line


def test_plan_shows_what_a_run_would_try_again(grid: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    def planned(*words: str) -> list[str]:
        assert main(["plan", *grid, "--json", *words]) == 0
        return [cell["action"] for cell in json.loads(capsys.readouterr().out)["cells"]]

    main(["cancel", "--where", "nodes > 1", RUN_DIR])
    capsys.readouterr()
    assert planned() == ["submit", "cancelled"]
    assert planned("retry=[CANCELLED]") == ["submit", "submit"]
    assert planned("retry=[TIMEOUT]") == ["submit", "cancelled"], "nothing was written"
