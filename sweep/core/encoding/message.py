"""Numbers as messages show them."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """A count with its noun, in the plural unless it is one: ``1 cell``, ``1,000 cells``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def hours_text(value: float | None) -> str:
    """GPU-hours to two decimals, or four below 0.1: ``1,024.00``, ``0.0048``."""
    value = value or 0.0
    return f"{value:,.4f}" if 0 < abs(value) < 0.1 else f"{value:,.2f}"
