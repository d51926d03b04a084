"""Prints to terminals with rich, and to pipes and files without styles; control characters in a text are made visible.

Rich takes a quarter of the time of plan's imports, so that what goes to a pipe does without it.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, cast

from sweep.core.encoding.message import visible

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from typing import TextIO

    from rich.console import Console


def console_of(stream: TextIO) -> Console:
    """The console of standard output or standard error."""
    if not stream.isatty():
        return cast("Console", PlainConsole(stream))
    from rich.console import Console as RichConsole

    class TerminalConsole(RichConsole):
        def print(self, *texts: object, **options: Any) -> None:
            super().print(*(visible(text) if isinstance(text, str) else text for text in texts), **options)

    return TerminalConsole(file=stream)


def print_error(text: str) -> None:
    """Print one message on standard error."""
    print(visible(text), file=sys.stderr)


def print_json(value: object, *, indent: int | None = None) -> None:
    """Print one JSON object on standard output; JSON escapes all control characters but DEL."""
    print(json.dumps(value, indent=indent).replace("\x7f", "\\u007f"))


class PlainConsole:
    """The part of ``rich.console.Console`` that the command line uses, for a stream that is no terminal.

    Args:
        stream: Standard output or standard error.
    """

    is_terminal = False

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def print(self, text: str, *, markup: bool = True, highlight: bool = False, soft_wrap: bool = True) -> None:
        """Print a text without its styles; lines are never wrapped."""
        if markup and "[" in text:
            from rich.text import Text

            text = Text.from_markup(text).plain
        print(visible(text), file=self._stream)

    def print_table(self, header: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[str]) -> None:
        """Print rows in columns as wide as their widest cell; those named in ``right`` are aligned to the right."""
        lines = [header, *rows]
        widths = [max(len(line[place]) for line in lines) for place in range(len(header))]
        for line in lines:
            cells = zip(line, widths, header, strict=True)
            text = "  ".join(f"{cell:{'>' if name in right else '<'}{width}}" for cell, width, name in cells)
            print(text.rstrip(), file=self._stream)
