"""The single-writer lock of a run directory: a lease file with host, pid and heartbeat.

flock fails on some Lustre mounts, so the lock is a file that is created exclusively and kept fresh.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import uuid
from pathlib import Path
from types import TracebackType

import psutil

from sweep.core.encoding.frozen import dataclass
from sweep.core.encoding.record import Record, RecordError
from sweep.core.records.layout import LEASE_FILE
from sweep.files import create_atomically, read_text, server_time

HEARTBEAT_S = 10.0
STALE_AFTER_S = 120.0
"""Seconds without a heartbeat after which a holder on another host counts as gone."""


class LeaseHeldError(Exception):
    """Another process holds the run directory."""


class LeaseLostError(Exception):
    """This process held the run directory and another took it (it was suspended for longer than the lease lasts)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Holder(Record):
    """Who holds a run directory.

    Attributes:
        host: Its host.
        pid: Process id there.
        started: The process's start (:func:`start_of`): with the pid, it is this process or none.
        token: Of this one hold.
    """

    KIND = "lease"
    FILE = LEASE_FILE
    MAY_BE_BARE = True

    host: str
    pid: int
    started: str | float
    token: str

    def __str__(self) -> str:
        """For error messages."""
        return f"process {self.pid} on {self.host}"


class Lease:
    """Holds a run directory for as long as the ``with`` block lasts.

    Args:
        run_dir: The run directory.

    Raises:
        LeaseHeldError: On entering, if a living process holds it; the message says which.
    """

    def __init__(self, run_dir: Path) -> None:
        """Take nothing yet."""
        self._path = run_dir / LEASE_FILE
        pid = os.getpid()
        self._me = Holder(host=socket.gethostname(), pid=pid, started=start_of(pid) or "", token=uuid.uuid4().hex)
        self._stop = threading.Event()
        self._beat: threading.Thread | None = None

    def __enter__(self) -> Lease:
        """Take the lease, over from a holder that is gone if need be."""
        for _ in range(10):
            if self._create():
                self._beat = threading.Thread(target=self._keep_fresh, name="lease-heartbeat", daemon=True)
                self._beat.start()
                return self
            self._take_over_if_dead()
        raise LeaseHeldError(f"the run directory's lease {self._path} changes hands all the time; try again.")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Give it back, if it is still this process's."""
        self._stop.set()
        if self._beat is not None:
            self._beat.join()
        with contextlib.suppress(OSError):
            holder = read_holder(self._path)
            if holder is not None and holder.token == self._me.token:
                self._path.unlink()

    def check(self) -> None:
        """Make sure that the lease is still held.

        Raises:
            LeaseLostError: If it is not.
        """
        holder = read_holder(self._path)
        if holder is None or holder.token != self._me.token:
            raise LeaseLostError(
                f"{self._path.parent} is now held by {holder or 'nobody'}. Nothing more is written from here; "
                "look at it with 'python -m sweep status'."
            )

    def _create(self) -> bool:
        return create_atomically(self._path, self._me.render())

    def _take_over_if_dead(self) -> None:
        # The clock that stamps heartbeats is the file server's; this host's may be minutes ahead of it.
        now = server_time(self._path.parent)
        holder = read_holder(self._path)
        if holder is not None and _is_alive(holder, self._path, now=now):
            raise LeaseHeldError(
                f"{self._path.parent} is held by {holder}, which is running a sweep in it. "
                "Wait for it, look at it with 'python -m sweep status', or stop it first."
            )
        # Renaming moves exactly one file for exactly one of several takers; whoever moved a live one puts it back.
        moved = self._path.with_name(f"{LEASE_FILE}.gone.{self._me.token}")
        try:
            self._path.rename(moved)
        except FileNotFoundError:
            return
        except PermissionError as error:
            raise LeaseHeldError(
                f"{holder} held {self._path.parent} and is gone, and what it left is another user's. "
                f"Ask its owner to remove {self._path}."
            ) from error
        found = read_holder(moved)
        if found is not None and (holder is None or found.token != holder.token) and _is_alive(found, moved, now=now):
            with contextlib.suppress(FileExistsError):
                os.link(moved, self._path)
        moved.unlink()

    def _keep_fresh(self) -> None:
        while not self._stop.wait(HEARTBEAT_S):
            with contextlib.suppress(OSError):
                holder = read_holder(self._path)
                if holder is not None and holder.token == self._me.token:
                    os.utime(self._path)


_MAY_NOT_BE_SEEN = "may not be seen"


def start_of(pid: int) -> str | None:
    """When a living process started, in words that no step of the clock changes; None where it is gone or a zombie.

    A killed process whose parent has not asked for its status is a zombie: it will not write any more.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return None if fields[0] in "ZX" else f"{boot}:{fields[19]}"
    except (OSError, IndexError):
        pass
    try:  # not on Linux, or its files may not be read
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else f"{process.create_time():.0f}"
    except psutil.NoSuchProcess:
        return None
    except psutil.AccessDenied:
        return _MAY_NOT_BE_SEEN


def read_holder(path: Path) -> Holder | None:
    """Who a lease file names; None where there is none, or none that can be read."""
    try:
        return Holder.parse(read_text(path))
    except (OSError, RecordError):
        return None


def current_holder(run_dir: Path) -> Holder | None:
    """The living process that holds a run directory; None where nobody does, as far as can be told without writing."""
    path = run_dir / LEASE_FILE
    holder = read_holder(path)
    return holder if holder is not None and _is_alive(holder, path, now=time.time()) else None


def watch_text(run_dir: Path) -> str:
    """Who watches a run directory, for people.

    Of a holder on another host only heartbeats are known, by the file server's clock; this host's may differ from it,
    and nothing may be written that would tell. So it is said how old the last one looks from here.
    """
    path = run_dir / LEASE_FILE
    holder, now = read_holder(path), time.time()
    is_alive = holder is not None and _is_alive(holder, path, now=now)
    if holder is None or holder.host == socket.gethostname():
        return f"watched by {holder}" if is_alive else "nobody watches it"
    try:
        age_s = now - path.stat().st_mtime
    except FileNotFoundError:
        return "nobody watches it"
    when = f"{age_s:.0f} s ago" if age_s >= 0 else f"{-age_s:.0f} s from now"
    beat = f"its last heartbeat was {when} by the clock of this host"
    return f"watched by {holder} ({beat})" if is_alive else f"nobody watches it, or {holder} does ({beat})"


def _is_alive(holder: Holder, path: Path, *, now: float) -> bool:
    if holder.host == socket.gethostname():
        return start_of(holder.pid) in (holder.started, _MAY_NOT_BE_SEEN)
    try:
        return now - path.stat().st_mtime < STALE_AFTER_S
    except FileNotFoundError:
        return False
