"""The ledger as a file of JSON lines: append-only, one writer, tolerant of a torn tail."""

from __future__ import annotations

import contextlib
import gc
import os
from typing import TYPE_CHECKING

from sweep.core.ledger import read_lines, render_event

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from sweep.core.ledger import Event


class LedgerFile:
    """Implements :class:`sweep.ports.Ledger`.

    Args:
        path: The file; it need not exist.
    """

    def __init__(self, path: Path) -> None:
        """Open nothing yet: reading needs no right to write."""
        self._path = path
        self._tail_is_whole = False

    def read(self) -> tuple[Sequence[Event], Sequence[str]]:
        """All events, and what is wrong with the lines that are none."""
        try:
            text = self._path.read_bytes().decode("utf-8", errors="replace")
        except FileNotFoundError:
            return [], []
        # Not splitlines(): a JSON text may hold U+2028 and the like, which are no line ends of the file.
        with _no_collection():
            return read_lines(text.split("\n"))

    def append(self, event: Event) -> None:
        """Write one event; on return it is on disk.

        Raises:
            OSError: If it cannot be written whole; what was there before is untouched.
        """
        line = (render_event(event) + "\n").encode()
        fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            self._mend_tail(fd)
            self._tail_is_whole = False
            _write_all(fd, line)
            os.fsync(fd)
            self._tail_is_whole = True
        finally:
            os.close(fd)

    def _mend_tail(self, fd: int) -> None:
        """End a line that a crash left half-written, so that the next one starts anew; the torn line stays."""
        if self._tail_is_whole:
            return
        with self._path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            if size == 0:
                return
            file.seek(size - 1)
            if file.read(1) != b"\n":
                _write_all(fd, b"\n")


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Objects that all stay need no collector: of a million events it takes a third of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _write_all(fd: int, data: bytes) -> None:
    while data:
        written = os.write(fd, data)
        data = data[written:]
