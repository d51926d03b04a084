"""Words for people that depend on a number."""

from __future__ import annotations


def counted(count: int, what: str) -> str:
    """A count and what is counted, in the plural unless it is one: ``1 cell``, ``1,000 cells``."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def hours(value: float | None) -> str:
    """GPU-hours to two decimals, or four where that would be next to nothing: ``1,024.00``, ``0.0048``."""
    value = value or 0.0
    return f"{value:,.4f}" if 0 < abs(value) < 0.1 else f"{value:,.2f}"
