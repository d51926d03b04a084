"""Makes text of others safe in the formats that tables are written in: it is shown there and never read as markup."""

from __future__ import annotations

import html as _html
import re

from sweep.core.encoding.message import visible

_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    **{char: f"\\{char}" for char in "&%$#_{}"},
}


def one_line(text: str) -> str:
    """The text without line breaks and runs of blanks, other control characters made visible."""
    return visible(" ".join(text.split()))


def markdown(text: str) -> str:
    """The text for Markdown, in which it would break a table, or be taken for markup, a link or an image."""
    return re.sub(r"([\\|`*<]|(?<=])[(\[:])", r"\\\1", one_line(text))


def html(text: str) -> str:
    """The text for HTML, between tags or in a quoted attribute."""
    return _html.escape(one_line(text))


def latex(text: str) -> str:
    """The text for LaTeX, in a paragraph or a table; there it runs no command and ends no row."""
    return "".join(_LATEX.get(char, char) for char in one_line(text))
