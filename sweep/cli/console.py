"""Prints to pipes and files, without styles and without rich, which takes a quarter of the time of plan's imports."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from typing import TextIO


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
        print(text, file=self._stream)

    def print_table(self, header: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[str]) -> None:
        """Print rows in columns as wide as their widest cell; those named in ``right`` are aligned to the right."""
        lines = [header, *rows]
        widths = [max(len(line[place]) for line in lines) for place in range(len(header))]
        for line in lines:
            cells = zip(line, widths, header, strict=True)
            text = "  ".join(f"{cell:{'>' if name in right else '<'}{width}}" for cell, width, name in cells)
            print(text.rstrip(), file=self._stream)
