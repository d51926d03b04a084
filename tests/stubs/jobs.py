"""Submissions whose jobs run a stub instead of the trainer."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import psutil

from sweep.adapters.files.sources_snapshot import snapshot
from sweep.core.attempts.attempt import AttemptKey
from sweep.core.jobs.environment import hash_sources
from sweep.core.jobs.node_command import MARKER
from sweep.core.jobs.submission import Submission
from sweep.core.settings.spec import LaunchSpec, Runner
from tests.fakes import submission_of

STUBS = Path(__file__).parent
CELL = "89c35e1f02ab77d4"


def key(attempt: int = 1, *, cell_id: str = CELL) -> AttemptKey:
    return AttemptKey(cell_id=cell_id, repeat=1, attempt=attempt)


def stub_launch(name: str, *arguments: str, runner: Runner = Runner.DIRECT) -> LaunchSpec:
    """The launch of a stub by its path, since a job sees the snapshot and not the tests."""
    return LaunchSpec(runner=runner, entry=(str(STUBS / f"{name}.py"), *arguments), stop_grace_s=3.0)


def submission(
    run_dir: Path,
    launch: LaunchSpec,
    *,
    name: str = "stub",
    tasks: tuple[AttemptKey, ...] = (key(),),
    nodes: int = 1,
    gpus_per_node: int = 1,
    walltime_min: int = 5,
) -> Submission:
    """A submission with its file, its attempts' folders and a snapshot of the real sources."""
    sources_dir, sources_hash = snapshot(run_dir)
    made = submission_of(
        tasks,
        name=name,
        run_dir=str(run_dir),
        created_at=time.time(),
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        walltime_min=walltime_min,
        sources_dir=str(sources_dir),
        sources_hash=sources_hash,
        launch=launch,
        provenance={"git_commit": "abc"},
    )
    return publish(made)


def hash_of(sources: Path) -> str:
    """Hash of a folder with sources of a test's own."""
    files = [path for path in sources.rglob("*") if path.is_file()]
    return hash_sources((path.relative_to(sources).as_posix(), path.read_bytes()) for path in files)


def publish(made: Submission) -> Submission:
    path = Path(made.run_dir) / made.file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(made.render())
    return made


def altered(made: Submission, **changes: object) -> Submission:
    """The submission with some fields changed, published anew."""
    return publish(replace(made, **changes))  # type: ignore[arg-type]  # a test's own keywords


def processes_under(folder: Path) -> list[psutil.Process]:
    """Living processes with the folder in their command line or their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() == psutil.STATUS_ZOMBIE or process.pid == psutil.Process().pid:
                continue
            text = [*process.cmdline(), process.environ().get("PYTHONPATH", "") if MARKER in process.environ() else ""]
        except psutil.Error:
            continue
        if any(str(folder) in word for word in text):
            found.append(process)
    return found
