"""The place of ``profile-<node>.json``, and its writing."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sweep.files import write_atomically

if TYPE_CHECKING:
    from pathlib import Path

    from analysis.trace.record import NodeProfile

_UNSAFE = re.compile(r"[^\w.-]")


def profile_path(folder: Path, node: str) -> Path:
    """Where the profile of a node's ranks belongs; signs that a file's name should not have become ``_``."""
    return folder / f"profile-{_UNSAFE.sub('_', node)}.json"


def write_profile(path: Path, profile: NodeProfile) -> None:
    """Put a node's profile in its place, whole.

    Raises:
        OSError: If it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, profile.render())
