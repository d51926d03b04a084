"""Words for people that depend on a number."""

from __future__ import annotations


def counted(count: int, what: str) -> str:
    """A count and what is counted, in the plural unless it is one: ``1 cell``, ``1,000 cells``."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"
