"""Uses Hydra: reads one override, and composes files of two folders. No other module of the project imports hydra.

Hydra's compose API is public; its override grammar, its global state and the order of its search path are not, or not
all of them. ``tests/sweep/config/test_hydra_private_names.py`` lists what this module relies on.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf

from sweep.config.library import refuse_expansions

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from hydra.core.config_search_path import ConfigSearchPath
    from hydra.core.override_parser.types import Override


class GrammarError(ValueError):
    """Hydra's grammar cannot read an override.

    Attributes:
        column: Where reading stopped, counted from 0; None where Hydra does not say it.
    """

    def __init__(self, error: HydraException) -> None:
        super().__init__(str(error))
        cause: Any = error.__cause__
        column = getattr(cause, "startIndex", None)
        self.column = getattr(getattr(cause, "offendingToken", None), "column", None) if column is None else column


def parse_override(text: str) -> Override:
    """One override as Hydra's grammar reads it.

    Raises:
        GrammarError: If it cannot be read.
    """
    try:
        return _parser().parse_override(text)
    except HydraException as error:
        raise GrammarError(error) from error


@cache
def _parser() -> OverridesParser:
    return OverridesParser.create()


class _OwnFirst(SearchPathPlugin):
    """Puts the user's folder before the shipped one; ``hydra.searchpath`` appends, so that shipped grids would win."""

    folder: ClassVar[Path | None] = None

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Add the folder of the present command, if it has one."""
        if self.folder is not None:
            search_path.prepend("own", str(self.folder), anchor="main")


def compose_files(primary: str, overrides: Sequence[str], *, shipped: Path, own: Path | None) -> tuple[Any, Any]:
    """The composed configuration as plain values: with its interpolations as written, and with them resolved.

    Args:
        primary: Name of the root file, in ``shipped``.
        overrides: Hydra overrides.
        shipped: The folder that comes with the package.
        own: The user's folder, searched first.

    Raises:
        ConfigError: If interpolations stand for too many values.
        Exception: Of yaml, omegaconf, hydra and the file system, each its own.
    """
    with _hydra(shipped, own):
        composed = hydra_compose(primary, list(overrides))
        written = OmegaConf.to_container(composed)
        refuse_expansions(written)
        return written, OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)


@contextmanager
def _hydra(shipped: Path, own: Path | None) -> Iterator[None]:
    """Initialise Hydra, whatever state a host application left it in, and put that state back afterwards."""
    Plugins.instance().register(_OwnFirst)
    before = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    _OwnFirst.folder = own
    try:
        with initialize_config_dir(str(shipped), job_name="sweep", version_base="1.3"):
            yield
    finally:
        _OwnFirst.folder = None
        GlobalHydra.instance().hydra = before
