"""``python -m analysis trace FILE...``: reduces the profiler's traces of one node's ranks to numbers.

Needs the standard library, numpy and msgspec: it runs where the trainer ran.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

from analysis.trace.groups import MESH_ORDER
from analysis.trace.join import JoinError, join
from analysis.trace.reading.stream import TraceError
from analysis.trace.record import NodeProfile, RankProfile, TraceFailure, profile_path, write_profile
from analysis.trace.reduce import reduce_trace
from analysis.trace.text import joined_lines, to_lines, to_object
from sweep.files import PRIVATE_UMASK, umask_for

_EPILOG = (
    "exit codes: 0 reduced; 2 a file is no trace, is cut or damaged (named on standard error; the others are reduced), "
    "or the profile cannot be written"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Reduce traces, print what they hold, and write the node's profile where asked; the exit code."""
    options = _parser().parse_args(argv)
    profiles: list[RankProfile] = []
    failures: list[TraceFailure] = []
    try:
        for path in options.files:
            try:
                profile = reduce_trace(path, options.mesh)
            except TraceError as error:
                print(f"analysis trace: {error}", file=sys.stderr)
                failures.append(TraceFailure(file=path.name, reason=str(error)))
                continue
            profiles.append(profile)
            for line in [json.dumps(to_object(profile))] if options.json else to_lines(profile):
                print(line, flush=True)
        if not options.json:
            _print_joined(profiles)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if options.out is not None and not _write(options.out, options.node, profiles, failures):
        return 2
    return 2 if failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m analysis trace", description=__doc__, epilog=_EPILOG)
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="a trace of torch.profiler: .json[.gz]")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write profile-<node>.json there")
    parser.add_argument("--node", default=platform.node() or "node", help="the node's name (default: this machine's)")
    parser.add_argument("--json", action="store_true", help="print one JSON object a file")
    parser.add_argument(
        "--mesh",
        type=_mesh,
        metavar="DIM=N,...",
        help=f"degrees of the mesh ({', '.join(MESH_ORDER)}), where the trace does not hold them",
    )
    return parser


def _mesh(text: str) -> dict[str, int]:
    degrees = {}
    for part in text.split(","):
        name, _, degree = part.partition("=")
        if name not in MESH_ORDER or not degree.isdigit() or int(degree) < 1:
            raise argparse.ArgumentTypeError(f"{part!r} is no degree. Write NAME=N, of {', '.join(MESH_ORDER)}.")
        degrees[name] = int(degree)
    return degrees


def _print_joined(profiles: Sequence[RankProfile]) -> None:
    if len(profiles) < 2:
        return
    try:
        joined = join(profiles)
    except JoinError as error:
        print(f"not joined: {error}")
        return
    for line in joined_lines(joined):
        print(line, flush=True)


def _write(folder: Path, node: str, profiles: Sequence[RankProfile], failures: Sequence[TraceFailure]) -> bool:
    """Write the node's profile; False where that failed, which a message says."""
    path = profile_path(folder, node)
    try:
        os.umask(umask_for(folder) if folder.exists() else PRIVATE_UMASK)
        write_profile(path, NodeProfile(node=node, ranks=tuple(profiles), failures=tuple(failures)))
    except OSError as error:
        print(f"analysis trace: cannot write {path}: {error.strerror or error}", file=sys.stderr)
        return False
    print(path, file=sys.stderr)
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
