"""``python -m analysis``: what it writes, prints and returns."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from analysis import __main__ as command
from tests.analysis.factory import RunDir


def test_it_writes_tables_and_figures_and_prints_the_table_and_their_paths(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunDir(tmp_path / "run")
    run.measure([0.1] * 20, axes={"nodes": 1})
    assert command.main([str(run.path), "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr()
    paths = ["tables/demo.csv", "tables/demo.md", "figures/demo.png", "figures/demo.pdf"]
    assert printed.out.splitlines()[-4:] == [str(tmp_path / "out" / path) for path in paths]
    assert all((tmp_path / "out" / path).is_file() for path in paths)
    assert "not_run" in printed.out
    assert printed.err == ""


def test_without_out_it_writes_into_the_run_directory(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    assert command.main([str(run.path)]) == 0
    assert (tmp_path / "tables" / "demo.csv").is_file()


def test_with_nothing_measured_it_says_that_there_is_no_figure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    RunDir(tmp_path)
    assert command.main([str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "no figure: nothing was measured yet"
    assert not (tmp_path / "figures").exists()


def test_a_folder_that_is_no_run_directory_gives_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main([str(tmp_path)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == f"analysis: {tmp_path} has no sweep.json: it is not the run directory of a sweep.\n"


def test_an_unwritable_output_gives_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    RunDir(tmp_path / "run")
    (tmp_path / "out").write_text("a file is in the way")
    assert command.main([str(tmp_path / "run"), "--out", str(tmp_path / "out")]) == 2
    printed = capsys.readouterr()
    assert len(printed.err.splitlines()) == 1
    assert printed.err.startswith(f"analysis: cannot write to {tmp_path / 'out'}")


def test_a_series_over_two_fingerprints_gives_exit_code_3_and_names_the_fields_on_standard_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunDir(tmp_path)
    run.measure([0.1] * 20, axes={"nodes": 1})
    run.measure([0.1] * 20, axes={"nodes": 2}, fingerprint="f2", fingerprint_fields={"torch": "2.10"})
    assert command.main([str(tmp_path)]) == 3
    assert "torch (2.9 / 2.10)" in capsys.readouterr().err
    assert (tmp_path / "tables" / "demo.csv").is_file()
    assert command.main([str(tmp_path), "--mix-fingerprints"]) == 0


def test_damage_is_reported_on_standard_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RunDir(tmp_path)
    (run.measure([0.1] * 20, axes={"nodes": 1}) / "result.json").write_text("{")
    assert command.main([str(tmp_path)]) == 0
    assert f"cell {run.cell_id(nodes=1)}: cells/" in capsys.readouterr().err


def test_it_runs_as_a_module_and_needs_none_of_the_orchestrator(tmp_path: Path) -> None:
    RunDir(tmp_path)
    code = (
        "import runpy, sys; sys.argv = ['analysis', sys.argv[1]]\n"
        "try: runpy.run_module('analysis', run_name='__main__')\n"
        "except SystemExit as end: code = end.code\n"
        "heavy = {'hydra', 'omegaconf', 'submitit', 'torch', 'trainer', 'sweep.config', 'sweep.cli', 'sweep.ports'}\n"
        "sys.exit(code or sorted(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_reader_that_has_gone_or_a_locale_without_a_letter_is_no_error(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run", axes={"tp": (1, 3)})
    run.save()
    words = [sys.executable, "-m", "analysis", str(run.path)]
    shown = subprocess.check_output(words, env={**os.environ, "PYTHONIOENCODING": "ascii"}, text=True)
    assert "rejected ? nodes=1, tp=3" in shown
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as gone:
        assert gone.stdout is not None
        assert gone.stderr is not None
        gone.stdout.close()
        assert (gone.stderr.read(), gone.wait()) == ("", 0)


def test_a_python_without_the_extra_names_the_one_to_install(tmp_path: Path) -> None:
    # -S: without the environment's packages
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    words = [sys.executable, "-S", "-m", "analysis", str(tmp_path)]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == f"analysis: pandas is not installed for {sys.executable}: install the extra 'analysis'.\n"
