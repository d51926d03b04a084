"""The error of a configuration that cannot be used, and the parts of its messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class ConfigError(ValueError):
    """A configuration cannot be used; the message fits on one screen and says what to change."""


def listed(names: Iterable[str]) -> str:
    """Names, sorted, for the end of a sentence; ``none`` where there are none."""
    return ", ".join(sorted(names)) or "none"


@contextmanager
def explained(where: object = None) -> Iterator[None]:
    """Raise every ValueError of the block as a ConfigError that names its place, such as a file."""
    try:
        yield
    except ValueError as error:
        raise ConfigError(f"{where}: {error}" if where else str(error)) from error
