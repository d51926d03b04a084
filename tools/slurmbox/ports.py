"""TCP ports for a private Slurm: free now, and not put down by another private Slurm on this machine."""

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


def put_down(run: Path, first: int, count: int) -> None:
    """Tell other private Slurms which ports this one uses."""
    write_file(run / "ports", f"{first} {count}")


def _taken_by_others(run: Path) -> set[int]:
    """Ports that other private Slurms have put down, running or not."""
    taken: set[int] = set()
    for path in RUN_ROOT.glob("*/ports"):
        if path.parent == run:
            continue
        with contextlib.suppress(OSError, ValueError):  # it has just been taken down
            first, count = path.read_text().split()
            taken |= set(range(int(first), int(first) + int(count)))
    return taken


def choose_ports(run: Path, count: int) -> int:
    """First of `count` free consecutive ports; where the search begins depends on the cluster's directory."""
    taken = _taken_by_others(run)
    starts = range(PORT_RANGE.start, PORT_RANGE.stop - count, count)
    shift = int(run.name, 16) % len(starts)
    candidates: list[int] = [*starts[shift:], *starts[:shift]]
    for start in candidates:
        block = range(start, start + count)
        if taken.isdisjoint(block) and all(map(port_is_free, block)):
            return start
    raise PrivateSlurmError(
        f"{count} ports in a row are needed, and {PORT_RANGE.start}-{PORT_RANGE.stop - 1} has none free. "
        "Stop what uses them, or lower --nodes."
    )
