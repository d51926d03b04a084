"""``logs CELL``: what an attempt's nodes printed, and before it the job itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from sweep.adapters.files.ledger_file import LedgerFile
from sweep.adapters.files.run_directory import RunDir
from sweep.cli.main import main
from sweep.core.attempts.attempt import AttemptKey
from sweep.core.attempts.ledger import Reserved, Submitted
from sweep.core.cells.cell import cell_id
from sweep.core.records.attempt_record import AttemptFile
from sweep.core.records.layout import LEDGER_FILE, attempt_dir
from tests.fakes import tiny_cell, weak_content


@pytest.fixture
def run(tmp_path: Path) -> tuple[Path, str]:
    """A run of one attempt, task 1 of an array; gives its folder and its cell."""
    cell = tiny_cell()
    made = RunDir(tmp_path / "run")
    made.create()
    made.publish_sweep_file(weak_content({cell_id(cell): cell}))
    key = AttemptKey(cell_id=cell_id(cell), repeat=1, attempt=1)
    other = AttemptKey(cell_id="0" * 16, repeat=1, attempt=1)
    ledger = LedgerFile(tmp_path / "run" / LEDGER_FILE)
    ledger.append(Reserved(time=1.0, submission="weak-x", tasks=(other, key), gpu_hours=1.0, gpus=1))
    ledger.append(Submitted(time=2.0, submission="weak-x", jobs=("42_0", "42_1")))
    (tmp_path / "run" / attempt_dir(key)).mkdir(parents=True)
    return tmp_path / "run", key.cell_id


def test_output_of_the_job_from_before_its_launcher_comes_first(
    run: tuple[Path, str], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, cell = run
    logs = folder / "submissions" / "logs"
    (logs / "weak-x-42_1.log").write_text("module: command not found\n")
    (logs / "weak-x-42_0.log").write_text("another task's\n")
    (logs / "weak-x.sh").write_text("the script\n")
    assert main(["logs", cell, f"run_dir={folder}"]) == 0
    assert capsys.readouterr().out == "job | module: command not found\n"
    (folder / attempt_dir(AttemptKey(cell_id=cell, repeat=1, attempt=1)) / "node-0.log").write_text("[rank0]: hello\n")
    assert main(["logs", cell, f"run_dir={folder}"]) == 0
    assert capsys.readouterr().out == "job | module: command not found\nnode-0 | [rank0]: hello\n"


def test_an_attempt_that_printed_nothing_says_so(run: tuple[Path, str], capsys: pytest.CaptureFixture[str]) -> None:
    folder, cell = run
    assert main(["logs", cell, f"run_dir={folder}"]) == 0
    printed = capsys.readouterr()
    assert printed.out == ""
    assert f"{cell}/1/1 has printed nothing" in printed.err


def test_following_an_unwatched_attempt_ends_with_its_launcher(
    run: tuple[Path, str], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, cell = run
    key = AttemptKey(cell_id=cell, repeat=1, attempt=1)
    ended = AttemptFile(
        key=key, job_id="42_1", restart=0, hosts=("n1",), pid=1, started_at=1.0, ended_at=2.0, exit_code=0
    )
    (folder / attempt_dir(key) / "attempt.json").write_text(ended.render())
    (folder / attempt_dir(key) / "node-0.log").write_text("hello\nno line end")
    assert main(["logs", cell, "--follow", f"run_dir={folder}"]) == 0
    assert capsys.readouterr().out == "node-0 | hello\nnode-0 | no line end\n"
