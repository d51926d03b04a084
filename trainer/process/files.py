"""Writing files that are complete whenever they exist."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def publish(path: Path, text: str, *, durable: bool = True) -> None:
    """Write a file so that a reader sees the old one, or the whole new one, and never a part.

    Args:
        path: The file; its folder must exist.
        text: All of it.
        durable: Whether to wait until it is on disk; a progress note is not worth that.
    """
    publish_bytes(path, text.encode(), durable=durable)


def publish_bytes(path: Path, content: bytes, *, durable: bool = True) -> None:
    """The same for what is not text."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with temporary.open("wb") as stream:
        stream.write(content)
        stream.flush()
        if durable:
            os.fsync(stream.fileno())
    temporary.replace(path)
    if durable:
        _sync_directory(path.parent)


def _sync_directory(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
