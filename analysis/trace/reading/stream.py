"""Reads a trace from its file piece by piece: its events in lists of a few thousand, and all that stands beside them.

No more than a piece of the file is in memory at a time. A piece ends where an event ends. Such a place is looked for
from the piece's end and tried: if the piece up to there reads as a list of events, it is one, for no list has two ends.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec

from analysis.trace.reading.events import Event

_PIECE_BYTES = 1 << 20
_MOST_BYTES = 1 << 28
"""The most that one event, or one value beside the events, may take."""
_GZIP = b"\x1f\x8b"
_BLANK = b" \t\r\n"
_MOST_BLANK = 256
"""Between two events there are no more blanks than this, or no piece is made to end there."""
_TRIES = 8
_FOREIGN = "is no trace of torch.profiler"

_decode_events = msgspec.json.Decoder(list[Event]).decode
_value_end = json.JSONDecoder().raw_decode
_offset = re.compile(r"\(byte (\d+)\)")


class TraceError(Exception):
    """A file is no trace, or a damaged one; the message names the file, and no number may be taken from it."""


class _Problem(Exception):
    """The text of a file is wrong; the message says how, after the file's name."""


class TraceFile:
    """A trace's file: iterate over its lists of events, then read what stood beside them.

    Attributes:
        path: The file, gzip or plain.
        beside: Every value of the file but the events, by its name: complete after the last event.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.beside: dict[str, Any] = {}

    def __iter__(self) -> Iterator[list[Event]]:
        """The events, in the order of the file.

        Raises:
            TraceError: If the file cannot be read, is cut or damaged, or is no trace.
        """
        self.beside = {}
        try:
            with self.path.open("rb") as raw:
                is_gzip = raw.peek(2)[:2] == _GZIP
                yield from self._read(_Buffer(cast("BinaryIO", gzip.GzipFile(fileobj=raw)) if is_gzip else raw))
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise self.error(f"is cut or damaged: {error}") from error
        except OSError as error:
            raise self.error(f"cannot be read: {error.strerror or error}") from error
        except RecursionError as error:
            raise self.error(f"{_FOREIGN}: its values are nested too deep") from error
        except _Problem as error:
            raise self.error(str(error)) from error

    def error(self, what: str) -> TraceError:
        """An error that names the file and says what to do."""
        return TraceError(f"{self.path} {what}. Leave it out, or profile again.")

    def _read(self, buffer: _Buffer) -> Iterator[list[Event]]:
        if buffer.next_sign() != b"{":
            raise _Problem(f"{_FOREIGN}: it does not begin as a JSON object")
        has_events = False
        sign = buffer.next_sign()
        while sign == b'"':
            name = buffer.value(behind=1)
            if buffer.next_sign() != b":":
                raise _Problem(f"is cut or damaged after the name {name!r}")
            if name == "traceEvents":
                has_events = True
                yield from buffer.events()
            else:
                self.beside[name] = buffer.value()
            sign = buffer.next_sign()
            if sign == b",":
                sign = buffer.next_sign()
        if sign != b"}" or buffer.next_sign():
            raise _Problem("is cut or damaged: its JSON object does not end where the file does")
        if not has_events:
            raise _Problem(f"{_FOREIGN}: it has no traceEvents")


class _Buffer:
    """The text of a file from where it has been read to, as far as it is in memory."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._text = b""
        self._at = 0

    def next_sign(self) -> bytes:
        """Read the next byte that is not blank; nothing at the end of the file."""
        while True:
            rest = self._text[self._at : self._at + _MOST_BLANK].lstrip(_BLANK)
            if rest:
                self._at += len(self._text[self._at : self._at + _MOST_BLANK]) - len(rest) + 1
                return rest[:1]
            self._at = min(self._at + _MOST_BLANK, len(self._text))
            if self._at == len(self._text) and not self._fill():
                return b""

    def value(self, behind: int = 0) -> Any:
        """Read any JSON value, which begins so many bytes before here."""
        self._at -= behind
        while True:
            # One byte is one character in Latin-1, so that places in the text are places in the file.
            text = self._text[self._at :].decode("latin-1")
            start = len(text) - len(text.lstrip())
            try:
                _, end = _value_end(text, start)
            except json.JSONDecodeError as error:
                is_inside = error.pos < len(text) - 8 and not error.msg.startswith("Unterminated")
                if is_inside or not self._fill():
                    raise _Problem(f"is cut or damaged beside its events: {error.msg}") from error
                continue
            if end == len(text) and self._fill():
                continue  # a number may go on
            value = self._text[self._at + start : self._at + end].decode(errors="replace")
            self._at += end
            return json.loads(value)

    def events(self) -> Iterator[list[Event]]:
        """Read the list of events, piece by piece."""
        if self.next_sign() != b"[":
            raise _Problem(f"{_FOREIGN}: its traceEvents are no list")
        is_over = False
        while not is_over:
            has_more = self._fill()
            found, is_over = self._piece(has_more)
            yield found
            found = []  # what was read may go before more is

    def _piece(self, has_more: bool) -> tuple[list[Event], bool]:
        """The events up to the last that is whole; whether the list ends with it."""
        ends = _ends(self._text, self._at) if has_more else iter([(len(self._text), len(self._text))])
        for _, (end, following) in zip(range(_TRIES), ends, strict=False):
            text = b"".join((b"[", memoryview(self._text)[self._at : end], b"]" if has_more else b""))
            try:
                found, is_over = _decode_events(text), not has_more
            except msgspec.ValidationError as error:
                raise _Problem(f"holds an event that torch.profiler does not write: {error}") from error
            except msgspec.DecodeError as error:
                offset = int(match[1]) if (match := _offset.search(str(error))) else len(text)
                if "trailing characters" not in str(error):
                    if offset < len(text) - 1:
                        raise _Problem(f"is damaged between its events: {error}") from error
                    continue  # it was no end of an event, but text in a name
                # The byte that is named stands behind the list's end, and behind blanks.
                length = text.rindex(b"]", 0, offset - 1) + 1
                found, is_over = _decode_events(text[:length]), True
                following = self._at + length - 1
            self._at = following
            return found, is_over
        if not has_more:
            raise _Problem("is cut: its list of events does not end")
        return [], False

    def _fill(self) -> bool:
        """Read another piece, larger where much is still unread; False at the end of the file."""
        unread = self._text[self._at :]
        if len(unread) > _MOST_BYTES:
            raise _Problem(f"{_FOREIGN}: one value of it takes over {_MOST_BYTES >> 20} MiB")
        more = self._file.read(max(_PIECE_BYTES, len(unread)))
        self._text, self._at = unread + more, 0
        return bool(more)


def _ends(text: bytes, start: int) -> Iterator[tuple[int, int]]:
    """Where events may end and the next one begins, the last first: ``}``, a comma, ``{``, blanks between them."""
    following = len(text)
    while (following := text.rfind(b"{", start, following)) >= 0:
        before = text[max(start, following - _MOST_BLANK) : following]
        bare = before.rstrip(_BLANK)
        if bare.endswith(b",") and (bare := bare[:-1].rstrip(_BLANK)).endswith(b"}"):
            yield following - len(before) + len(bare), following
