"""Makes text fit to be given away: escaped for a table's format, searched for secrets, without names and paths."""

from __future__ import annotations

import html as _html
import re
from collections.abc import Iterable, Mapping

from sweep.core.encoding.hostlist import expand_hostlist
from sweep.core.encoding.message import visible
from sweep.core.jobs.secrets import SecretFinder, secrets_in

# The same everywhere, so that they tell nothing about anybody.
_COMMON = frozenset({"", "root", "localhost", "127.0.0.1"})
_PATH = re.compile(
    r"(?<![\w.:/<~-])/(?!(?:usr|bin|sbin|lib|lib64|etc|proc|sys|dev|opt)/)((?:[\w.@%+=-]+/)+)(?=[\w.@%+=-]|\b|$)"
)


class Anonymiser:
    """Replaces what tells who ran a sweep and where, each name by the same substitute in all texts given to it.

    Absolute paths lose their folders (``/home/me/x/a.json`` becomes ``/path-1/a.json``) but for those of the system.

    Args:
        users: Names of users.
        hosts: Names of hosts, with or without their domain; ``gpu[01-03]`` stands for three.
    """

    def __init__(self, *, users: Iterable[str], hosts: Iterable[str]) -> None:
        """Number the names in their order, so that the same records give the same text."""
        short = (host.partition(".")[0] for entry in hosts for host in expand_hostlist(entry))
        self._names = {name: f"host-{number}" for number, name in enumerate(_distinct(short), start=1)}
        self._names |= {name: f"user-{number}" for number, name in enumerate(_distinct(users), start=1)}
        self._folders: dict[str, str] = {}
        longest_first = sorted(map(re.escape, self._names), key=len, reverse=True)
        # A host takes its domain with it, and `gpu[01-03]` stands for the hosts whose names begin so.
        stems = {re.escape(name.rstrip("0123456789")) for name, shown in self._names.items() if shown[:4] == "host"}
        self._pattern = re.compile(
            rf"(?<![A-Za-z0-9])(?:(?P<list>(?:{'|'.join(sorted(stems)) or '(?!)'})\[[\d,-]+\])"
            rf"|(?P<name>{'|'.join(longest_first) or '(?!)'})(?P<domain>(?:\.[A-Za-z][\w-]*)*))(?![A-Za-z0-9])"
        )

    def text(self, text: str) -> str:
        """The text with every path and name replaced."""
        return self._pattern.sub(self._name, _PATH.sub(self._folder, text))

    def _folder(self, match: re.Match[str]) -> str:
        return self._folders.setdefault(match[1], f"/path-{len(self._folders) + 1}/")

    def _name(self, match: re.Match[str]) -> str:
        if match["list"]:
            return ",".join(self._pattern.sub(self._name, host) for host in expand_hostlist(match["list"]))
        shown = self._names[match["name"]]
        return shown if shown.startswith("host") else shown + match["domain"]


def _distinct(names: Iterable[str]) -> list[str]:
    return [name for name in dict.fromkeys(names) if name not in _COMMON]


def secrets_of(text: str, environ: Mapping[str, str]) -> list[str]:
    """The secrets in a text that is to be given away, each as ``line 3: a GitHub token``; their text is not shown."""
    finder = SecretFinder(environ)
    found = [(text.count("\n", 0, secret.start) + 1, secret.shown) for secret in finder.find(text)]
    lines = enumerate(text.splitlines(), start=1)
    found += [(number, f"what {name} is set to") for number, line in lines for name in secrets_in(line)]
    return [f"line {number}: {shown}" for number, shown in sorted(found)]


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
