"""Makes text of others safe to print: a terminal shows its control characters and obeys none."""

from __future__ import annotations

import re

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
