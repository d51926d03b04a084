"""A small file system of a test's own, which it can fill, or make read-only."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system of 16 MiB at a new folder; the test is skipped where none can be mounted."""
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", "size=16m,mode=700", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(["mount", *options], capture_output=True, check=False).returncode != 0:
        pytest.skip("no file system can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def remount(disk: Path, how: str) -> bool:
    """Mount it anew, ``ro`` or ``rw``; False where a file that is open for writing prevents it."""
    command = ["mount", "-o", f"remount,{how}", str(disk)]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def fill(disk: Path) -> Path:
    """Leave no room on it; gives the file to delete for room."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return filler
