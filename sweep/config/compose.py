"""Hydra: reads the override grammar and composes the root with one grid, one cluster and one trainer file."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf

from sweep.config.errors import ConfigError
from sweep.config.keys import CHOICES
from sweep.config.library import PRIMARY, Library, unreadable
from sweep.core.cells.axes import AXES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from hydra.core.config_search_path import ConfigSearchPath
    from hydra.core.override_parser.types import Override


@dataclass(frozen=True, slots=True)
class Assignment:
    """One override: the key, its value as typed, and as Hydra reads it."""

    key: str
    text: str
    value: Any


def parse(overrides: Sequence[str]) -> list[Assignment]:
    """The overrides, read with Hydra's grammar.

    Raises:
        ConfigError: If one cannot be read, or asks for what has no meaning here.
    """
    parser = OverridesParser.create()
    return [_parse(parser, text) for text in overrides]


def _parse(parser: OverridesParser, text: str) -> Assignment:
    if "=" not in text and not text.startswith("~"):
        raise ConfigError(f"{text!r} is not KEY=VALUE. Say for example +grid={text.lstrip('+') or 'weak_scaling'}.")
    try:
        override: Override = parser.parse_override(text)
    except HydraException as error:
        raise ConfigError(_unparsable(text, error)) from error
    if override.is_delete():
        raise ConfigError(f"{text}: nothing can be deleted. Give the key another value, for example null.")
    if override.is_sweep_override():
        values = ",".join(override.sweep_string_iterator())
        raise ConfigError(f"{text}: a list of values is written in brackets: {override.key_or_group}=[{values}].")
    if override.package is not None or not override.key_or_group:
        raise ConfigError(f"{text!r} is not KEY=VALUE.")
    return Assignment(override.key_or_group, text.partition("=")[2], override.value())


def _unparsable(text: str, error: HydraException) -> str:
    cause: Any = error.__cause__
    column = getattr(cause, "startIndex", None)
    if column is None:
        column = getattr(getattr(cause, "offendingToken", None), "column", None)
    lines = [f"The override {text!r} cannot be read: {error}.", f"  {text}"]
    if column is not None:
        lines.append(f"  {' ' * column}^")
    lines.append(
        "Lists are [1,2,4], mappings {a: 1}; text with other signs needs quotes inside: \"exclude=['tp > 2']\"."
    )
    return "\n".join(lines)


class _OwnFirst(SearchPathPlugin):
    """Puts the user's folder before the shipped one (``hydra.searchpath`` appends: shipped grids would win)."""

    folder: ClassVar[Path | None] = None

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Add the folder of the command at hand, if it has one."""
        if self.folder is not None:
            search_path.prepend("own", str(self.folder), anchor="main")


@contextmanager
def _hydra(library: Library) -> Iterator[None]:
    """Hydra over the library's folders, whatever state it was in before, and that state again afterwards."""
    Plugins.instance().register(_OwnFirst)
    before = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    _OwnFirst.folder = library.own
    try:
        with initialize_config_dir(str(library.shipped), job_name="sweep", version_base="1.3"):
            yield
    finally:
        _OwnFirst.folder = None
        GlobalHydra.instance().hydra = before


def compose(library: Library, choices: Mapping[str, str], assignments: Sequence[Assignment]) -> dict[str, Any]:
    """The composed configuration as plain values; axes are below ``axes``, the trainer's settings below ``trainer``.

    Raises:
        ConfigError: If a file cannot be read, or refers to what is not there.
    """
    # Keys are checked before: ++ sets them whether or not a file mentions them.
    overrides = [f"{'+' if group == 'grid' else ''}{group}={name}" for group, name in choices.items()]
    overrides += [f"++{_path(item.key)}={item.text}" for item in assignments]
    try:
        with _hydra(library):
            composed = OmegaConf.to_container(hydra_compose(PRIMARY, overrides), resolve=True, throw_on_missing=True)
    except Exception as error:  # yaml, omegaconf, hydra and the file system each raise their own
        raise unreadable(error) from error
    assert isinstance(composed, dict), "the root is a mapping"
    return {str(key): value for key, value in composed.items()}


def _path(key: str) -> str:
    # `model` is an axis and a folder: as a root key Hydra would take it for a choice of one file.
    return f"axes.{key}" if key in AXES else key


assert not set(AXES) & set(CHOICES), "an axis would hide a choice"
