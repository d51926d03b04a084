"""The known names that a mistyped one may stand for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

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
