"""A file that exists is complete, and a write that fails changes nothing."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from sweep.files import atomic_writer, create_atomically, server_time, write_atomically


def replace(path: Path) -> None:
    write_atomically(path, "new")


def create(path: Path) -> None:
    create_atomically(path, "new")


def stream(path: Path) -> None:
    with atomic_writer(path) as file:
        file.write(b"ne")
        file.write(b"w")


def fail(*_: object, **__: object) -> NoReturn:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("write", [replace, create, stream])
def test_a_written_file_is_alone_in_its_folder(tmp_path: Path, write: Callable[[Path], None]) -> None:
    write(tmp_path / "a.json")
    assert (tmp_path / "a.json").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_a_published_file_is_alone_in_its_folder(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a.json", "one")
    write_atomically(tmp_path / "a.json", "two")
    assert (tmp_path / "a.json").read_text() == "two"
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize("step", ["open", "fdopen", "fsync", "replace", "link"])
@pytest.mark.parametrize("write", [replace, create, stream])
def test_whichever_step_fails_the_old_content_stays_and_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path], None], step: str
) -> None:
    path = tmp_path / "a.json"
    if write is not create:
        path.write_text("old")
    if step == "fdopen":
        # The disk is full once something is written.
        monkeypatch.setattr(os, "fdopen", lambda descriptor, mode: FullFile(descriptor))
    else:
        monkeypatch.setattr(os, step, fail)
    if step == ("replace" if write is create else "link"):
        write(path)
        return
    with pytest.raises(OSError, match="No space"):
        write(path)
    monkeypatch.undo()
    assert [found.read_text() for found in tmp_path.iterdir()] == ([] if write is create else ["old"])


class FullFile:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __enter__(self) -> FullFile:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def write(self, content: bytes) -> None:
        os.write(self._descriptor, content[:1])
        fail()


def test_an_interrupt_while_a_file_is_written_leaves_no_draft(tmp_path: Path) -> None:
    def interrupted() -> None:
        with atomic_writer(tmp_path / "a.bin") as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []


def test_a_write_that_fails_leaves_the_old_file_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> NoReturn:
        raise OSError("No space left on device")

    write_atomically(tmp_path / "a.json", "old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomically(tmp_path / "a.json", "new")
    assert (tmp_path / "a.json").read_text() == "old"


def test_the_file_is_on_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[bool] = []
    original = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append((tmp_path / "a.json").exists())
        original(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    write_atomically(tmp_path / "a.json", "x")
    assert synced == [False, True]  # the file before the rename, the folder after it


def test_a_file_system_that_cannot_sync_a_folder_still_takes_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = os.fsync

    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        original(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    write_atomically(tmp_path / "a.json", "x")
    assert (tmp_path / "a.json").read_text() == "x"


def test_a_note_that_need_not_last_is_not_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", fail)
    write_atomically(tmp_path / "a.json", "x", durable=False)
    assert (tmp_path / "a.json").read_text() == "x"


def test_a_file_is_created_once(tmp_path: Path) -> None:
    assert create_atomically(tmp_path / "claim", "first")
    assert not create_atomically(tmp_path / "claim", "second")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["first"]


@pytest.mark.parametrize(("umask", "mode"), [(0o077, 0o600), (0o027, 0o640), (0o022, 0o644)])
@pytest.mark.parametrize("write", [replace, create, stream])
def test_the_umask_says_who_may_read_a_file(
    tmp_path: Path, write: Callable[[Path], None], umask: int, mode: int
) -> None:
    before = os.umask(umask)
    try:
        write(tmp_path / "a.json")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.json").stat().st_mode) == mode


def test_the_clock_of_the_files_leaves_no_file(tmp_path: Path) -> None:
    assert server_time(tmp_path) > 1e9
    assert list(tmp_path.iterdir()) == []
