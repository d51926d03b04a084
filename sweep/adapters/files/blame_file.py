"""Evidence against a cluster's nodes as a file of JSON lines, shared by all runs of a user."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from sweep.core.attempts.blame import Blame
from sweep.core.jobs.submission import safe_name
from sweep.files import read_lines


def blame_path(cluster: str, environ: Mapping[str, str]) -> Path:
    """Where the evidence of one cluster is kept: ``$XDG_STATE_HOME/scaling-sweep/blame-<cluster>.jsonl``."""
    given = environ.get("XDG_STATE_HOME", "")
    # The XDG specification: a path that is not absolute is to be ignored.
    state = Path(given) if Path(given).is_absolute() else Path(environ.get("HOME", "~")).expanduser() / ".local/state"
    return state / "scaling-sweep" / f"blame-{safe_name(cluster)}.jsonl"


class BlameFile:
    """Implements :class:`sweep.ports.BlameBook`: append-only, any number of writers, only for this user's eyes.

    Args:
        path: The file; neither it nor its folder need exist.
    """

    def __init__(self, path: Path) -> None:
        """Open nothing yet."""
        self._path = path

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    def read(self) -> Sequence[Blame]:
        """All that was ever written and can be read; damaged lines are passed over."""
        try:
            lines = read_lines(self._path)
        except OSError:
            return []
        found = []
        for line in lines:
            with contextlib.suppress(ValueError):
                found.append(Blame.parse(line.decode("utf-8", errors="replace")))
        return found

    def add(self, blames: Iterable[Blame]) -> None:
        """Append a line for each; a file that cannot be written is no error, only lost evidence."""
        # The line end comes first too: after a line that another writer left half-written, this one starts anew.
        lines = [f"\n{blame.render()}\n".encode() for blame in blames]
        if not lines:
            return
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                for line in lines:
                    # One write: with O_APPEND the lines of several processes do not mix.
                    os.write(fd, line)
            finally:
                os.close(fd)
