"""A cell that cannot run is refused before any process group: one line from one rank, exit code 2, an error file."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from sweep.core.attempts.attempt import ErrorClass
from sweep.core.cells.cell import Cell, Precision
from sweep.core.cells.device import Device
from sweep.core.cells.parallelism import Parallelism, Schedule
from sweep.core.records.attempt_record import parse_error
from sweep.core.records.layout import ERROR_GLOB
from tests.trainer.cells import CPU, cell, write_cell
from tests.trainer.models import WIDE
from tests.trainer.processes import alone, torchrun

pytestmark = pytest.mark.slow

H100 = Device(name="h100", type="cuda", match=("H100",), compute_capability=(9, 0))


def on_h100(made: Cell) -> Cell:
    return dataclasses.replace(made, device="h100")


BAD: dict[str, tuple[Cell, Device, tuple[str, ...]]] = {
    "a mesh that does not multiply": (
        dataclasses.replace(cell(gpus=8), parallelism=Parallelism(dp_shard=2, tp=2, pp=3)),
        CPU,
        ("[world_size]", "dp_shard=2 x tp=2 x pp=3 needs 12 GPUs; the cell has 8"),
    ),
    "cp with a sequence that does not divide": (
        cell(gpus=2, parallelism=Parallelism(cp=2), seq_len=30),
        CPU,
        ("[sequence_by_cp_tp]", "seq_len=30 does not divide by 2 x cp x tp=4"),
    ),
    "a pipeline without a schedule": (
        cell(gpus=2, parallelism=Parallelism(pp=2)),
        CPU,
        ("[schedule_by_pp]", "needs a schedule"),
    ),
    "float8 on a CPU": (cell(precision=Precision.FLOAT8), CPU, ("[precision_by_device]", "precision=float8")),
    "float8 where there is no GPU": (
        on_h100(cell(precision=Precision.FLOAT8, model=WIDE)),
        H100,
        ("h100 needs a cuda device",),
    ),
    "float8 of widths that its products do not take": (
        on_h100(cell(precision=Precision.FLOAT8)),
        H100,
        ("[matrix_sizes]", "uneven has hidden=40"),
    ),
    "mxfp8 on a device that does not know it": (
        on_h100(cell(precision=Precision.MXFP8, model=WIDE)),
        H100,
        ("[precision_by_capability]", "precision=mxfp8 needs compute capability 10.0", "device h100 has 9.0"),
    ),
    "a token file that is not there": (cell(trainer={"data": "/nowhere/t.bin"}), CPU, ("cannot read /nowhere/t.bin",)),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    made, device, words = BAD[name]
    path = write_cell(tmp_path, made, device)
    assert_refused_alone(path, tmp_path, words)


def test_an_unknown_schedule_is_refused_with_those_there_are(tmp_path: Path) -> None:
    layout = Parallelism(pp=2, schedule=Schedule.ONE_F_ONE_B)
    path = write_cell(tmp_path, cell(gpus=2, parallelism=layout))
    path.write_text(path.read_text().replace('"1f1b"', '"2f2b"'))
    assert_refused_alone(path, tmp_path, ("schedule='2f2b' is not one of gpipe, 1f1b",))


def assert_refused_alone(path: Path, folder: Path, words: tuple[str, ...]) -> None:
    done = alone("--cell", str(path), "--out", str(folder))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    (found,) = folder.glob(ERROR_GLOB)
    error = parse_error(found.read_text())
    assert (error.error_class, error.step) == (ErrorClass.REFUSED, None)
    for word in words:
        assert word in done.stderr
        assert word in error.message


@pytest.mark.torchrun
def test_one_of_several_ranks_prints_the_refusal(tmp_path: Path) -> None:
    made, device, words = BAD["cp with a sequence that does not divide"]
    path = write_cell(tmp_path, made, device)
    done = torchrun(2, "-m", "trainer", "--cell", str(path), "--out", str(tmp_path))
    lines = [line for line in done.stderr.splitlines() if line.startswith("trainer: refused:")]
    assert len(lines) == 1
    assert words[1] in lines[0]
    assert [found.name for found in tmp_path.glob(ERROR_GLOB)] == ["error-rank-0.json"]
