"""What is said of a configuration that cannot be used."""

from __future__ import annotations

import difflib
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class ConfigError(ValueError):
    """A configuration cannot be used; the message fits on one screen and says what to change."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``Did you mean X or Y? ``, or nothing where no known word is near."""
    near = nearest(word, known)
    return f"Did you mean {' or '.join(near)}? " if near else ""


def nearest(word: str, known: Iterable[str]) -> list[str]:
    """The known words that are about as near as the nearest, at most three; else those that begin with the word."""
    names = sorted(known)
    scores = {name: difflib.SequenceMatcher(None, word.lower(), name.lower()).ratio() for name in names}
    best = max(scores.values(), default=0.0)
    near = sorted((name for name in names if scores[name] >= max(0.6, best - 0.08)), key=lambda name: -scores[name])
    return (near or [name for name in names if word and name.startswith(word)])[:3]


def listed(names: Iterable[str]) -> str:
    """Names for the end of a sentence."""
    return ", ".join(sorted(names)) or "none"


@contextmanager
def explained(where: object = None) -> Iterator[None]:
    """Turns what is wrong inside into a ConfigError, which names the file (or whatever) that it is wrong in."""
    try:
        yield
    except ValueError as error:
        raise ConfigError(f"{where}: {error}" if where else str(error)) from error
