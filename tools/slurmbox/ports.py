"""Chooses TCP ports for a private Slurm that are free and that no other private Slurm here has reserved."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

from tools.slurmbox.errors import PrivateSlurmError
from tools.slurmbox.process import write_file
from tools.slurmbox.settings import RUN_ROOT

# Below the rendezvous ports of torchrun (20000-29999) and the kernel's ephemeral ports (32768 and up).
PORT_RANGE = range(15000, 20000)


def port_is_free(port: int) -> bool:
    """True if a daemon could listen there now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def reserve(run: Path, first: int, count: int) -> None:
    """Record the ports of this private Slurm, so that others do not take them."""
    write_file(run / "ports", f"{first} {count}")


def _taken_by_others(run: Path) -> set[int]:
    """Ports that other private Slurms have reserved, running or not."""
    taken: set[int] = set()
    for path in RUN_ROOT.glob("*/ports"):
        if path.parent == run:
            continue
        with contextlib.suppress(OSError, ValueError):  # that private Slurm has just been taken down
            first, count = path.read_text().split()
            taken |= set(range(int(first), int(first) + int(count)))
    return taken


def choose_ports(run: Path, count: int) -> int:
    """The first of `count` free consecutive ports; the cluster's directory decides where the search begins."""
    taken = _taken_by_others(run)
    starts = range(PORT_RANGE.start, PORT_RANGE.stop - count, count)
    shift = int(run.name, 16) % len(starts)
    candidates: list[int] = [*starts[shift:], *starts[:shift]]
    for start in candidates:
        block = range(start, start + count)
        if taken.isdisjoint(block) and all(map(port_is_free, block)):
            return start
    raise PrivateSlurmError(
        f"The cluster needs {count} consecutive ports, and {PORT_RANGE.start}-{PORT_RANGE.stop - 1} has no such block "
        "free. Stop the processes that use them, or lower --nodes."
    )
