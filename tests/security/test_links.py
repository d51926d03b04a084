"""A link in a run directory never leads what is written elsewhere."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from analysis.export import write_tables
from analysis.figures.figure import write_figures
from sweep.adapters.files.ledger_file import LedgerFile
from sweep.adapters.files.run_directory import RunDir
from sweep.adapters.local.scheduler import LocalScheduler
from sweep.adapters.slurm.commands import SlurmCommands
from sweep.adapters.slurm.submitit_executor import LaunchExecutor
from sweep.core.attempts.ledger import Reopened
from sweep.core.records.layout import LEDGER_FILE
from sweep.core.settings.spec import SlurmSpec
from sweep.files import RunDirError
from tests.analysis import factory
from tests.security.test_compiler_caches import NOBODY, needs_root
from tests.stubs.jobs import key, stub_launch, submission
from tests.sweep.launch.launches import folder, launch
from tests.trainer.cells import cell, cell_file

if TYPE_CHECKING:
    from analysis.table import Table

SECRET = "ssh-ed25519 AAAA\n"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A file outside of the run directory, which nothing may change."""
    made = tmp_path / "authorized_keys"
    made.write_text(SECRET)
    return made


@pytest.fixture
def run(tmp_path: Path) -> Path:
    made = tmp_path / "run"
    made.mkdir()
    return made


def measured_table(tmp_path: Path) -> Table:
    measured = factory.RunDir(tmp_path / "measured")
    measured.measure([0.1] * 20, axes={"nodes": 1})
    return factory.table_of(measured)


def test_a_nodes_log_is_not_written_through_a_link(run: Path, target: Path) -> None:
    made = submission(run, stub_launch("works"))
    folder(made).mkdir(parents=True)
    (folder(made) / "node-0.log").symlink_to(target)
    done = launch(made)
    assert (done.returncode, target.read_text()) == (2, SECRET)
    assert "node-0.log" in done.stderr


@pytest.mark.parametrize("part", ["cells", "repeat-01", "attempt-01"])
def test_an_attempts_folder_is_not_reached_by_a_link(run: Path, tmp_path: Path, part: str) -> None:
    made = submission(run, stub_launch("works"))
    path = folder(made)
    while path.name != part:
        path = path.parent
    (tmp_path / "elsewhere").mkdir()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(tmp_path / "elsewhere")
    assert launch(made).returncode == 2
    with pytest.raises(NotADirectoryError, match="is a link or no folder"):
        RunDir(run).publish_submission(made, [replace(cell_file(cell(gpus=1)), key=key())])
    assert list((tmp_path / "elsewhere").iterdir()) == []


@needs_root
def test_an_attempts_folder_of_another_user_is_not_used(run: Path) -> None:
    made = submission(run, stub_launch("works"))
    folder(made).mkdir(parents=True)
    os.chown(folder(made), NOBODY, NOBODY)
    done = launch(made)
    assert done.returncode == 2
    assert f"belongs to user {NOBODY}" in done.stderr
    assert list(folder(made).iterdir()) == []


def test_the_ledger_is_not_appended_through_a_link(run: Path, target: Path) -> None:
    (run / LEDGER_FILE).symlink_to(target)
    with pytest.raises(OSError, match="is a link or no regular file"):
        LedgerFile(run / LEDGER_FILE).append(Reopened(time=1.0, repeats=()))
    assert target.read_text() == SECRET


def test_a_pipe_in_the_place_of_the_ledger_does_not_hang(run: Path) -> None:
    os.mkfifo(run / LEDGER_FILE)
    with pytest.raises(OSError, match="is a link or no regular file"):
        LedgerFile(run / LEDGER_FILE).append(Reopened(time=1.0, repeats=()))


@pytest.mark.parametrize("name", ["sources", "submissions", "submissions/logs", "requests", "tables", "figures"])
def test_a_run_directory_with_a_linked_folder_is_refused(run: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunDirError, match="is a link or no folder"):
        RunDir(run).create()


@pytest.mark.parametrize("name", ["tables", "figures"])
def test_tables_and_figures_are_not_written_through_a_link(run: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    (run / name).symlink_to(tmp_path / "elsewhere")
    table = measured_table(tmp_path)
    with pytest.raises(NotADirectoryError, match="is a link or no folder"):
        write_tables(table, run) if name == "tables" else write_figures(table, run)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_table_replaces_a_link_in_its_place(run: Path, tmp_path: Path, target: Path) -> None:
    table = measured_table(tmp_path)
    (run / "tables").mkdir()
    csv = run / "tables" / f"{table.sweep.grid}.csv"
    csv.symlink_to(target)
    write_tables(table, run)
    assert (csv.is_symlink(), target.read_text()) == (False, SECRET)


def test_a_job_script_replaces_a_link_in_its_place(run: Path, target: Path) -> None:
    made = submission(run, stub_launch("works"))
    script = run / "submissions" / "logs" / f"{made.name}.sh"
    script.parent.mkdir()
    script.symlink_to(target)
    executor = LaunchExecutor(made, SlurmSpec(), python=sys.executable, commands=SlurmCommands({}))
    executor._write_script("#!/bin/bash\n")
    assert (script.is_symlink(), script.read_text(), target.read_text()) == (False, "#!/bin/bash\n", SECRET)


def test_a_local_launchers_output_is_not_written_through_a_link(run: Path, target: Path) -> None:
    made = submission(run, stub_launch("works"))
    (run / "submissions" / "logs").mkdir()
    (run / "submissions" / "logs" / f"{made.name}.0.0.out").symlink_to(target)
    scheduler = LocalScheduler(run)
    (job,) = scheduler.submit(made)
    report = scheduler.poll([job], since=0.0)[job]
    assert (report.state, target.read_text()) == ("FAILED", SECRET)
    assert "is a link" in report.reason
