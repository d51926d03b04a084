"""One node's part of ``doctor --all-nodes``: describes the node, and connects it with all others of its job.

The report is one line of JSON on standard output, which srun carries to the job's first node: a node that does not see
the run directory can still say so. The line is printed twice, first without what may hang (torch, the GPUs' driver).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from sweep.core.encoding.frozen import dataclass
from sweep.core.encoding.hostlist import expand_hostlist
from sweep.launch.gpus import gpus
from sweep.launch.probe import TOKEN_FILE, examine

REPORT = "sweep: node report "
_AT_ONCE = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class Neighbours:
    """The nodes of a job, each with its address and port.

    Attributes:
        name: This node.
        hosts: All nodes.
        address: Pattern of an address, with ``{host}`` for the node's name; empty: the name itself.
        ports: First and last port that may be used.
        job_id: Number of the job, so that two jobs use other ports.
    """

    name: str
    hosts: tuple[str, ...]
    address: str
    ports: tuple[int, int]
    job_id: int

    def place_of(self, host: str) -> tuple[str, int]:
        """Address and port of a node; each node has a port of its own."""
        first, last = self.ports
        port = first + (self.job_id + self.hosts.index(host)) % (last - first + 1)
        return self.address.replace("{host}", host) or host, port

    def meet(self, patience_s: float) -> dict[str, Any]:
        """Connect with every other node, in both directions, and compare clocks.

        Returns ``unresolved`` and ``unreached`` (why, by node), ``port_error``, and ``clock_offset_s`` (this node's
        clock less the others', the median).
        """
        peers, seen = [host for host in self.hosts if host != self.name], set[str]()
        deadline, each_s = time.monotonic() + patience_s, min(3.0, patience_s / 4)
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            port, found = self.place_of(self.name)[1], dict[str, Any]()
            try:
                server.bind(("", port))
                server.listen(len(self.hosts))
                threading.Thread(target=self._answer, args=(server, seen), daemon=True).start()
            except OSError as error:
                found["port_error"] = f"port {port}: {error.strerror}"
            found |= self._visit_all(peers, deadline, each_s)
            # A node that has reached everybody still answers those that start later.
            while not found.get("port_error") and seen != {*peers} and time.monotonic() < deadline:
                time.sleep(0.1)
        return found

    def _answer(self, server: socket.socket, seen: set[str]) -> None:
        with contextlib.suppress(OSError):  # it was closed
            while True:
                peer, _ = server.accept()
                with peer, contextlib.suppress(OSError, ValueError):
                    peer.settimeout(5)
                    name = peer.recv(256).decode()
                    peer.sendall(f"{self.name} {time.time()!r}".encode())
                    seen.add(name)

    def _visit_all(self, peers: Sequence[str], deadline: float, each_s: float) -> dict[str, Any]:
        unresolved: dict[str, str] = {}
        failed: dict[str, str] = {}
        offsets: list[float] = []

        def visit(peer: str) -> tuple[str, str, str, float]:
            address, port = self.place_of(peer)
            try:
                socket.getaddrinfo(address, port)
            except OSError as error:
                return peer, f"{address}: {error.strerror or error}", "", 0.0
            try:
                return peer, "", "", self._offset(peer, address, port, each_s)
            except (OSError, ValueError) as error:
                return peer, "", f"{address} port {port}: {error}", 0.0

        waiting = [*peers]
        while waiting:
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                results = list(pool.map(visit, waiting))
            unresolved = {peer: why for peer, why, _, _ in results if why}
            failed = {peer: why for peer, _, why, _ in results if why}
            offsets += [offset for _, name_why, why, offset in results if not name_why and not why]
            waiting = [*unresolved, *failed]
            if time.monotonic() > deadline:
                break
            time.sleep(0.5 if waiting else 0)
        found: dict[str, Any] = {"unresolved": unresolved, "unreached": failed}
        return {**found, "clock_offset_s": statistics.median(offsets)} if offsets else found

    def _offset(self, peer: str, address: str, port: int, timeout_s: float) -> float:
        asked = time.time()
        with socket.create_connection((address, port), timeout=timeout_s) as connection:
            connection.sendall(self.name.encode())
            words = connection.recv(256).decode(errors="replace").split()
        answered = time.time()
        if len(words) != 2 or words[0] != peer:
            raise ValueError("another program answers there")
        return (asked + answered) / 2 - float(words[1])


def _token(folder: Path) -> str:
    try:
        return (folder / TOKEN_FILE).read_text()
    except OSError as error:
        return f"{error.strerror}"


def _slurm_gpus(environ: Mapping[str, str]) -> int | None:
    """GPUs that Slurm gave this job on this node; None where it does not say."""
    if environ.get("SLURM_GPUS_ON_NODE", "").isdecimal():
        return int(environ["SLURM_GPUS_ON_NODE"])
    listed = environ.get("SLURM_STEP_GPUS") or environ.get("SLURM_JOB_GPUS")
    return len(listed.split(",")) if listed else None


def describe(
    folder: Path, nodes: Neighbours, environ: Mapping[str, str], *, patience_s: float, say: Callable[[str], object]
) -> None:
    """Say the report of this node, first as far as it is known without what may hang, then whole."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    found: dict[str, Any] = {
        "host": nodes.name,
        "token": _token(folder),
        "slurm_gpus": _slurm_gpus(environ),
        "open_files_hard": None if hard == resource.RLIM_INFINITY else hard,
        **nodes.meet(patience_s),
    }
    say(REPORT + json.dumps(found))
    found |= {**examine(folder), "host": nodes.name}
    say(REPORT + json.dumps(found))
    say(REPORT + json.dumps({**found, **gpus(), "is_whole": True}))


def main(argv: Sequence[str] | None = None) -> int:
    """Print this node's report."""
    parser = argparse.ArgumentParser(prog="sweep.launch.node_check", description=__doc__, allow_abbrev=False)
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--address", default="")
    parser.add_argument("--ports", type=int, nargs=2, required=True)
    parser.add_argument("--patience-s", type=float, default=30.0)
    options, environ = parser.parse_args(argv), dict(os.environ)
    nodes = Neighbours(
        name=environ["SLURMD_NODENAME"],
        hosts=expand_hostlist(environ["SLURM_JOB_NODELIST"]),
        address=options.address,
        ports=tuple(options.ports),
        job_id=int(environ["SLURM_JOB_ID"]),
    )
    describe(options.dir, nodes, environ, patience_s=options.patience_s, say=lambda line: print(line, flush=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
