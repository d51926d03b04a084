"""Reads the overrides of a command line, and composes the root with one grid, one cluster and one trainer file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from sweep.config.errors import ConfigError
from sweep.config.hydra_api import GrammarError, compose_files, parse_override
from sweep.config.keys import CHOICES
from sweep.config.library import PRIMARY, Library, unreadable
from sweep.config.secrets import refuse_secrets
from sweep.core.cells.axes import AXES
from sweep.core.encoding.frozen import dataclass

_MOST_SHOWN = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Assignment:
    """One override: the key, its value as typed, and as Hydra reads it."""

    key: str
    text: str
    value: Any


def parse(overrides: Sequence[str]) -> list[Assignment]:
    """Read overrides with Hydra's grammar.

    Raises:
        ConfigError: If one cannot be read, or is of a kind that has no meaning here.
    """
    return [_parse(text) for text in overrides]


def _parse(text: str) -> Assignment:
    if "=" not in text and not text.startswith("~"):
        raise ConfigError(f"{text!r} is not KEY=VALUE. Say for example +grid={text.lstrip('+') or 'weak_scaling'}.")
    try:
        override = parse_override(text)
    except GrammarError as error:
        raise ConfigError(_unparsable(text, error)) from error
    if override.is_delete():
        raise ConfigError(f"{text}: nothing can be deleted. Give the key another value, for example null.")
    if override.is_sweep_override():
        # A range may have a billion values.
        values = ",".join(islice(override.sweep_string_iterator(), _MOST_SHOWN)) if "shuffle" not in text else "1,2,4"
        raise ConfigError(f"{text}: a list of values is written in brackets: {override.key_or_group}=[{values}].")
    if override.package is not None or not override.key_or_group:
        raise ConfigError(f"{text!r} is not KEY=VALUE.")
    return Assignment(key=override.key_or_group, text=text.partition("=")[2], value=override.value())


def _unparsable(text: str, error: GrammarError) -> str:
    lines = [f"The override {text!r} cannot be read: {error}.", f"  {text}"]
    if error.column is not None:
        lines.append(f"  {' ' * error.column}^")
    lines.append(
        "Lists are [1,2,4], mappings {a: 1}; text with other signs needs quotes inside: \"exclude=['tp > 2']\"."
    )
    return "\n".join(lines)


def compose(library: Library, choices: Mapping[str, str], assignments: Sequence[Assignment]) -> dict[str, Any]:
    """The composed configuration as plain values; axes are below ``axes``, the trainer's settings below ``trainer``.

    Raises:
        ConfigError: If a file cannot be read, refers to a file or key that does not exist, or holds a secret.
    """
    # Keys are checked before: ++ sets them whether or not a file mentions them.
    overrides = [f"{'+' if group == 'grid' else ''}{group}={name}" for group, name in choices.items()]
    overrides += [f"++{_path(item.key)}={item.text}" for item in assignments]
    try:
        written, composed = compose_files(PRIMARY, overrides, shipped=library.shipped, own=library.own)
    except Exception as error:  # yaml, omegaconf, hydra and the file system each raise their own
        raise unreadable(error) from error
    refuse_secrets(written, composed, library.secrets)
    assert isinstance(composed, dict), "the root is a mapping"
    return {str(key): value for key, value in composed.items()}


def _path(key: str) -> str:
    # `model` is an axis and a folder: as a root key Hydra would take it for a choice of one file.
    return f"axes.{key}" if key in AXES else key


assert not set(AXES) & set(CHOICES), "an axis would hide a choice"
