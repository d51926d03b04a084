"""Slurm's commands as shell scripts on PATH, whose answers a test sets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sweep.adapters.slurm.commands import SlurmCommands
from sweep.adapters.slurm.scheduler import SlurmScheduler
from sweep.core.jobs.submission import Submission
from sweep.core.settings.spec import SlurmSpec
from tests.fakes import submission_of

RUN_DIR = Path("/runs/a|b")
NOW = 1795970834.0
DOWN = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"

# Each call: its arguments and its environment go to a log; then the answer of this very call, or the ordinary one.
_FAKE = """#!/bin/bash
n=$(cat {folder}/{name}.count 2>/dev/null || echo 0); n=$((n + 1)); echo $n > {folder}/{name}.count
printf '%s\\n' "$*" >> {folder}/{name}.calls
env > {folder}/{name}.env
answer={folder}/{name}.$n; [ -e $answer.sh ] || answer={folder}/{name}.else
[ -e $answer.sh ] && . $answer.sh
exit 0
"""


@dataclass(frozen=True, kw_only=True)
class FakeSlurm:
    """Commands on PATH that answer as they are told."""

    folder: Path

    def answers(
        self, name: str, *, out: str = "", err: str = "", code: int = 0, sleep_s: float = 0, call: int = 0
    ) -> None:
        """What a command does: at its nth call, or at every call without an answer of its own."""
        files = {stream: self.folder / f"{name}.{call or 'else'}.{stream}" for stream in ("out", "err")}
        files["out"].write_text(out)
        files["err"].write_text(err + "\n" if err else "")
        lines = [
            f"sleep {sleep_s} & echo $! > {self.folder}/child; wait" if sleep_s else ":",
            f"cat {files['out']}",
            f"cat {files['err']} >&2",
            f"exit {code}",
        ]
        (self.folder / f"{name}.{call or 'else'}.sh").write_text("\n".join(lines))

    def calls(self, name: str) -> list[str]:
        log = self.folder / f"{name}.calls"
        return log.read_text().splitlines() if log.exists() else []

    def environment(self, name: str) -> dict[str, str]:
        lines = (self.folder / f"{name}.env").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)

    def commands(self, *, timeout_s: float = 20.0, **environ: str) -> SlurmCommands:
        path = f"{self.folder}:/usr/bin:/bin"
        return SlurmCommands({"PATH": path, **environ}, timeout_s=timeout_s, backoff_s=0.001)

    def scheduler(
        self, spec: SlurmSpec | None = None, *, run_dir: Path = RUN_DIR, timeout_s: float = 20.0, **environ: str
    ) -> SlurmScheduler:
        return SlurmScheduler(
            spec or SlurmSpec(), run_dir, user="me", commands=self.commands(timeout_s=timeout_s, **environ)
        )


def fake_slurm(folder: Path) -> FakeSlurm:
    """Put the commands into a folder."""
    for name in ("sbatch", "squeue", "sacct", "scancel"):
        (folder / name).write_text(_FAKE.format(folder=folder, name=name))
        (folder / name).chmod(0o755)
    return FakeSlurm(folder=folder)


def submission(tmp_path: Path, tasks: int = 1) -> Submission:
    return submission_of(tasks, name="grid-3f2a", run_dir=str(tmp_path / "run"), created_at=NOW)
