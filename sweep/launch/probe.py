"""Describes a compute node to ``doctor``: ``python -m sweep.launch.probe --out DIR`` writes ``probe-<node>.json``.

The launcher starts it as it would the trainer, once on each node. It imports the standard library only.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sweep.core.encoding.hostlist import expand_hostlist
from sweep.core.jobs.node_command import Node
from sweep.core.jobs.submission import Submission
from sweep.files import read_text, server_time, write_atomically

TOKEN_FILE = "token"
"""Written by ``doctor`` into the run directory: who reads the same words sees the same file system."""

# In a process of its own: a broken torch or driver may crash, hang, or print.
_IMPORTS = """
import json, importlib.util, sys
found = {"trainer": getattr(importlib.util.find_spec("trainer"), "origin", None)}
try:
    import torch
    found["torch"] = torch.__version__
    found["devices"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
except BaseException as error:
    found["torch_error"] = f"{type(error).__name__}: {error}"[:500]
print("\\n" + json.dumps(found))
"""


def report_name(node_rank: int) -> str:
    """Name of one node's report."""
    return f"probe-{node_rank}.json"


def examine(folder: Path, *, import_timeout_s: float = 100.0) -> dict[str, Any]:
    """Facts about this machine and this process; an unknown one is None or missing.

    Args:
        folder: A folder for files of a run.
        import_timeout_s: Seconds that importing torch may take.
    """
    return {
        "host": socket.gethostname(),
        "time": time.time(),
        "python": ".".join(map(str, sys.version_info[:3])),
        "executable": sys.executable,
        "safe_path": bool(sys.flags.safe_path),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": _memory_available(),
        "memlock_bytes": _limit(resource.RLIMIT_MEMLOCK),
        "open_files": _limit(resource.RLIMIT_NOFILE),
        "file_system": file_system_problem(folder),
        "ahead_of_files_s": ahead_of_files_s(folder),
        **_imports(import_timeout_s),
    }


def file_system_problem(folder: Path) -> str:
    """The problem of a folder as a run directory; empty where there is none.

    A run directory needs an atomic rename, which publishes records, and a hard link that fails where its name exists,
    which makes the lease.
    """
    draft, target = (folder / f".probe-{uuid.uuid4().hex}" for _ in range(2))
    try:
        draft.write_text("new")
        target.write_text("old")
        draft.replace(target)
        if target.read_text() != "new":
            return "a renamed file does not replace the one that was there"
        os.link(target, draft)
        with contextlib.suppress(FileExistsError):
            os.link(target, draft)
            return "a hard link replaces a file that is there"
    except OSError as error:
        return f"{error.strerror or error} ({'hard link' if target.exists() else 'write or rename'})"
    finally:
        for path in (draft, target):
            with contextlib.suppress(OSError):
                path.unlink()
    return ""


def ahead_of_files_s(folder: Path) -> float | None:
    """Seconds by which this machine's clock is ahead of the time stamps of new files; None where no file can be made.

    The server of a shared file system makes the stamps, so two machines can compare their clocks with it.
    """
    try:
        before, stamp, after = time.time(), server_time(folder), time.time()
        return (before + after) / 2 - stamp
    except OSError:
        return None


def _imports(timeout_s: float) -> dict[str, Any]:
    try:
        done = subprocess.run(
            [sys.executable, "-c", _IMPORTS], capture_output=True, text=True, timeout=timeout_s, check=False
        )
        found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    except subprocess.TimeoutExpired:
        return {"torch_error": f"importing torch took longer than {timeout_s:g} s"}
    except (OSError, ValueError, IndexError):
        return {"torch_error": f"importing torch ended with exit code {done.returncode}"}
    return found


def _memory_available() -> int | None:
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def _limit(which: int) -> int | None:
    """A resource limit of this process; None: unlimited."""
    soft = resource.getrlimit(which)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def meet(node: Node, *, timeout_s: float) -> dict[str, Any]:
    """Node 0 listens where rendezvous would; the others look its name up, connect, and compare clocks.

    Returns ``port_free`` on node 0, and on the others ``resolved``, ``connected`` and ``clock_offset_s`` (this node's
    clock less node 0's).
    """
    return _host(node, timeout_s) if node.node_rank == 0 else _visit(node, timeout_s)


def _host(node: Node, timeout_s: float) -> dict[str, Any]:
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind(("", node.port))
            server.listen(len(node.hosts))
        except OSError as error:
            return {"port": node.port, "port_free": False, "port_error": error.strerror}
        deadline = time.monotonic() + timeout_s
        for _ in node.hosts[1:]:
            server.settimeout(max(0.1, deadline - time.monotonic()))
            try:
                peer, _ = server.accept()
            except OSError:
                break
            with peer, contextlib.suppress(OSError):
                peer.sendall(repr(time.time()).encode())
    return {"port": node.port, "port_free": True}


def _visit(node: Node, timeout_s: float) -> dict[str, Any]:
    found: dict[str, Any] = {"head": node.head, "port": node.port, "connected": False}
    try:
        found["resolved"] = sorted({str(item[4][0]) for item in socket.getaddrinfo(node.head, node.port)})
    except OSError as error:
        return {**found, "connect_error": f"the name {node.head} cannot be resolved: {error.strerror or error}"}
    deadline = time.monotonic() + timeout_s
    while True:
        asked = time.time()
        try:
            with socket.create_connection((node.head, node.port), timeout=5) as peer:
                theirs, answered = float(peer.recv(64)), time.time()
        except (OSError, ValueError) as error:
            # Node 0 may start later.
            if time.monotonic() > deadline:
                return {**found, "connect_error": str(error)}
            time.sleep(0.3)
        else:
            return {**found, "connected": True, "clock_offset_s": (asked + answered) / 2 - theirs}


def _node(submission: Path, environ: Mapping[str, str]) -> Node:
    return Node(
        submission=Submission.parse(read_text(submission)),
        index=0,
        node_rank=int(environ["NODE_RANK"]),
        job_id=environ.get("SLURM_JOB_ID", "0"),
        hosts=expand_hostlist(environ["SLURM_JOB_NODELIST"]),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Write this node's report."""
    parser = argparse.ArgumentParser(prog="sweep.launch.probe", description=__doc__, allow_abbrev=False)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--submission", type=Path, help="to meet the other nodes of its job")
    parser.add_argument("--cell", help="given to every trainer; not read")
    parser.add_argument("--patience-s", type=float, default=30.0)
    arguments = parser.parse_args(argv)
    report: dict[str, Any] = {"node_rank": 0}
    if arguments.submission is not None:
        node = _node(arguments.submission, os.environ)
        with contextlib.suppress(OSError):
            report["token"] = (Path(node.submission.run_dir) / TOKEN_FILE).read_text()
        # Before the imports, which take a while and not equally long everywhere.
        report |= {"node_rank": node.node_rank, "host": node.hosts[node.node_rank]}
        report |= meet(node, timeout_s=arguments.patience_s)
    report = {**examine(arguments.out), **report}
    write_atomically(arguments.out / report_name(report["node_rank"]), json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
