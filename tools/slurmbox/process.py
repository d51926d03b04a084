"""Identifies processes beyond their pid, which the kernel reuses, and finds and ends them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessRecord:
    """One process of one boot; `start_ticks` counts clock ticks from the boot to its start."""

    pid: int
    start_ticks: int
    boot_id: str

    @classmethod
    def of(cls, pid: int) -> ProcessRecord:
        """The record of a process that was just started; the record of one that has ended already is never alive."""
        ticks = start_ticks(pid)
        return cls(pid=pid, start_ticks=-1 if ticks is None else ticks, boot_id=_boot_id())

    def alive(self) -> bool:
        """True if this very process still runs (a zombie does not)."""
        return self.boot_id == _boot_id() and start_ticks(self.pid) == self.start_ticks


def _boot_id() -> str:
    """The kernel's id of this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _stat_fields(pid: int) -> list[str] | None:
    """/proc/PID/stat from the state on (field 3 of proc(5) is index 0); None if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def start_ticks(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot; None if it is gone or a zombie."""
    fields = _stat_fields(pid)
    if fields is None or fields[0] in "ZX":
        return None
    return int(fields[19])


def environ(pid: int) -> dict[str, str]:
    """The environment that a process was started with; empty if it is gone or cannot be read."""
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (item.partition("=") for item in raw.decode(errors="replace").split("\0") if "=" in item)
    return {name: value for name, _, value in pairs}


def link(pid: int, name: str) -> str:
    """The target of /proc/PID/exe or /proc/PID/cwd; empty if the process is gone or the link cannot be read."""
    try:
        return str(Path(f"/proc/{pid}/{name}").readlink()).removesuffix(" (deleted)")
    except OSError:
        return ""


def pids() -> list[int]:
    """Every living process on the machine except this one."""
    found = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [pid for pid in found if pid != os.getpid() and start_ticks(pid) is not None]


def with_descendants(roots: set[int]) -> set[int]:
    """The given processes and all their living descendants."""
    parents = {pid: int(fields[1]) for pid in pids() if (fields := _stat_fields(pid)) is not None}
    found, more = set(roots), set(roots)
    while more:
        more = {pid for pid, parent in parents.items() if parent in more} - found
        found |= more
    return found & set(parents)


def kill(pid: int, sig: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal; it is no error if the process has just ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, sig)


def wait_until(check: Callable[[], bool], timeout_s: float, every_s: float = 0.1) -> bool:
    """Poll until `check` returns True; False after the timeout."""
    deadline = time.monotonic() + timeout_s
    while not check():
        if time.monotonic() > deadline:
            return False
        time.sleep(every_s)
    return True


def tail(path: Path, lines: int = 12) -> str:
    """The last lines of a log, indented for an error message."""
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return f"  ({path}: no such log)"
    return "\n".join(f"  | {line}" for line in text.splitlines()[-lines:]) or f"  ({path}: empty)"


def write_file(path: Path, text: str, mode: int = 0o644) -> None:
    """Publish a file atomically: a file that exists is complete."""
    temporary = path.with_name(path.name + ".tmp")
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.chmod(mode)
    temporary.replace(path)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock; wait until it is free."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield
