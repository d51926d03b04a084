"""What is said of a configuration that cannot be used."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class ConfigError(ValueError):
    """A configuration cannot be used; the message fits on one screen and says what to change."""


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
