"""Reads and publishes the records of a run directory; a file that exists is complete."""

from __future__ import annotations

import contextlib
import socket
import stat
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from sweep.adapters.files.run_reader import RunReader
from sweep.core.attempts.attempt import AttemptKey, ErrorClass, RankError
from sweep.core.attempts.error_text import STORAGE_ERRORS
from sweep.core.cells.cell import Cell
from sweep.core.encoding.record import RecordError
from sweep.core.jobs.submission import Claim, Submission, claim_file, submission_file
from sweep.core.records.attempt_record import CellFile, parse_error
from sweep.core.records.layout import (
    AWAY_FILE,
    CELL_FILE,
    ERROR_GLOB,
    FIGURES_DIR,
    RESULT_FILE,
    SOURCES_DIR,
    STORAGE_MARK,
    SUBMISSION_LOGS_DIR,
    SUBMISSIONS_DIR,
    SWEEP_FILE,
    TABLES_DIR,
    attempt_dir,
    restart_dir,
)
from sweep.core.records.progress import CancelRequest, SchedulerAway
from sweep.core.records.result import Result, results_by_precedence
from sweep.core.records.sweep_file import SweepFile
from sweep.files import RunDirError, make_folder, read_text, write_atomically
from sweep.launch.claim import read, take

REQUESTS_DIR = "requests"
_PROBE_BYTES = 1 << 16
_T = TypeVar("_T")


class RunDir(RunReader):
    """Implements :class:`sweep.ports.RunDirectory` on a (shared) file system.

    Args:
        path: The run directory; :meth:`create` makes it.
    """

    def create(self) -> None:
        """Make the directory, private to the user, and show that it can be written.

        Raises:
            RunDirError: If it cannot be made or written.
        """
        try:
            self._path.mkdir(parents=True, exist_ok=True, mode=0o700)
            is_shared = bool(self._mode() & stat.S_IWGRP)
            for name in (SOURCES_DIR, SUBMISSIONS_DIR, SUBMISSION_LOGS_DIR):
                make_folder(self._path, name, mode=0o1777)
            for name in (REQUESTS_DIR, TABLES_DIR, FIGURES_DIR):
                make_folder(self._path, name)
            for name in (".", SOURCES_DIR, SUBMISSIONS_DIR, SUBMISSION_LOGS_DIR) if is_shared else ():
                _pin_entries(self._path / name)
            probe = self._path / f".probe-{uuid.uuid4().hex}"
            # Not an empty one: a full disk still takes names.
            write_atomically(probe, " " * _PROBE_BYTES)
            probe.unlink()
        except OSError as error:
            raise RunDirError(
                f"the run directory {self._path} cannot be written ({error.filename}: {error.strerror or error}). "
                "Give another with run_dir=..., or mend its permissions or the space on its disk."
            ) from error

    def publish_sweep_file(self, content: SweepFile) -> None:
        """Replace ``sweep.json``, unless it already says just that."""
        text = content.render()
        with contextlib.suppress(OSError):
            if read_text(self._path / SWEEP_FILE) == text:
                return
        try:
            write_atomically(self._path / SWEEP_FILE, text)
        except PermissionError as error:
            raise RunDirError(
                f"{self._path / SWEEP_FILE} cannot be replaced ({error.strerror}): it has other cells or settings than "
                "this command, and only who wrote it can change it. Give their command, or another run_dir=..."
            ) from error

    def publish_submission(self, submission: Submission, cells: Iterable[CellFile]) -> None:
        """Write the cell file of every attempt and then the submission's file, all on disk on return."""
        for cell in cells:
            folder = make_folder(self._path, attempt_dir(cell.key), mode=0o755)
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
        return Submission.parse(read_text(self._path / submission_file(name)))

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
        """The result of this attempt that counts, and what is wrong with its files where none does."""
        paths = self._paths(key, RESULT_FILE).items()
        files = {number: _text(path) for number, path in paths if path is not None}
        present = {number: file for number, file in files.items() if file is not None}
        if not present:
            return None, ""
        try:
            cell = self._cell(key)
        except (OSError, RecordError) as error:
            return None, f"{CELL_FILE}: {error}"
        results, problems = results_by_precedence(key, cell, present)
        if results:
            return next(iter(results.values())), ""
        latest, problem = next(iter(problems.items()))
        return None, f"{restart_dir(attempt_dir(key), latest).name}/{RESULT_FILE}: {problem}"

    def _cell(self, key: AttemptKey) -> Cell:
        return CellFile.parse(read_text(self._path / attempt_dir(key) / CELL_FILE)).cell

    def errors(self, key: AttemptKey) -> Sequence[RankError]:
        """Error files of an attempt's latest restart; damaged ones are left out.

        The mark of a launcher that could write nothing counts as one.
        """
        found: list[RankError] = []
        latest = restart_dir(attempt_dir(key), next(iter(self._paths(key, ERROR_GLOB))))
        for path in sorted((self._path / latest).glob(ERROR_GLOB)):
            with contextlib.suppress(OSError, RecordError):
                found.append(parse_error(read_text(path)))
        for path in (self._path / latest).glob("storage-*"):
            with contextlib.suppress(OSError):
                found += _marked(path.name, path.stat().st_mtime)
        return found

    def last_sign_of_life(self, key: AttemptKey, restart: int) -> float | None:
        """Unix time at which a run of an attempt last wrote a file, by the file system's clock; None: it never did."""
        times = []
        with contextlib.suppress(OSError):
            folder = self._path / restart_dir(attempt_dir(key), restart)
            # Not the cell file, which was written before the job was submitted.
            times = [path.stat().st_mtime for path in folder.iterdir() if path.is_file() and path.name != CELL_FILE]
        return max(times, default=None)

    def publish_away(self, since: float | None, message: str) -> None:
        """Say since when the scheduler has not been reached; None: it is. What cannot be written is no error."""
        path = self._path / AWAY_FILE
        with contextlib.suppress(OSError):
            if since is None:
                path.unlink(missing_ok=True)
            else:
                write_atomically(path, SchedulerAway(since=since, words=message).render())

    def cancel_requests(self) -> Sequence[tuple[str, Sequence[str]]]:
        """Requests of ``sweep cancel`` made while another process holds the run: their names and cell ids."""
        found = []
        for path in sorted((self._path / REQUESTS_DIR).glob("cancel-*.json")):
            with contextlib.suppress(OSError, RecordError):
                found.append((path.name, list(CancelRequest.parse(read_text(path)).cells)))
        return found

    def request_cancel(self, cells: Sequence[str]) -> str:
        """Ask the process that holds the run to cancel cells; gives the request's name."""
        name = f"cancel-{uuid.uuid4().hex}.json"
        write_atomically(self._path / REQUESTS_DIR / name, CancelRequest(cells=tuple(cells)).render())
        return name

    def drop_cancel_request(self, name: str) -> None:
        """Take a request off the pile once it was acted on."""
        (self._path / REQUESTS_DIR / name).unlink(missing_ok=True)

    def is_request_pending(self, name: str) -> bool:
        """True if no process has acted on a request yet."""
        return (self._path / REQUESTS_DIR / name).exists()


def _pin_entries(folder: Path) -> None:
    """Let only who made a file in the folder rename it, so that members of a group cannot replace each other's code."""
    mode = stat.S_IMODE(folder.stat().st_mode)
    if mode & stat.S_ISVTX:
        return
    try:
        folder.chmod(mode | stat.S_ISVTX)
    except PermissionError as error:
        raise RunDirError(
            f"members of its group may rename what lies in {folder} (mode {mode:o}), and so replace the code of your "
            "jobs. Ask its owner for chmod +t, or give another run_dir=..."
        ) from error


def _claim(name: str, get: Callable[[], _T]) -> _T:
    try:
        return get()
    except RecordError as error:
        raise RecordError(f"{claim_file(name)}: {error}. Delete it if no job of that name is there") from error


def _marked(name: str, time: float) -> list[RankError]:
    """The error that a mark's name tells of; none where it is no mark."""
    mark = STORAGE_MARK.fullmatch(name)
    words = "" if mark is None else STORAGE_ERRORS.get(int(mark["number"]), "")
    if mark is None or not words:
        return []
    message, node = f"its records could not be written: {words}", int(mark["node"])
    return [RankError(rank=None, node_rank=node, time=time, error_class=ErrorClass.STORAGE, message=message)]


def _text(path: Path) -> str | OSError | None:
    """Text of a file, or why it cannot be read; None where there is none."""
    try:
        return read_text(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        return error
