"""Launchers that tests start, and what they leave behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from sweep.adapters.files.sources_snapshot import checked_command
from sweep.core.attempts.attempt import RankError
from sweep.core.records.attempt_record import AttemptFile, parse_error
from sweep.core.records.layout import attempt_dir
from tests.commands import wait_for

if TYPE_CHECKING:
    from sweep.core.jobs.submission import Submission


def command(made: Submission, *options: str) -> list[str]:
    return [sys.executable, "-m", "sweep.launch", "--submission", str(Path(made.run_dir) / made.file), *options]


def checked(made: Submission, *options: str) -> list[str]:
    """The same as a scheduler starts it: the snapshot is checked first."""
    python, *launcher = command(made, *(options or place()))
    return checked_command(python, made.sources_dir, made.sources_hash, *launcher)


def place(*, node: int = 0, hosts: str = "127.0.0.1", restart: int = 0) -> list[str]:
    return ["--node-rank", str(node), "--hosts", hosts, "--job-id", "job.0", "--restart", str(restart)]


def launch(made: Submission, *options: str, **environ: str) -> subprocess.CompletedProcess[str]:
    options = options or tuple(place())
    return subprocess.run(
        checked(made, *options), env={**os.environ, **environ}, capture_output=True, text=True, timeout=240, check=False
    )


def folder(made: Submission) -> Path:
    return Path(made.run_dir) / attempt_dir(made.tasks[0])


def attempt_file(where: Path) -> AttemptFile:
    return AttemptFile.parse((where / "attempt.json").read_text())


def error_of(where: Path, node: int = 0) -> RankError:
    return parse_error((where / f"error-node-{node}.json").read_text())


def wait_ready(where: Path) -> None:
    """Until a stub that hangs says that it runs."""
    wait_for(lambda: any(where.glob("ready-*")), 120, f"a rank is ready in {where}")
