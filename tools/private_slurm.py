#!/usr/bin/env python3
"""A private multi-node Slurm on one Debian or Ubuntu machine: up, down, status, env.

Everything is in one directory (DIR, by default ``.slurm`` in the checkout), with daemons, sockets and ports of its own.
So it never touches a Slurm, munge or MariaDB of the system, and several can run side by side::

    DIR/cluster.json   the settings (nodes, GPUs, ports, lines of slurm.conf), from which all that follows is made
    DIR/etc            slurm.conf, gres.conf, cgroup.conf, slurmdbd.conf, munge.key
    DIR/state spool db log dev
    /run/private-slurm/HASH   sockets, process records, and ``dir``, a link to DIR; HASH is made from DIR's path

All paths in the configuration use that link, because a Unix socket's path may have at most 108 bytes (slurmstepd
creates sockets in the spool directory), and slurm.conf cannot quote blanks or brackets in a path.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if __package__ in (None, ""):  # run as a script: sys.path then starts with tools/, not with the checkout
    sys.path.insert(0, str(ROOT))

from tools.slurmbox.cluster import Cluster, Status  # noqa: E402 - needs the path above
from tools.slurmbox.errors import BadRequestError, CannotRunHereError, PrivateSlurmError  # noqa: E402 - needs the path above

__all__ = ["DEFAULT_DIR", "CannotRunHereError", "Cluster", "PrivateSlurmError", "Status", "main"]

DEFAULT_DIR = ROOT / ".slurm"


def _parser() -> argparse.ArgumentParser:
    """The command line."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--dir", type=Path, default=DEFAULT_DIR, help="its directory (default: %(default)s)")
    common.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser = argparse.ArgumentParser(prog="private_slurm.py", description="A private multi-node Slurm on one machine.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    _add_up(verbs.add_parser("up", parents=[common], help="bring it up, or repair it"))
    down = verbs.add_parser("down", parents=[common], help="cancel all jobs and stop everything")
    down.add_argument("--purge", action="store_true", help="and remove the directory with all its history")
    verbs.add_parser("status", parents=[common], help="show what runs; exit 1 if jobs could not run")
    verbs.add_parser("env", parents=[common], help="print the variables to export")
    return parser


def _add_up(up: argparse.ArgumentParser) -> None:
    """Options of the verb `up`; an option that is not given stays as it was."""
    up.add_argument("--nodes", type=int, help="virtual nodes (at first 4)")
    up.add_argument("--gpus-per-node", type=int, help="fake GPUs on each (at first 8)")
    up.add_argument("--cpus-per-node", type=int, help="CPUs that each claims to have (at first 8)")
    up.add_argument(
        "--set",
        type=_key_value,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a line for slurm.conf, kept for later; KEY= removes it; may be repeated",
    )


def _key_value(text: str) -> tuple[str, str]:
    """The key and the value of an argument KEY=VALUE."""
    key, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} has no '='; write KEY=VALUE")
    return key.strip(), value.strip()


def _print_json(value: Mapping[str, Any]) -> None:
    """Print one object on standard output."""
    print(json.dumps(value, indent=1))


def _up(cluster: Cluster, options: argparse.Namespace) -> int:
    """Run the verb `up`."""
    began = time.monotonic()
    changed = cluster.up(
        nodes=options.nodes,
        gpus_per_node=options.gpus_per_node,
        cpus_per_node=options.cpus_per_node,
        set_values=dict(options.set),
    )
    if options.json:
        _print_json({"changed": changed, **asdict(cluster.status())})
        return 0
    took, settings = f"{time.monotonic() - began:.1f} s", cluster.settings()
    size = f"{settings.nodes} nodes x {settings.gpus_per_node} fake GPUs"
    print(f"Slurm is up: {size}, {took}." if changed else f"Slurm was up: {size}, verified in {took}.")
    print(f"To use it:\n  export SLURM_CONF={shlex.quote(str(cluster.layout.slurm_conf))}\n  sinfo")
    return 0


def _down(cluster: Cluster, options: argparse.Namespace) -> int:
    """Run the verb `down`."""
    cluster.down(purge=options.purge)
    if options.json:
        _print_json({"dir": str(cluster.layout.root), "purged": options.purge})
    else:
        print(f"Slurm is down; {cluster.layout.root} is {'removed' if options.purge else 'kept'}.")
    return 0


def _status(cluster: Cluster, options: argparse.Namespace) -> int:
    """Run the verb `status`: exit 0 exactly when the cluster can run jobs."""
    status = cluster.status()
    if options.json:
        _print_json(asdict(status))
        return 0 if status.up else 1
    print(f"{'up' if status.up else 'NOT up'}: {status.dir}")
    for name, pid in status.daemons.items():
        state = status.nodes.get(name.removeprefix("slurmd."), "")
        print(f"  {name:14} {f'pid {pid}' if pid else 'not running':14} {state}".rstrip())
    for problem in status.problems:
        print(f"  problem: {problem}")
    return 0 if status.up else 1


def _env(cluster: Cluster, options: argparse.Namespace) -> int:
    """Run the verb `env`."""
    if options.json:
        _print_json(cluster.env())
    else:
        print("\n".join(f"export {name}={shlex.quote(value)}" for name, value in cluster.env().items()))
    return 0


VERBS: Mapping[str, Callable[[Cluster, argparse.Namespace], int]] = {
    "up": _up,
    "down": _down,
    "status": _status,
    "env": _env,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb. Exit 0: done. 1: failed, or `status` found a problem. 2: bad usage, or impossible here."""
    options = _parser().parse_args(argv)
    cluster = Cluster(options.dir, say=lambda text: print(f"private-slurm: {text}", file=sys.stderr))
    try:
        return VERBS[options.verb](cluster, options)
    except PrivateSlurmError as error:
        print(f"private-slurm: {error}", file=sys.stderr)
        return 2 if isinstance(error, (BadRequestError, CannotRunHereError)) else 1


if __name__ == "__main__":
    sys.exit(main())
