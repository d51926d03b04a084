"""Reads how far a run is: what it consists of, what its launchers and trainers last wrote, and who may look into it."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from sweep.core.attempts.attempt import AttemptKey
from sweep.core.encoding.record import RecordError
from sweep.core.records.attempt_record import AttemptFile
from sweep.core.records.layout import (
    ACTED_ON,
    ATTEMPT_FILE,
    AWAY_FILE,
    LEDGER_FILE,
    PROGRESS_FILE,
    SWEEP_FILE,
    attempt_path,
    restarts_in,
)
from sweep.core.records.progress import Progress, SchedulerAway
from sweep.core.records.sweep_file import SweepFile
from sweep.files import RunDirError, read_text, strangers_files, umask_for

_T = TypeVar("_T")


class RunReader:
    """Implements :class:`sweep.ports.RunProgress` on a (shared) file system, for commands that write nothing.

    Args:
        path: The run directory; it need not exist.
    """

    def __init__(self, path: Path) -> None:
        """Touch nothing."""
        self._path = path.absolute()

    @property
    def path(self) -> str:
        """Absolute path."""
        return str(self._path)

    def apply_access(self) -> list[str]:
        """Set the umask, which jobs inherit: what is made from now on is private, or the group's if the directory is.

        A directory that is closed to others (750, 2770) was given to its group: the group keeps the same rights below
        it. One that anybody may enter (755) was left at the default: what is made in it is private.

        Returns:
            What people should know of a directory that anybody may enter.

        Raises:
            RunDirError: If anybody may write it.
        """
        try:
            mode = self._mode()
        except OSError:
            return []  # who uses it next says what is wrong with it
        os.umask(umask_for(self._path))
        if not mode & stat.S_IRWXO:
            return []
        return [
            f"anybody may look into {self._path} (mode {mode:o}), which existed before. What is made in it is yours "
            "alone all the same; chmod 700 closes it, chmod 750 shares it with your group."
        ]

    def refuse_strangers_files(self) -> None:
        """Refuse to act on a run directory that holds files of another user, unless its group is to write in it.

        Raises:
            RunDirError: If there are any; the message names some.
        """
        if found := self.strangers_files():
            raise RunDirError(
                f"{found}, who could decide what runs as you. "
                "status, plan and python -m analysis RUN_DIR --out DIR read it all the same; to go on with it, its "
                "owner shares it with your group (chmod 2770), or you give run_dir=... of your own."
            )

    def strangers_files(self) -> str:
        """Name some files of another user; empty where there are none, or the group is to write in the directory.

        Raises:
            RunDirError: If the directory cannot be looked into.
        """
        try:
            return strangers_files(self._path, ACTED_ON)
        except OSError as error:
            raise RunDirError(f"{self._path} cannot be looked into: {error.strerror}.") from error

    def _mode(self) -> int:
        mode = stat.S_IMODE(self._path.stat().st_mode)
        if mode & stat.S_IWOTH:
            raise RunDirError(
                f"anybody may write {self._path} (mode {mode:o}), and so replace what your jobs run and wrote. "
                "chmod o-w closes it to others; give another run_dir=... where you do not trust what it holds."
            )
        return mode

    def exists(self) -> bool:
        """True if there is a ``sweep.json``."""
        return (self._path / SWEEP_FILE).exists()

    def sweep_file(self) -> SweepFile | None:
        """The content of ``sweep.json``; None where there is none yet.

        Raises:
            RunDirError: If it is damaged or of another schema version.
            PermissionError: If it is somebody else's.
        """
        try:
            return SweepFile.parse(read_text(self._path / SWEEP_FILE))
        except FileNotFoundError:
            return None
        except PermissionError:
            raise  # nothing is damaged
        except (OSError, RecordError) as error:
            raise RunDirError(
                f"{self._path / SWEEP_FILE}: {error}. The results below it are untouched; give another run_dir=..., or "
                f"move {SWEEP_FILE} away to have it made anew from the grid."
            ) from error

    def attempt_file(self, key: AttemptKey) -> AttemptFile | None:
        """The launcher's record of an attempt's latest run; None where there is none that can be read."""
        return self.launches(key)[0]

    def launches(self, key: AttemptKey) -> tuple[AttemptFile | None, tuple[AttemptFile, ...]]:
        """The launcher's record of an attempt's latest run, and those of its earlier runs, oldest first."""
        paths = self._paths(key, ATTEMPT_FILE)
        latest, *earlier = (None if path is None else read_record(path, AttemptFile.parse) for path in paths.values())
        return latest, tuple(sorted(filter(None, earlier), key=lambda run: run.restart))

    def progress(self, key: AttemptKey) -> Progress | None:
        """The step a running trainer is at; None where it has not said."""
        latest = next(iter(self._paths(key, PROGRESS_FILE).values()))
        return None if latest is None else read_record(latest, Progress.parse)

    def away(self) -> tuple[float, str] | None:
        """Since when the scheduler has not been reached, and its words; None where it is, as far as anybody knows."""
        found = read_record(self._path / AWAY_FILE, SchedulerAway.parse)
        return None if found is None else (found.since, found.words)

    def _paths(self, key: AttemptKey, name: str) -> dict[int, Path | None]:
        """Paths of a file in all runs of an attempt's job by restart, the latest first; None where it is not there.

        Ten thousand attempts are looked at together: one listing of the attempt's folder replaces opening the file.
        """
        own = f"{self._path}/{attempt_path(key)}"
        try:
            names = os.listdir(own)  # noqa: PTH208  # makes no paths
        except FileNotFoundError:
            return {0: None}
        except OSError:
            names = [name]  # opening the file says why it cannot be read
        return {
            number: Path(own, f"restart-{number}", name) if number else Path(own, name) if name in names else None
            for number in reversed(restarts_in(names))
        }


def read_record(path: Path, parse: Callable[[str], _T]) -> _T | None:
    """A record; None where there is none that can be read."""
    try:
        return parse(read_text(path))
    except (OSError, RecordError):
        return None


def find_run_dirs(root: Path) -> list[Path]:
    """Run directories directly below a folder, the most recently changed first."""
    found = [path.parent for path in root.glob(f"*/{SWEEP_FILE}")]
    return sorted(found, key=_last_change, reverse=True)


def _last_change(run_dir: Path) -> float:
    times = [0.0]
    for name in (SWEEP_FILE, LEDGER_FILE):
        with contextlib.suppress(OSError):
            times.append((run_dir / name).stat().st_mtime)
    return max(times)
