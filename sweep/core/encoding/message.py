"""Parts of messages: counts, the names that a mistyped one may stand for, and text of others made safe to print."""

from __future__ import annotations

import re
from collections.abc import Iterable


def counted(count: int, noun: str) -> str:
    """A count with its noun, in the plural unless it is one: ``1 cell``, ``1,000 cells``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def hours_text(value: float | None) -> str:
    """GPU-hours to two decimals, or four below 0.1: ``1,024.00``, ``0.0048``."""
    value = value or 0.0
    return f"{value:,.4f}" if 0 < abs(value) < 0.1 else f"{value:,.2f}"


_LEAST_RATIO = 0.6
_LARGEST_GAP = 0.08
"""Names that score lower than the nearest by more than this are no candidates."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``Did you mean X or Y? ``, or nothing where no known name is near."""
    near = nearest(word, known)
    return f"Did you mean {' or '.join(near)}? " if near else ""


def nearest(word: str, known: Iterable[str]) -> list[str]:
    """The known names about as near as the nearest, at most three; else those that begin with the word."""
    import difflib  # only a mistake needs it

    names = sorted(known)
    scores = {name: difflib.SequenceMatcher(None, word.lower(), name.lower()).ratio() for name in names}
    least = max(_LEAST_RATIO, max(scores.values(), default=0.0) - _LARGEST_GAP)
    near = sorted((name for name in names if scores[name] >= least), key=lambda name: -scores[name])
    return (near or [name for name in names if word and name.startswith(word)])[:3]


_HIDDEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 but tab and newline, DEL, C1: terminals obey sequences that begin so
    r"\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"  # what reorders a line, breaks it or has no width
    r"\ud800-\udfff\U000e0000-\U000e007f]"  # surrogates, which no encoding takes, and tags
)


def visible(text: str) -> str:
    r"""The text with each control character as its escape sequence (``\x1b``); newlines and tabs stay.

    Reasons, names and logs come from programs and people whom nobody has checked. A control character in them could
    change what the terminal shows, its title or its clipboard, and one for bidirectional text the order of a line.
    """
    return text if text.isascii() and text.isprintable() else _HIDDEN.sub(_escape, text)


def visible_line(text: str) -> str:
    """The text as :func:`visible`, its newlines and tabs as escape sequences, too: for a cell of a table."""
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


def _escape(found: re.Match[str]) -> str:
    return ascii(found[0])[1:-1]
