"""Bounds the ``defaults`` of a user's folder, before any file is composed: each may name ten that name ten more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import yaml  # type: ignore[import-untyped]  # omegaconf brings it, without types

from sweep.config.errors import ConfigError
from sweep.config.library import MAX_FILE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

MAX_DEFAULTS = 1_000
"""Files that one file may stand for."""


def refuse_many_defaults(folder: Path) -> None:
    """Refuse a folder in which a file stands for too many others.

    Raises:
        ConfigError: Naming the file, the number and the limit.
    """
    named: dict[str, list[str]] = {}
    for path in folder.rglob("*.yaml"):
        try:
            if not path.is_file() or path.stat().st_size > MAX_FILE_BYTES:
                continue
            text = path.read_text(errors="replace")
            root = yaml.compose(text) if "defaults" in text else None
        except (OSError, yaml.YAMLError, RecursionError):
            continue  # whoever reads the file says what is wrong with it
        for key, value in root.value if isinstance(root, yaml.MappingNode) else ():
            if key.value == "defaults" and isinstance(value, yaml.SequenceNode):
                # Of `group/name@package` and `group: [name, name]` the names.
                texts = [node.value for node in _scalars(value)]
                named.setdefault(path.stem, []).extend(str(text).partition("@")[0].split("/")[-1] for text in texts)
    known: dict[str, int] = {}
    for name in named:
        if (total := _files_of(name, named, known)) > MAX_DEFAULTS:
            raise ConfigError(
                f"{name} in {folder} stands for {total:,} files by the defaults that it names, which name others; "
                f"at most {MAX_DEFAULTS:,} are read. Name fewer."
            )


def _scalars(node: yaml.Node) -> Iterator[yaml.ScalarNode]:
    if isinstance(node, yaml.ScalarNode):
        yield node
    for part in node.value if not isinstance(node, yaml.ScalarNode) else ():
        yield from _scalars(part[1] if isinstance(part, tuple) else part)


def _files_of(name: str, named: Mapping[str, list[str]], known: dict[str, int]) -> int:
    """Files that are read for one file; one that names itself is refused where it is composed."""
    if name not in known:
        known[name] = 1
        known[name] = 1 + sum(_files_of(other, named, known) for other in named.get(name, ()))
    return known[name]
