"""Reads and writes the files of a run directory.

Writes so that a file that exists is complete: written beside its place, synced to disk, and then put there. Reads
regular files only, and of each no more than its kind may hold: a run directory may come from a stranger, and a FIFO, a
device or a file without end would hold up whoever reads it.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path, PurePath
from typing import BinaryIO

_MIB = 1 << 20
LARGEST_BYTES: Mapping[str, int] = {
    "sweep.json": 1024 * _MIB,  # 100,000 cells take about 150 MiB
    "ledger.jsonl": 4096 * _MIB,  # 1,000,000 events take about 250 MiB
    "steps.jsonl": 1024 * _MIB,
}
"""The most that is read of a file, by its name."""
_LARGEST_OTHER_BYTES = 64 * _MIB
_LONGEST_LINE_BYTES = 64 * _MIB
"""Longer than the event that cancels 100,000 cells at once."""
_PIECE_BYTES = 1 << 13
"""Small, so that the lines of a piece are still in the cache of the processor when they are parsed."""


PRIVATE_UMASK = 0o077
"""Of a process that has no run directory yet: what it makes is its user's alone."""


class RunDirError(Exception):
    """A run directory cannot be used; the message says why and what to change."""


def umask_for(folder: Path) -> int:
    """The umask for what is made in a folder: private, or its group's as the folder is where others have no access.

    Raises:
        OSError: If the folder cannot be looked at.
    """
    mode = folder.stat().st_mode
    return PRIVATE_UMASK if mode & stat.S_IRWXO else PRIVATE_UMASK & ~(mode & stat.S_IRWXG)


def strangers_files(top: Path, folders: Iterable[str]) -> str:
    """Name some files of another user in a folder and folders in it; empty where there are none, or the group writes.

    Raises:
        OSError: If a folder cannot be looked into.
    """
    found = top.lstat()
    if found.st_mode & 0o022 == stat.S_IWGRP and found.st_gid in {os.getgid(), *os.getgroups()}:
        return ""
    owners = {top: found.st_uid}
    for folder in (top, *(top / name for name in folders)):
        # One that this user may not list is named by its own entry where it is another's.
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError), os.scandir(folder) as entries:
            owners |= {folder / item.name: item.stat(follow_symlinks=False).st_uid for item in entries}
    strange = sorted(str(path) for path, owner in owners.items() if owner != os.getuid())
    more = f" and {len(strange) - 3} more" if len(strange) > 3 else ""
    return f"{', '.join(strange[:3])}{more} belong to another user" if strange else ""


def write_atomically(path: Path, content: str | bytes, *, durable: bool = True) -> None:
    """Replace a file: a reader sees the old content or all of the new, never a part.

    Args:
        path: The file; its folder must exist.
        content: All of it; text is written as UTF-8.
        durable: Whether to wait until it is on disk; a progress note is not worth that.

    Raises:
        OSError: If it cannot be written; the old file is untouched, and no draft is left.
    """
    with atomic_writer(path, durable=durable) as file:
        file.write(_bytes(content))


def read_text(path: Path) -> str:
    """Text of a file; a damaged byte spoils the record that it is in, and nothing else.

    Raises:
        OSError: If it cannot be read, is no regular file, or is larger than a file of its kind may be.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > LARGEST_BYTES.get(path.name, _LARGEST_OTHER_BYTES):
            raise OSError(errno.EFBIG, f"it holds {size:,} bytes, more than such a record can", str(path))
        return (file.read(size + 1) or b"").decode("utf-8", errors="replace")


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading, without waiting for whoever may write it.

    Raises:
        OSError: If it cannot be opened, or is no regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def read_lines(path: Path) -> Iterator[bytes]:
    """Lines of a file without their ends, read in pieces; a line longer than any record comes as several.

    Raises:
        OSError: If the file cannot be opened, is no regular file, or is larger than a file of its kind may be.
    """
    file = open_regular(path)
    size = os.fstat(file.fileno()).st_size
    if size > LARGEST_BYTES.get(path.name, _LARGEST_OTHER_BYTES):
        file.close()
        raise OSError(errno.EFBIG, f"it holds {size:,} bytes, more than such a file can", str(path))
    return itertools.chain.from_iterable(_lines_by_piece(file))


def _lines_by_piece(file: BinaryIO) -> Iterator[list[bytes]]:
    with file:
        while piece := file.read(_PIECE_BYTES):
            if not piece.endswith(b"\n"):
                piece += file.readline(_LONGEST_LINE_BYTES)
            yield piece.removesuffix(b"\n").split(b"\n")


def read_tail(path: Path, most_bytes: int) -> bytes:
    """The last bytes of a file; of a log only they are of interest.

    Raises:
        OSError: As :func:`open_regular`.
    """
    with open_regular(path) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - most_bytes))
        return file.read(most_bytes) or b""


@contextlib.contextmanager
def atomic_writer(path: Path, *, durable: bool = True) -> Iterator[BinaryIO]:
    """A new file, which replaces the one at the path once the block ends without an error.

    Raises:
        OSError: As :func:`write_atomically`.
    """
    with _draft(path, os.replace, durable=durable) as file:
        yield file


def create_atomically(path: Path, content: str | bytes) -> bool:
    """Create a file; False if there is one already, which is untouched.

    A hard link succeeds for exactly one of several processes, on NFS too, where an exclusive ``open`` may not.

    Raises:
        OSError: If it cannot be written; no draft is left.
    """
    try:
        with _draft(path, _link) as file:
            file.write(_bytes(content))
    except FileExistsError:
        return False
    return True


def open_to_append(path: Path) -> int:
    """Descriptor of a file to append to, which is created if need be.

    Raises:
        OSError: If it cannot be opened, or is a link, a pipe or a device: what is written would go elsewhere.
    """
    try:
        found = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO):
            raise
    else:
        if stat.S_ISREG(os.fstat(found).st_mode):
            return found
        os.close(found)
    raise OSError(errno.ELOOP, "it is a link or no regular file, and is not written through. Delete it", str(path))


def make_folder(top: Path, below: str | PurePath, *, mode: int = 0o777) -> Path:
    """Make a folder below another one, with those between them: in these only who made an entry can rename it.

    Args:
        top: A folder, made if need be; whatever way leads to it.
        below: Path of the new one, relative to it.
        mode: Its mode before the umask. Where others may not write it by this mode, it has to be this user's own.

    Raises:
        OSError: If it cannot be made, a part of it is a link or no folder, or it is another user's.
    """
    top.mkdir(parents=True, exist_ok=True)
    folder = top
    *between, last = (top / below).relative_to(top).parts
    for part, its_mode in (*((each, 0o1777) for each in between), (last, mode)):
        folder = folder / part
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=its_mode)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, "it is a link or no folder. Move it away", str(folder))
    if not mode & 0o022 and found.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, f"it belongs to user {found.st_uid}, not to you. Move it away", str(folder))
    return folder


def server_time(folder: Path) -> float:
    """Unix time by the clock that stamps the files of a folder; on a shared file system that is the server's.

    Raises:
        OSError: If no file can be made there.
    """
    probe = folder / f".time.{uuid.uuid4().hex}"
    try:
        probe.write_text("x")
        return probe.stat().st_mtime
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()


@contextlib.contextmanager
def _draft(path: Path, place: Callable[[Path, Path], None], *, durable: bool = True) -> Iterator[BinaryIO]:
    """A file beside the path, which is put in its place at the end of the block, or removed after an error."""
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "wb") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        # Closed first: on NFS closing is what tells of a full disk where nothing was synced.
        place(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise
    if durable:
        _sync_folder(path.parent)


def _link(draft: Path, path: Path) -> None:
    os.link(draft, path)
    draft.unlink()


def _sync_folder(folder: Path) -> None:
    # Some file systems cannot sync a folder; the file itself is on disk, and in its place.
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _bytes(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else content
