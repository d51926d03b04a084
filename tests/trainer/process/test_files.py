"""A file that exists is complete."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

import pytest

from trainer.process import files


def test_a_published_file_is_alone_in_its_folder(tmp_path: Path) -> None:
    files.publish(tmp_path / "a.json", "one")
    files.publish(tmp_path / "a.json", "two")
    assert (tmp_path / "a.json").read_text() == "two"
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_a_write_that_fails_leaves_the_old_file_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> NoReturn:
        raise OSError("No space left on device")

    files.publish(tmp_path / "a.json", "old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        files.publish(tmp_path / "a.json", "new")
    assert (tmp_path / "a.json").read_text() == "old"


def test_the_file_is_on_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[bool] = []
    original = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append((tmp_path / "a.json").exists())
        original(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    files.publish(tmp_path / "a.json", "x")
    assert synced == [False, True]  # the file before the rename, the folder after it
