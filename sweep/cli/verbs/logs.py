"""``logs``: prints the output of an attempt's processes on all its nodes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from sweep.adapters.files.lease import current_holder
from sweep.adapters.files.run_directory import RunDir
from sweep.cli.args import Arguments
from sweep.cli.common import OK, CommandError, cells_named, find_run_dir, read_history, sweep_file_of
from sweep.cli.console import print_error
from sweep.core.attempts.attempt import AttemptKey
from sweep.core.attempts.history import AttemptState
from sweep.core.encoding.message import visible
from sweep.core.records.layout import LEDGER_FILE, LOG_GLOB, SUBMISSION_LOGS_DIR, attempt_dir
from sweep.files import open_regular

_FOLLOW_EVERY_S = 0.5
_PIECE_BYTES = 1 << 20


def main(asked: Arguments) -> int:
    """Print the logs of a cell's attempt."""
    run_dir = find_run_dir(asked)
    if strangers := run_dir.strangers_files():
        print_error(f"{strangers}; run and cancel refuse this run directory.")
    key = _attempt(asked, run_dir)
    reader = _Reader(run_dir, key, is_raw=asked.raw)
    ledger = _Ledger(run_dir, key)
    attempt = ledger.attempt()
    printed = reader.print_new(attempt)
    if not printed and not asked.follow:
        print_error(f"{key} has printed nothing.")
    while asked.follow and attempt is not None and attempt.in_flight and not _is_over_unrecorded(run_dir, key):
        time.sleep(_FOLLOW_EVERY_S)
        attempt = ledger.attempt()
        reader.print_new(attempt)
    reader.print_new(attempt, last=True)
    return OK


def _attempt(asked: Arguments, run_dir: RunDir) -> AttemptKey:
    content = sweep_file_of(run_dir)
    if len(asked.cells) != 1:
        raise CommandError("logs needs one cell: python -m sweep logs CELL. 'python -m sweep status' lists the cells.")
    (cell,) = cells_named(asked.cells, content)
    history, _ = read_history(run_dir)
    past = history.of(cell, asked.repeat)
    if past.last is None:
        raise CommandError(f"cell {cell} has no attempt at repeat {asked.repeat} yet.")
    number = past.last.key.attempt if asked.attempt is None else asked.attempt
    if number not in [attempt.key.attempt for attempt in past.attempts]:
        raise CommandError(f"cell {cell} has no attempt {number}; it has 1 to {past.highest_number}.")
    return AttemptKey(cell_id=cell, repeat=asked.repeat, attempt=number)


def _is_over_unrecorded(run_dir: RunDir, key: AttemptKey) -> bool:
    """True if an attempt's launcher has ended and no process watches the run, so that nobody records the end."""
    launched = run_dir.attempt_file(key)
    return launched is not None and launched.ended_at is not None and current_holder(Path(run_dir.path)) is None


class _Ledger:
    """Follows one attempt in the ledger, which is read again only after it has grown.

    Args:
        run_dir: The run directory.
        key: The attempt.
    """

    def __init__(self, run_dir: RunDir, key: AttemptKey) -> None:
        """Read nothing yet."""
        self._run_dir = run_dir
        self._key = key
        self._size = -1
        self._attempt: AttemptState | None = None

    def attempt(self) -> AttemptState | None:
        """The attempt's present state."""
        size = (Path(self._run_dir.path) / LEDGER_FILE).stat().st_size
        if size != self._size:
            history, _ = read_history(self._run_dir)
            self._size, self._attempt = size, history.attempt(self._key)
        return self._attempt


class _Reader:
    """Prints the new lines in the logs of an attempt, each after ``job`` or the name of its node.

    Args:
        run_dir: The run directory.
        key: The attempt.
        is_raw: True to print control characters as they are.
    """

    def __init__(self, run_dir: RunDir, key: AttemptKey, *, is_raw: bool) -> None:
        """Print nothing yet."""
        self._shown: Callable[[str], str] = str if is_raw else visible
        self._root = Path(run_dir.path)
        self._folder = self._root / attempt_dir(key)
        self._offsets: dict[Path, int] = {}
        self._rests: dict[Path, bytes] = {}

    def print_new(self, attempt: AttemptState | None, *, last: bool = False) -> int:
        """Print whole lines, the last time also a line without an end; return their number."""
        count = 0
        for path, name in self._files(attempt):
            for line in self._new_lines(path, last=last):
                sys.stdout.write(self._shown(f"{name} | {line.decode(errors='replace')}\n"))
                count += 1
        sys.stdout.flush()
        return count

    def _new_lines(self, path: Path, *, last: bool) -> Iterator[bytes]:
        """Whole lines since the last time, read in pieces; a longer line than a piece is several."""
        try:
            file = open_regular(path)
        except OSError as error:
            if path not in self._offsets:
                self._offsets[path] = 0
                yield f"({error.strerror}: not read)".encode()
            return
        with file:
            file.seek(self._offsets.get(path, 0))
            while piece := file.read(_PIECE_BYTES):
                *lines, rest = (self._rests.pop(path, b"") + piece).split(b"\n")
                yield from lines
                if len(rest) >= _PIECE_BYTES:
                    yield rest
                else:
                    self._rests[path] = rest
            self._offsets[path] = file.tell()
        if last and self._rests.get(path):
            yield self._rests.pop(path)

    def _files(self, attempt: AttemptState | None) -> list[tuple[Path, str]]:
        """The log of the job itself (set-up commands, Slurm's message at its end), then those of its nodes."""
        nodes = [
            (path, path.relative_to(self._folder).with_suffix("").as_posix())
            for path in sorted(self._folder.rglob(LOG_GLOB))
        ]
        if attempt is None or attempt.job_id is None:
            return nodes
        # The first is Slurm's file name, the second that of processes on this machine.
        starts = (f"{attempt.submission}-{attempt.job_id}.", f"{attempt.job_id}.")
        own = sorted(path for path in (self._root / SUBMISSION_LOGS_DIR).glob("*") if path.name.startswith(starts))
        return [*((path, "job") for path in own), *nodes]
