"""What is said of a configuration that cannot be used."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class ConfigError(ValueError):
    """A configuration cannot be used; the message fits on one screen and says what to change."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``Did you mean X or Y? ``, or nothing where no known word is near."""
    near = difflib.get_close_matches(word, sorted(known), n=3, cutoff=0.6)
    return f"Did you mean {' or '.join(near)}? " if near else ""


def listed(names: Iterable[str]) -> str:
    """Names for the end of a sentence."""
    return ", ".join(sorted(names)) or "none"
