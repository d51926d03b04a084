"""The ledger as a file of JSON lines: append-only, one writer, tolerant of a torn tail."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sweep.core.attempts.ledger import (
    EVENT_NAMES,
    LINE_HEAD,
    Ended,
    Event,
    Reserved,
    parse_lines,
    render_event,
)
from sweep.core.encoding.names import JOB_NAME, LATEST_TIME
from sweep.files import RunDirError, open_to_append, read_lines

_SHORT_BYTES, _MOST_BRACKETS = 400, 50
"""A line as short cannot nest too deep to be written again; the evidence of eight failed ranks has 50 brackets."""


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
        """All events, and what is wrong with the lines that are none.

        Raises:
            RunDirError: If the file is no regular one, or cannot be read.
            PermissionError: If it is somebody else's.
        """
        try:
            return parse_lines(read_lines(self._path), _fast_readers())
        except FileNotFoundError:
            return [], []
        except PermissionError:
            raise  # nothing is damaged
        except OSError as error:
            raise RunDirError(f"{self._path} cannot be read: {error.strerror}. Put the real one there.") from error

    def append(self, event: Event) -> None:
        """Write one event; on return it is on disk.

        Raises:
            OSError: If it cannot be written whole; what was there before is untouched.
        """
        line = (render_event(event) + "\n").encode()
        fd = open_to_append(self._path)
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


def _fast_readers() -> Mapping[bytes, Callable[[bytes], Event]]:
    """Readers for :func:`sweep.core.attempts.ledger.parse_lines` that decode a line in C, straight to its event."""
    import msgspec  # takes as long to import as ten of our modules, and a run that has not begun has no ledger

    readers: dict[bytes, Callable[[bytes], Any]] = {
        LINE_HEAD + name.encode(): msgspec.json.Decoder(kind).decode for kind, name in EVENT_NAMES.items()
    }
    for kind, wrap in ((Reserved, _checked), (Ended, _shallow)):
        name = LINE_HEAD + EVENT_NAMES[kind].encode()
        readers[name] = wrap(readers[name])
    return readers


def _shallow(decode: Callable[[bytes], Ended]) -> Callable[[bytes], Ended]:
    """Leave a long line with many brackets to the other reader, which limits how deep its evidence is."""

    def decode_shallow(line: bytes) -> Ended:
        if len(line) > _SHORT_BYTES and line.count(b"[") + line.count(b"{") > _MOST_BRACKETS:
            raise ValueError(line)
        return decode(line)

    return decode_shallow


def _checked(decode: Callable[[bytes], Reserved]) -> Callable[[bytes], Reserved]:
    """Check the name and the time, of which the decoder knows the type only; those of other events lead nowhere."""
    is_job_name, latest = JOB_NAME.match, LATEST_TIME

    def decode_and_check(line: bytes) -> Reserved:
        event = decode(line)
        if is_job_name(event.submission) and 0.0 <= event.time < latest:
            return event
        raise ValueError(line)

    return decode_and_check


def _write_all(fd: int, data: bytes) -> None:
    while data:
        written = os.write(fd, data)
        data = data[written:]
