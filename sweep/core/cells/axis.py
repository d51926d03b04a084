"""The values that an axis can have."""

from __future__ import annotations

AxisValue = str | int | float | bool | None


def require_positive(name: str, value: object) -> None:
    """Refuse what is no positive integer.

    Raises:
        ValueError: Naming the field.
    """
    if type(value) is not int or value < 1:
        raise ValueError(f"{name}={value!r} is not a positive integer. Give a whole number >= 1.")
