"""``logs``: what the processes of an attempt printed, on all its nodes."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from sweep.cli.common import OK, CommandError, cells_named, find_run_dir, sweep_file_of
from sweep.cli.wiring import read_history
from sweep.core.attempt import AttemptKey
from sweep.core.record import LOG_GLOB, SUBMISSION_LOGS_DIR, attempt_dir

if TYPE_CHECKING:
    from sweep.adapters.run_dir import RunDir
    from sweep.cli.args import Arguments

_FOLLOW_EVERY_S = 0.5


def main(asked: Arguments) -> int:
    """Print the logs of a cell's attempt."""
    run_dir = find_run_dir(asked)
    key = _attempt(asked, run_dir)
    folder = Path(run_dir.path, attempt_dir(key))
    reader = _Reader(folder)
    printed = reader.print_new()
    if not printed and not asked.follow:
        early = sorted(Path(run_dir.path, SUBMISSION_LOGS_DIR).glob("*"))
        where = f" What jobs printed before that is in {early[0].parent}." if early else ""
        print(f"{key} has printed nothing.{where}", file=sys.stderr)
    while asked.follow and not _is_over(run_dir, key):
        time.sleep(_FOLLOW_EVERY_S)
        reader.print_new()
    reader.print_new(last=True)
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


def _is_over(run_dir: RunDir, key: AttemptKey) -> bool:
    history, _ = read_history(run_dir)
    attempt = history.attempt(key)
    return attempt is None or not attempt.in_flight


class _Reader:
    """Prints what is new in the log files below a folder, each line after its node's name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offsets: dict[Path, int] = {}
        self._rests: dict[Path, bytes] = {}

    def print_new(self, *, last: bool = False) -> int:
        """Print whole lines (at the last time, what is left too); gives their number."""
        count = 0
        for path in sorted(self._folder.rglob(LOG_GLOB)):
            with path.open("rb") as file:
                file.seek(self._offsets.get(path, 0))
                data = self._rests.get(path, b"") + file.read()
                self._offsets[path] = file.tell()
            *lines, self._rests[path] = data.split(b"\n")
            if last and self._rests[path]:
                lines.append(self._rests.pop(path))
            name = path.relative_to(self._folder).with_suffix("").as_posix()
            for line in lines:
                sys.stdout.write(f"{name} | {line.decode(errors='replace')}\n")
            count += len(lines)
        sys.stdout.flush()
        return count
