"""The command line as torchrun starts it: records and refusals."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sweep.core.attempts.attempt import ErrorClass, JobReport, Outcome, Phase, RankError
from sweep.core.attempts.verdict import Evidence, judge
from sweep.core.cells.cell import Cell, Precision
from sweep.core.cells.device import Device
from sweep.core.cells.parallelism import Parallelism, Schedule
from sweep.core.records.attempt_record import parse_error, render_error
from sweep.core.records.layout import ERROR_GLOB, PROGRESS_FILE, RESULT_FILE, STEPS_FILE, rank_error
from sweep.core.records.progress import Progress, Step
from sweep.core.records.result import Result
from tests.trainer.cells import CPU, cell, cell_file, write_cell
from tests.trainer.processes import ROOT, alone, environment, torchrun

pytestmark = pytest.mark.slow


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.torchrun
def test_two_ranks_leave_a_whole_result_steps_and_progress_and_nothing_else(tmp_path: Path) -> None:
    made = cell(gpus=2, trainer={"steps": 6, "warmup_steps": 2})
    path = write_cell(tmp_path, made)
    done = torchrun(2, "-m", "trainer", "--cell", str(path), "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert names_in(tmp_path) == {"cell.json", RESULT_FILE, STEPS_FILE, PROGRESS_FILE}
    result = Result.parse((tmp_path / RESULT_FILE).read_text(), expected=cell_file(made).key)
    assert (result.world_size, result.window_steps, len(result.hosts)) == (2, 4, 1)
    assert result.window_tokens == 4 * 8 * 32
    assert result.n_params == made.model.n_params
    assert result.window_energy_j is None
    assert result.throttled is None
    assert result.source == "measured"
    assert result.environment["WORLD_SIZE"] == "2"
    assert result.versions["torch"]
    steps = [Step.parse(line) for line in (tmp_path / STEPS_FILE).read_text().splitlines()]
    assert [step.step for step in steps] == list(range(6))
    assert [step.is_warmup for step in steps] == [True, True, False, False, False, False]
    assert all(step.loss and step.grad_norm and step.step_time_s > 0 for step in steps)
    assert result.final_loss == steps[-1].loss
    # A step takes as long as on the slower of the two ranks; between steps the machine may have other things to do.
    assert result.window_time_s >= sum(step.step_time_s for step in steps[2:]) / 2
    progress = Progress.parse((tmp_path / PROGRESS_FILE).read_text())
    assert (progress.step, progress.steps) == (6, 6)


def test_one_process_runs_without_torchrun(tmp_path: Path) -> None:
    path = write_cell(tmp_path, cell(precision=Precision.BF16))
    done = alone("--cell", str(path), "--out", str(tmp_path))
    assert (done.returncode, done.stdout) == (0, "")
    result = Result.parse((tmp_path / RESULT_FILE).read_text())
    assert result.world_size == 1
    first, *progress, last = done.stderr.splitlines()
    assert f"{result.n_params:,} parameters, bf16, on 1 rank" in first
    assert result.device_name in first
    assert f"measured {result.window_steps} steps" in last
    assert f"loss of the last {result.final_loss:.4f}" in last
    assert all(line.startswith("step ") for line in progress), "on a machine that takes long for it"


def test_rank_variables_left_behind_by_another_job_are_ignored(tmp_path: Path) -> None:
    path = write_cell(tmp_path, cell(trainer={"steps": 2, "warmup_steps": 1}))
    done = alone("--cell", str(path), "--out", str(tmp_path), WORLD_SIZE="8", RANK="3")
    assert done.returncode == 0, done.stderr


def test_help_says_what_is_written_and_what_the_exit_codes_mean() -> None:
    done = alone("--help")
    assert done.returncode == 0
    assert "result.json" in done.stdout
    assert "Exit code" in done.stdout


def test_bad_usage_is_refused_in_one_line(tmp_path: Path) -> None:
    path = write_cell(tmp_path, cell())
    for options, words in (
        (["--out", str(tmp_path / "nowhere")], "there is no such folder"),
        ([], "--out DIR is needed"),
        (["--out", str(tmp_path), "--rank", "x"], "invalid int value"),
    ):
        done = alone("--cell", str(path), *options)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert words in done.stderr


@pytest.mark.parametrize(("name", "value"), [("SLURM_RESTART_COUNT", "x"), ("LOCAL_RANK", "-1")])
def test_a_variable_that_is_no_number_is_refused_in_one_line(name: str, value: str, tmp_path: Path) -> None:
    path = write_cell(tmp_path, cell())
    done = alone("--cell", str(path), "--out", str(tmp_path), **{**placed(0, 0), name: value})
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert f"{name}={value} is no number" in done.stderr


def placed(rank: int, local_rank: int, *, ranks: int = 2, of_node: int = 1) -> dict[str, str]:
    """Variables that a torchrun agent sets for one of its ranks."""
    return {
        "TORCHELASTIC_RUN_ID": "x",
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(of_node),
        "GROUP_RANK": str(rank - local_rank),
    }


def assert_refused(done: subprocess.CompletedProcess[str], folder: Path, *words: str) -> None:
    lines = [line for line in done.stderr.splitlines() if line.startswith("trainer: refused:")]
    assert len(lines) == 1, done.stderr
    (path,) = folder.glob(ERROR_GLOB)
    error = parse_error(path.read_text())
    assert error.error_class is ErrorClass.REFUSED
    assert path.name == rank_error(0)
    assert error.step is None
    for word in words:
        assert word in lines[0]
        assert word in error.message
    assert not (folder / RESULT_FILE).exists()


def impossible(**changes: object) -> Cell:
    return dataclasses.replace(cell(), **changes)  # type: ignore[arg-type]  # fields of a cell


REFUSED: dict[str, tuple[Cell, Device, tuple[str, ...]]] = {
    "a degree that does not multiply": (
        impossible(parallelism=Parallelism(dp_shard=2)),
        CPU,
        ("[world_size]", "dp_shard=2 needs 2 GPUs"),
    ),
    "a schedule that does not split what is compiled": (
        impossible(
            gpus_per_node=2,
            compile=True,
            micro_batch=2,
            parallelism=Parallelism(pp=2, schedule=Schedule.ZBV, virtual_stages=1),
        ),
        CPU,
        ("[schedule_by_pp]", "[split_backward]", "compile"),
    ),
    "more ranks than there are": (cell(gpus=2), CPU, ("needs 2 ranks", "there are 1")),
    "a device that is not there": (
        impossible(device="h100"),
        Device(name="h100", type="cuda", match=("H100",)),
        ("h100 needs a cuda device",),
    ),
    "another device than was asked for": (
        impossible(device="other"),
        Device(name="other", type="cpu", match=("Z80", "6502")),
        ("'Z80' or '6502'",),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_cell_that_cannot_run_here_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    made, device, words = REFUSED[name]
    path = write_cell(tmp_path, made, device)
    done = alone("--cell", str(path), "--out", str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert_refused(done, tmp_path, *words)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda text: text[: len(text) // 2], ("cell.json", "not whole JSON")),
        (lambda text: text.replace('"seq_len": 32', '"seq_len": 64'), ("it was altered",)),
        (lambda text: text.replace('"kind": "cell"', '"kind": "result"'), ("kind 'cell'",)),
        (lambda text: text.replace('"n_layers": 3', '"n_layers": 0'), ("n_layers=0",)),
    ],
    ids=["cut short", "altered", "another record", "impossible model"],
)
def test_a_damaged_cell_file_is_refused(damage: object, words: tuple[str, ...], tmp_path: Path) -> None:
    path = write_cell(tmp_path, cell())
    assert callable(damage)
    path.write_text(damage(path.read_text()))
    done = alone("--cell", str(path), "--out", str(tmp_path))
    assert done.returncode == 2
    assert_refused(done, tmp_path, *words)


def test_a_missing_cell_file_is_refused(tmp_path: Path) -> None:
    done = alone("--cell", str(tmp_path / "cell.json"), "--out", str(tmp_path))
    assert done.returncode == 2
    assert_refused(done, tmp_path, "cannot read")


@pytest.mark.torchrun
def test_one_of_two_ranks_prints_the_refusal(tmp_path: Path) -> None:
    made = cell(gpus=2, nodes=2)
    path = write_cell(tmp_path, made)
    done = torchrun(2, "-m", "trainer", "--cell", str(path), "--out", str(tmp_path))
    assert done.returncode != 0
    assert_refused(done, tmp_path, "gpus_per_node=1", "this node runs 2 ranks")


@pytest.mark.torchrun
def test_other_ranks_wait_for_the_refusal_of_a_late_rank_0(tmp_path: Path) -> None:
    path = write_cell(tmp_path, cell(gpus=2, nodes=2))
    late = tmp_path / "late.py"
    late.write_text(
        "import os, time\nfrom trainer import cli\ntime.sleep(3 if os.environ['RANK'] == '0' else 0)\ncli.main()\n"
    )
    done = torchrun(2, str(late), "--cell", str(path), "--out", str(tmp_path))
    assert_refused(done, tmp_path, "gpus_per_node=1")


def test_of_two_nodes_with_the_same_refusal_rank_0_reports_it_and_decides_the_outcome(tmp_path: Path) -> None:
    path = write_cell(tmp_path, cell(gpus=4, nodes=2))
    arguments = ("--cell", str(path), "--out", str(tmp_path))
    with ThreadPoolExecutor() as pool:
        # The ranks of the second node first: they wait for the first.
        second, first = pool.map(lambda rank: alone(*arguments, **placed(rank, 0)), (1, 0))
    assert (first.returncode, second.returncode, second.stderr) == (2, 2, "")
    assert_refused(first, tmp_path, "needs 4 ranks", "there are 2")
    (error,) = (parse_error(item.read_text()) for item in tmp_path.glob(ERROR_GLOB))
    verdict = judge(Evidence(has_result=False, report=JobReport(state="FAILED", phase=Phase.ENDED), errors=[error]))
    assert verdict.outcome is Outcome.TRAINER_ERROR
    assert "needs 4 ranks" in verdict.reason


def test_a_node_that_alone_finds_an_error_reports_it_itself(tmp_path: Path) -> None:
    # The first rank found nothing and met something else.
    lost = RankError(rank=0, node_rank=0, time=1.0, error_class=ErrorClass.COMMUNICATION, message="a peer is lost")
    (tmp_path / rank_error(0)).write_text(render_error(lost))
    program = (
        "import sys, trainer.cli; trainer.cli._PATIENCE_S = trainer.cli._BRIEF_PATIENCE_S = 0.5\n"
        f"trainer.cli.main(['--cell', {str(tmp_path / 'cell.json')!r}, '--out', {str(tmp_path)!r}])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(**placed(1, 0)),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "cannot read" in parse_error((tmp_path / rank_error(1)).read_text()).message


def test_a_rule_is_checked_before_torch_is_imported(tmp_path: Path) -> None:
    path = write_cell(tmp_path, impossible(micro_batch=3))
    program = (
        "import os, sys; import trainer.cli; from trainer.failure import process_exit\n"
        "process_exit.os._exit = lambda code: (print('torch' in sys.modules), sys.stdout.flush(), sys.exit(code))\n"
        f"trainer.cli.main(['--cell', {str(path)!r}, '--out', {str(tmp_path)!r}])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(), capture_output=True, text=True, timeout=240, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (2, "False")


def test_an_error_file_holds_plain_json(tmp_path: Path) -> None:
    path = write_cell(tmp_path, impossible(micro_batch=3))
    alone("--cell", str(path), "--out", str(tmp_path))
    assert json.loads((tmp_path / rank_error(0)).read_text())["error_class"] == "refused"
