"""Which cells a preflight keeps from being submitted, and that its records are made once."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from sweep.adapters.local.preflight_runner import PreflightError, PreflightRunner
from sweep.cli.verbs.preflight_step import ranks_to_examine, rejection_of
from sweep.core.attempts.attempt import AttemptKey
from sweep.core.cells.cell import cell_id
from sweep.core.cells.device import Device
from sweep.core.cells.parallelism import Parallelism, Schedule
from sweep.core.records.attempt_record import CellFile
from sweep.core.records.preflight_record import Preflight
from tests.fakes import CPU, tiny_cell
from tests.stubs.jobs import hash_of

GPU = Device(name="small-gpu", type="cuda", memory_gib=2.0)
FINE = Preflight(cell_id="c" * 16, rank=0, world_size=2, peak_memory_bytes=1 << 30)
CELL = tiny_cell()
FILE = CellFile(cell=CELL, device=CPU, key=AttemptKey(cell_id=cell_id(CELL), repeat=1, attempt=1))


def test_a_cell_that_fits_may_run() -> None:
    assert rejection_of(FINE, GPU) is None
    assert rejection_of(replace(FINE, peak_memory_bytes=2 << 30), GPU) is None


def test_a_cell_whose_tensors_alone_exceed_the_device_is_predicted_out_of_memory() -> None:
    rejection = rejection_of(replace(FINE, peak_memory_bytes=3 << 30), GPU)
    assert rejection is not None
    assert rejection[0] == "oom_predicted"
    assert "3.0 GiB; small-gpu has 2 GiB" in rejection[1]


def test_a_peak_that_a_stand_in_raised_rules_out_a_cell_only_if_its_state_alone_does() -> None:
    found = replace(FINE, peak_memory_bytes=3 << 30, is_overstated=True, state_by_kind={"parameters": 1 << 30})
    assert rejection_of(found, GPU) is None
    rejection = rejection_of(replace(found, state_by_kind={"parameters": 1 << 30, "optimizer": 2 << 30}), GPU)
    assert rejection is not None
    assert rejection[0] == "oom_predicted"
    assert "parameters, gradients and optimiser state of rank 0 alone take 3.0 GiB" in rejection[1]


def test_a_device_of_unknown_memory_rules_out_no_cell() -> None:
    assert rejection_of(replace(FINE, peak_memory_bytes=1 << 50), replace(GPU, memory_gib=None)) is None


def test_a_cell_that_cannot_be_built_is_ruled_out_with_the_problem() -> None:
    problem = "RuntimeError: shapes do not fit"
    assert rejection_of(replace(FINE, problem=problem, peak_memory_bytes=None), GPU) == ("preflight_failed", problem)


def _sources(folder: Path, body: str) -> tuple[Path, str]:
    """Sources with such a trainer, and their hash."""
    (folder / "trainer").mkdir(parents=True)
    (folder / "trainer" / "__init__.py").write_text("")
    (folder / "trainer" / "__main__.py").write_text(body)
    return folder, hash_of(folder)


def test_a_record_is_made_once_for_each_state_of_the_sources(tmp_path: Path) -> None:
    count = tmp_path / "count"
    body = f"open({str(count)!r}, 'a').write('x')\nprint({FINE.render()!r})\n"
    sources, digest = _sources(tmp_path / "src", body)
    runner = PreflightRunner(tmp_path, sources, digest, os.environ)
    assert runner.recorded(FILE.key.cell_id) is None
    assert runner.run(FILE) == FINE
    assert runner.run(FILE) == FINE
    assert PreflightRunner(tmp_path, sources, digest, os.environ).recorded(FILE.key.cell_id) == FINE
    assert count.read_text() == "x"
    PreflightRunner(tmp_path, *_sources(tmp_path / "other", f"{body}# changed\n"), os.environ).run(FILE)
    assert count.read_text() == "xx"


def test_a_problem_that_a_token_file_may_cause_is_examined_again(tmp_path: Path) -> None:
    count, failed = tmp_path / "count", replace(FINE, problem="trainer.data: too short")
    sources = _sources(tmp_path / "src", f"open({str(count)!r}, 'a').write('x')\nprint({failed.render()!r})\n")
    runner = PreflightRunner(tmp_path, *sources, os.environ)
    on_file = replace(FILE.cell, trainer=replace(FILE.cell.trainer, data="/data/text.bin"))
    with_data = CellFile(cell=on_file, device=FILE.device, key=replace(FILE.key, cell_id=cell_id(on_file)))
    assert runner.run(with_data) == runner.run(with_data) == failed
    assert count.read_text() == "xx"
    assert runner.run(FILE) == runner.run(FILE) == failed
    assert count.read_text() == "xxx"


def test_a_trainer_that_cannot_start_is_an_error_that_says_what_is_needed(tmp_path: Path) -> None:
    sources = _sources(tmp_path / "src", "raise ModuleNotFoundError(\"No module named 'torch'\")\n")
    with pytest.raises(PreflightError, match=r"No module named 'torch'.*extra 'trainer'"):
        PreflightRunner(tmp_path, *sources, os.environ).run(FILE)
    assert not (tmp_path / "preflight").exists()


def test_a_damaged_record_is_made_anew(tmp_path: Path) -> None:
    sources, digest = _sources(tmp_path / "src", f"print({FINE.render()!r})\n")
    (tmp_path / "preflight").mkdir()
    (tmp_path / "preflight" / f"{FILE.key.cell_id}-rank-0-{digest}.json").write_text("{half")
    assert PreflightRunner(tmp_path, sources, digest, os.environ).run(FILE) == FINE


def test_the_first_and_the_last_stage_of_a_pipeline_are_examined() -> None:
    layout = Parallelism(pp=2, dp_shard=2, schedule=Schedule.ONE_F_ONE_B)
    assert ranks_to_examine(tiny_cell(nodes=4, parallelism=layout)) == (0, 3)
    assert ranks_to_examine(tiny_cell(nodes=4)) == (0,)
