"""Reads the kernel's count of processes that it killed for lack of memory."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

_OOM_KILLS = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


def oom_kills(root: Path = Path("/")) -> int | None:
    """Processes of this cgroup that the out-of-memory killer has ended so far; None where the kernel gives no count.

    The count includes kills for a limit of an enclosing cgroup (a job's, a container's) and of the whole machine.

    Args:
        root: The folder with /proc and /sys.
    """
    for path in _counters(root):
        with contextlib.suppress(OSError):
            found = _OOM_KILLS.search(path.read_text())
            if found is not None:
                return int(found[1])
    return None


def _counters(root: Path) -> list[Path]:
    """Files that may hold the count, the most reliable first: of cgroup v1's memory controller, or of v2."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    mounts = root / "sys/fs/cgroup"
    first, second = [], []
    for line in lines:
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        # In a container the path may be one of the host, and the mount this very cgroup.
        own = (path.strip("/"), "")
        if "memory" in controllers.split(","):
            first += [mounts / "memory" / name / "memory.oom_control" for name in own]
        elif (number, controllers) == ("0", ""):
            second += [mounts / name / "memory.events" for name in own]
    return first + second
