"""Runs preflights: starts the trainer on one fake rank as a child process, and keeps its record by cell and sources."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from sweep.adapters.files.sources_snapshot import checked_command
from sweep.core.cells.trainer_settings import SYNTHETIC
from sweep.core.encoding.record import RecordError
from sweep.core.jobs.environment import scrubbed
from sweep.core.records.attempt_record import CellFile
from sweep.core.records.preflight_record import Preflight
from sweep.files import read_text, write_atomically

PREFLIGHT_DIR = "preflight"
_TIMEOUT_S = 600.0


class PreflightError(Exception):
    """The preflight could not be run, so nothing is known about the cell."""


class PreflightRunner:
    """Runs ``python -m trainer --preflight`` once for each cell, rank and snapshot of the sources.

    Args:
        run_dir: The run directory, which keeps the records.
        sources_dir: The snapshot that the jobs will run.
        digest: The snapshot's hash.
        environ: The environment of the child process.
    """

    def __init__(self, run_dir: Path, sources_dir: Path, digest: str, environ: Mapping[str, str]) -> None:
        """Run nothing yet."""
        self._folder = run_dir / PREFLIGHT_DIR
        self._digest = digest
        self._sources_dir = sources_dir
        self._environ = {name: value for name, value in scrubbed(environ).items() if name != "PYTHONPATH"}

    def recorded(self, cell_id: str, rank: int = 0) -> Preflight | None:
        """The record of an earlier preflight of one rank of a cell with these sources; None where there is none."""
        with contextlib.suppress(OSError, RecordError):
            return Preflight.parse(read_text(self._path(cell_id, rank)))
        return None

    def run(self, file: CellFile, rank: int = 0) -> Preflight:
        """The record of one rank of a cell; runs the preflight unless there is one.

        Raises:
            PreflightError: If the trainer cannot be started here (no torch), or prints no record.
        """
        known = self.recorded(file.key.cell_id, rank)
        if known is not None:
            return known
        text = self._run(file, rank)
        try:
            found = Preflight.parse(text)
        except RecordError as error:
            raise PreflightError(f"the preflight of {file.key.cell_id} printed no record: {error}") from error
        if found.problem and file.cell.trainer.data != SYNTHETIC:
            # The token file may cause the problem, and may be mended before the next preflight.
            return found
        self._folder.mkdir(exist_ok=True)
        write_atomically(self._path(file.key.cell_id, rank), text)
        return found

    def _path(self, cell_id: str, rank: int) -> Path:
        return self._folder / f"{cell_id}-rank-{rank}-{self._digest}.json"

    def _run(self, file: CellFile, rank: int) -> str:
        with tempfile.TemporaryDirectory(prefix="preflight-") as folder:
            path = Path(folder) / "cell.json"
            path.write_text(file.render())
            options = ["-m", "trainer", "--preflight", "--cell", str(path), "--json", "--rank", str(rank)]
            command = checked_command(sys.executable, self._sources_dir, self._digest, *options)
            try:
                done = subprocess.run(
                    command,
                    env=self._environ,
                    cwd=folder,
                    capture_output=True,
                    text=True,
                    timeout=_TIMEOUT_S,
                    check=False,
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                raise PreflightError(f"the preflight of {file.key.cell_id} did not run: {error}") from error
        if not done.stdout.strip():
            last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1].rstrip(".")
            raise PreflightError(
                f"the preflight of {file.key.cell_id} failed: {last}. It needs torch here: install the extra "
                "'trainer', or leave preflight=true out."
            )
        return done.stdout
