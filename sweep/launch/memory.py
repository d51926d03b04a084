"""Reads the kernel's count of processes that it killed for want of memory."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

_OOM_KILLS = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


def oom_kills(root: Path = Path("/")) -> int | None:
    """Processes of this process's cgroup that the out-of-memory killer has ended so far; None where nothing says.

    Counted are all kills, those for a limit of a cgroup above (a job's, a container's) and of the whole machine too.

    Args:
        root: Below which /proc and /sys lie.
    """
    for path in _counters(root):
        with contextlib.suppress(OSError):
            found = _OOM_KILLS.search(path.read_text())
            if found is not None:
                return int(found[1])
    return None


def _counters(root: Path) -> list[Path]:
    """Files that may hold the count, the surest first: of cgroup v1's memory controller, or of v2."""
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
