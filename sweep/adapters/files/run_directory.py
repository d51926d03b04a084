"""Reading and atomic publishing in a run directory: a file that exists is complete."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import stat
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from sweep.core.encoding.record import RecordError, parse_object, render
from sweep.core.jobs.claim import Claim, claim_file
from sweep.core.jobs.submission import Submission, submission_file
from sweep.core.records.attempt_file import AttemptFile
from sweep.core.records.cell_file import CellFile
from sweep.core.records.error_file import parse_error
from sweep.core.records.layout import (
    ATTEMPT_FILE,
    AWAY_FILE,
    CELL_FILE,
    ERROR_GLOB,
    FIGURES_DIR,
    PROGRESS_FILE,
    RESULT_FILE,
    SUBMISSION_LOGS_DIR,
    SUBMISSIONS_DIR,
    SWEEP_FILE,
    TABLES_DIR,
    attempt_dir,
)
from sweep.core.records.progress import Progress
from sweep.core.records.result import Result
from sweep.core.records.sweep_file import SweepFile
from sweep.files import write_atomically
from sweep.launch.claim import read, take

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from sweep.core.attempts.attempt import AttemptKey, RankError
    from sweep.core.cells.cell import Cell

REQUESTS_DIR = "requests"
PRIVATE_UMASK = 0o077
"""Of a process that has no run directory yet: what it makes is its user's alone."""
_PROBE_BYTES = 8192
_RESTART = re.compile(r"^restart-(\d+)$")
_T = TypeVar("_T")


class RunDirError(Exception):
    """A run directory cannot be used; the message says why and what to change."""


class RunDir:
    """Implements :class:`sweep.ports.RunDirectory` on a (shared) file system.

    Args:
        path: The run directory; :meth:`create` makes it.
    """

    def __init__(self, path: Path) -> None:
        """Touch nothing."""
        self._path = path.absolute()

    @property
    def path(self) -> str:
        """Absolute path."""
        return str(self._path)

    def create(self) -> None:
        """Make the directory, private to the user, and show that it can be written.

        Raises:
            RunDirError: If it cannot be made or written.
        """
        try:
            self._path.mkdir(parents=True, exist_ok=True, mode=0o700)
            for name in (SUBMISSIONS_DIR, SUBMISSION_LOGS_DIR, REQUESTS_DIR, TABLES_DIR, FIGURES_DIR):
                (self._path / name).mkdir(exist_ok=True)
            probe = self._path / f".probe-{uuid.uuid4().hex}"
            # Not an empty one: a full disk still takes names.
            write_atomically(probe, " " * _PROBE_BYTES)
            probe.unlink()
        except OSError as error:
            raise RunDirError(
                f"the run directory {self._path} cannot be written ({error.strerror or error}). "
                "Give another with run_dir=..., or mend its permissions or the space on its disk."
            ) from error

    def apply_access(self) -> list[str]:
        """Let all that is made from now on, by jobs too (they inherit it), be private, or its group's as it is.

        One that is closed to others (750, 2770) was given to its group, which may do below it what it may in it. One
        that anybody may enter (755) was just made so.

        Returns:
            What people should know of a directory that anybody may enter.
        """
        try:
            mode = stat.S_IMODE(self._path.stat().st_mode)
        except OSError:
            return []  # who uses it next says what is wrong with it
        if not mode & stat.S_IRWXO:
            os.umask(PRIVATE_UMASK & ~(mode & stat.S_IRWXG))
            return []
        os.umask(PRIVATE_UMASK)
        return [
            f"anybody may look into {self._path} (mode {mode:o}), which existed before. What is made in it is yours "
            "alone all the same; chmod 700 closes it, chmod 750 shares it with your group."
        ]

    def exists(self) -> bool:
        """Whether there is a ``sweep.json``."""
        return (self._path / SWEEP_FILE).exists()

    def sweep_file(self) -> SweepFile | None:
        """The content of ``sweep.json``; None where there is none yet.

        Raises:
            RunDirError: If it is damaged or of another schema version.
            PermissionError: If it is somebody else's.
        """
        try:
            return SweepFile.parse((self._path / SWEEP_FILE).read_text())
        except FileNotFoundError:
            return None
        except PermissionError:
            raise  # nothing is damaged
        except (OSError, RecordError) as error:
            raise RunDirError(
                f"{self._path / SWEEP_FILE}: {error}. The results below it are untouched; give another run_dir=..., or "
                f"move {SWEEP_FILE} away to have it made anew from the grid."
            ) from error

    def publish_sweep_file(self, content: SweepFile) -> None:
        """Replace ``sweep.json``, unless it already says just that."""
        text = content.render()
        with contextlib.suppress(OSError):
            if (self._path / SWEEP_FILE).read_text() == text:
                return
        write_atomically(self._path / SWEEP_FILE, text)

    def publish_submission(self, submission: Submission, cells: Iterable[CellFile]) -> None:
        """Write the cell file of every attempt and then the submission's file, all on disk on return."""
        for cell in cells:
            folder = self._path / attempt_dir(cell.key)
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(folder / CELL_FILE, cell.render())
        write_atomically(self._path / submission.file, submission.render())

    def submission_names(self) -> Sequence[str]:
        """Names of all submissions ever written, oldest first."""
        return sorted(path.stem for path in (self._path / SUBMISSIONS_DIR).glob("*.json"))

    def submission(self, name: str) -> Submission:
        """One submission.

        Raises:
            RecordError: If its file is damaged.
            OSError: If it cannot be read.
        """
        return Submission.parse((self._path / submission_file(name)).read_text())

    def job_that_began(self, name: str) -> str | None:
        """The job that runs a submission (the id that its tasks share), by its own claim.

        None where none has begun, and empty where none ever will: the submission was withdrawn.

        Raises:
            RecordError: If the claim is damaged.
            OSError: If it cannot be read.
        """
        held = _claim(name, lambda: read(self._path / claim_file(name)))
        return None if held is None else held.job_id

    def withdraw(self, name: str) -> str:
        """See to it that no job begins a submission from now on; gives the job that has begun before, empty: none.

        Raises:
            RecordError: If the claim that is there is damaged.
            OSError: If it can be neither written nor read.
        """
        nobodys = Claim(job_id="", time=time.time(), host=socket.gethostname())
        return _claim(name, lambda: take(self._path / claim_file(name), nobodys)).job_id

    def result(self, key: AttemptKey) -> tuple[Result | None, str]:
        """A valid result of this very attempt (of its latest restart that has one), and what is wrong with others."""
        problem = ""
        for folder in self._restarts(key):
            try:
                result = Result.parse((folder / RESULT_FILE).read_text(), expected=key)
                result.check_against(self._cell(key))
                return result, ""
            except FileNotFoundError:
                continue
            except (OSError, RecordError) as error:
                problem = problem or f"{folder.name}/{RESULT_FILE}: {error}"
        return None, problem

    def _cell(self, key: AttemptKey) -> Cell:
        return CellFile.parse((self._path / attempt_dir(key) / CELL_FILE).read_text()).cell

    def errors(self, key: AttemptKey) -> Sequence[RankError]:
        """Error files of an attempt's latest restart; damaged ones are left out."""
        found = []
        for path in sorted(self._restarts(key)[0].glob(ERROR_GLOB)):
            with contextlib.suppress(OSError, RecordError):
                found.append(parse_error(path.read_text()))
        return found

    def attempt_file(self, key: AttemptKey) -> AttemptFile | None:
        """What the launcher wrote; None where it has not, or not readably."""
        return _read(self._restarts(key)[0] / ATTEMPT_FILE, AttemptFile.parse)

    def earlier_runs(self, key: AttemptKey) -> Sequence[AttemptFile]:
        """What the launchers of an attempt's earlier runs under the same job id wrote, the first first."""
        read = (_read(folder / ATTEMPT_FILE, AttemptFile.parse) for folder in self._restarts(key)[1:])
        return sorted((run for run in read if run is not None), key=lambda run: run.restart)

    def last_sign_of_life(self, key: AttemptKey, restart: int) -> float | None:
        """Unix time at which a run of an attempt last wrote a file, by the file system's clock; None: it never did."""
        times = []
        with contextlib.suppress(OSError):
            folder = self._path / attempt_dir(key) / (f"restart-{restart}" if restart else "")
            # Not the cell file, which was written before the job was submitted.
            times = [path.stat().st_mtime for path in folder.iterdir() if path.is_file() and path.name != CELL_FILE]
        return max(times, default=None)

    def progress(self, key: AttemptKey) -> Progress | None:
        """The step a running trainer is at; None where it has not said."""
        return _read(self._restarts(key)[0] / PROGRESS_FILE, Progress.parse)

    def publish_away(self, since: float | None, message: str) -> None:
        """Say since when the scheduler has not been reached; None: it is. What cannot be written is no error."""
        path = self._path / AWAY_FILE
        with contextlib.suppress(OSError):
            if since is None:
                path.unlink(missing_ok=True)
            else:
                write_atomically(path, render("scheduler-away", {"since": since, "words": message}))

    def away(self) -> tuple[float, str] | None:
        """Since when the scheduler has not been reached, and its words; None where it is, as far as anybody knows."""
        return _read(self._path / AWAY_FILE, _parse_away)

    def cancel_requests(self) -> Sequence[tuple[str, Sequence[str]]]:
        """Requests of ``sweep cancel`` made while another process holds the run: their names and cell ids."""
        found = []
        for path in sorted((self._path / REQUESTS_DIR).glob("cancel-*.json")):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                found.append((path.name, [str(cell) for cell in json.loads(path.read_text())["cells"]]))
        return found

    def request_cancel(self, cells: Sequence[str]) -> str:
        """Ask the process that holds the run to cancel cells; gives the request's name."""
        name = f"cancel-{uuid.uuid4().hex}.json"
        write_atomically(self._path / REQUESTS_DIR / name, json.dumps({"cells": list(cells)}))
        return name

    def drop_cancel_request(self, name: str) -> None:
        """Take a request off the pile once it was acted on."""
        (self._path / REQUESTS_DIR / name).unlink(missing_ok=True)

    def is_request_pending(self, name: str) -> bool:
        """Whether nobody has acted on a request yet."""
        return (self._path / REQUESTS_DIR / name).exists()

    def _restarts(self, key: AttemptKey) -> list[Path]:
        """Folders of the attempt's runs under one job id, the latest first; the attempt's own last."""
        own = self._path / attempt_dir(key)
        try:
            numbered = [(int(match[1]), path) for path in own.iterdir() if (match := _RESTART.match(path.name))]
        except OSError:
            numbered = []
        return [*(path for _, path in sorted(numbered, reverse=True)), own]


def _read(path: Path, parse: Callable[[str], _T]) -> _T | None:
    try:
        return parse(path.read_text())
    except (OSError, RecordError):
        return None


def _claim(name: str, get: Callable[[], _T]) -> _T:
    try:
        return get()
    except RecordError as error:
        raise RecordError(f"{claim_file(name)}: {error}. Delete it if no job of that name is there") from error


def _parse_away(text: str) -> tuple[float, str]:
    data = parse_object(text, "scheduler-away")
    since, words = data.get("since"), data.get("words")
    if not isinstance(since, float) or not isinstance(words, str):
        raise RecordError(f"{AWAY_FILE} is damaged")
    return since, words


def find_run_dirs(root: Path) -> list[Path]:
    """Run directories directly below a folder, the most recently changed first."""
    found = [path.parent for path in root.glob(f"*/{SWEEP_FILE}")]
    return sorted(found, key=_last_change, reverse=True)


def _last_change(run_dir: Path) -> float:
    times = [0.0]
    for name in (SWEEP_FILE, "ledger.jsonl"):
        with contextlib.suppress(OSError):
            times.append((run_dir / name).stat().st_mtime)
    return max(times)
