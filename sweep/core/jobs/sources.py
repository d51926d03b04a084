"""Which files are the code that a job runs, and their hash; reading them is the caller's business."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import PurePath

SOURCE_PACKAGES = ("sweep", "trainer", "analysis")
_SUFFIXES = (".py", ".yaml")


def is_source(path: PurePath) -> bool:
    """True if a file of one of the packages is part of the code: modules and configuration, nothing compiled."""
    return path.suffix in _SUFFIXES and "__pycache__" not in path.parts


def hash_sources(files: Iterable[tuple[str, bytes]]) -> str:
    """First 16 hex digits of SHA-256 over names and contents, whatever the order in which they come.

    Args:
        files: Path relative to the folder that holds the packages, with ``/``, and content of every source.
    """
    total = hashlib.sha256()
    for name, content in sorted(files):
        total.update(f"{name}\0{len(content)}\0".encode())
        total.update(content)
    return total.hexdigest()[:16]
