"""Serves several verbs: exit codes, consoles, the configuration, and the search for a run directory."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from sweep.adapters.files.run_reader import RunReader, find_run_dirs
from sweep.cli.console import console_of
from sweep.core.attempts.history import History, fold
from sweep.core.records.layout import LEDGER_FILE
from sweep.core.settings.spec import ClusterSpec, SchedulerKind, SweepSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rich.console import Console

    from sweep.adapters.files.run_directory import RunDir
    from sweep.cli.args import Arguments
    from sweep.core.records.sweep_file import SweepFile

OK, GAVE_UP, BAD_USAGE, NOT_WATCHED, INTERRUPTED = 0, 1, 2, 3, 130
RUNS = Path("runs")


class CommandError(Exception):
    """A command cannot be carried out; the message fits on one screen and says what to change."""


def load_spec(asked: Arguments) -> SweepSpec:
    """The composed configuration of a command."""
    from sweep.config import load

    return load(asked.overrides, config_dir=asked.config_dir, environ=os.environ)


def consoles() -> tuple[Console, Console]:
    """Standard output and standard error."""
    return console_of(sys.stdout), console_of(sys.stderr)


def print_notes(console: Console, notes: Iterable[str]) -> None:
    """Print a line for each note to the user."""
    for note in notes:
        from rich.markup import escape

        console.print(f"[yellow]note:[/yellow] {escape(note)}", highlight=False, soft_wrap=True)


_SBATCH_VARIABLES = ("ACCOUNT", "PARTITION", "QOS", "RESERVATION", "CONSTRAINT")


def sbatch_notes(cluster: ClusterSpec, environ: Mapping[str, str]) -> list[str]:
    """Notes on variables that sbatch would obey and this tool does not, since they would override the configuration."""
    if cluster.scheduler is not SchedulerKind.SLURM:
        return []
    found = {name: environ[f"SBATCH_{name}"] for name in _SBATCH_VARIABLES if environ.get(f"SBATCH_{name}")}
    return [
        f"SBATCH_{name}={value} is set and not used: cluster.slurm.{name.lower()} decides, and is "
        f"{getattr(cluster.slurm, name.lower())!r}. Set that, or unset the variable."
        for name, value in found.items()
        if value != getattr(cluster.slurm, name.lower())
    ]


def baseline_notes(content: SweepFile) -> list[str]:
    """A note where no cell is the baseline that the series names; else none."""
    from sweep.core.grids.series import is_baseline

    if not content.series.baseline or any(is_baseline(point.axes, content.series) for point in content.points):
        return []
    named = ", ".join(f"{name}={value}" for name, value in content.series.baseline.items())
    return [
        f"no cell is the series' baseline ({named}): speed-up and efficiency will be blank. "
        "Include it, or name another with series.baseline.AXIS=VALUE."
    ]


def find_run_dir(asked: Arguments) -> RunDir:
    """The run directory of a command: ``run_dir=``, that of the grid, or the only one below ``runs/``.

    Raises:
        CommandError: If there is none, or if there are several and the command names none of them.
    """
    given = [word.partition("=")[2] for word in asked.overrides if word.startswith("run_dir=")]
    others = [word for word in asked.overrides if not word.startswith("run_dir=")]
    if given:
        path = given[-1]
        # `run` reads it with Hydra's grammar, which needs quotes around some characters.
        is_quoted = len(path) > 1 and path[0] == path[-1] and path[0] in "'\""
        return _existing(Path(path[1:-1] if is_quoted else path))
    if others:
        return _existing(Path(load_spec(asked).run_dir))
    found = find_run_dirs(RUNS)
    if not found:
        raise CommandError(f"there is no run directory below {RUNS.absolute()}. Give run_dir=DIR, or +grid=NAME.")
    if len(found) > 1:
        listed = "\n".join(f"  {shlex.quote(f'run_dir={path}')}" for path in found)
        raise CommandError(f"there are {len(found)} run directories; give one of them (the latest first):\n{listed}")
    return _existing(found[0])


def _existing(path: Path) -> RunDir:
    from sweep.adapters.files.run_directory import RunDir

    run_dir = RunDir(path)
    if not run_dir.exists():
        raise CommandError(
            f"{path} is no run directory: it holds no sweep.json. Start the sweep first, or give another."
        )
    run_dir.apply_access()
    return run_dir


def sweep_file_of(run_dir: RunDir) -> SweepFile:
    """The content of an existing run directory's ``sweep.json``."""
    content = run_dir.sweep_file()
    if content is None:
        raise CommandError(f"{run_dir.path} holds no sweep.json any more.")
    return content


def read_history(run_dir: RunReader) -> tuple[History, list[str]]:
    """The history of a run directory, and the problems of its ledger; writes nothing."""
    path = Path(run_dir.path) / LEDGER_FILE
    if not path.exists():  # a plan of a run that has not begun
        return fold([]), []
    from sweep.adapters.files.ledger_file import LedgerFile

    events, problems = LedgerFile(path).read()
    history = fold(events)
    return history, [*problems, *history.problems]


def cells_named(beginnings: Sequence[str], content: SweepFile) -> list[str]:
    """The cell ids that begin with the given digits.

    Raises:
        CommandError: If no cell begins so, or more than one.
    """
    found = []
    for beginning in beginnings:
        fitting = [name for name in content.cells if name.startswith(beginning)]
        if len(fitting) != 1:
            what = "fits no cell" if not fitting else f"fits {len(fitting)} cells: {', '.join(fitting[:5])}"
            raise CommandError(f"{beginning!r} {what} of this run. 'python -m sweep status' lists its cells.")
        found.append(fitting[0])
    return found
