"""The command line of one rank: read the cell, refuse what cannot run, train, leave."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from sweep.core.attempt import ErrorClass
from trainer import flight, node, refusal, tokens_file
from trainer.failure import (
    EXIT_REFUSED,
    Reporter,
    StopWatcher,
    Whereabouts,
    die_with_agent,
    leave,
    reported,
)
from trainer.ranks import Ranks, speaks_for_all

if TYPE_CHECKING:
    from collections.abc import Sequence

_DESCRIPTION = """\
Trains one cell of a sweep and writes what it measured into DIR: progress.json, steps.jsonl and, last,
result.json. Several ranks: torchrun --nproc-per-node N -m trainer --cell FILE --out DIR. A cell of one
rank can be run without torchrun: python -m trainer --cell FILE --out DIR.
With --preflight one process checks a cell of any size before a GPU is asked for.
"""
_EPILOGUE = """\
Exit code: 0 result.json was written; 1 an error (error-rank-R.json says which); 2 refused before anything
was started; 143 or 130 stopped by SIGTERM or SIGINT.
"""
# How long a rank that has nothing to add waits for the one that speaks: it may still be importing.
_PATIENCE_S = 60.0
# The same for what shows in the arguments and variables alone, for which there is no folder to look into.
_BRIEF_PATIENCE_S = 5.0


class _Parser(argparse.ArgumentParser):
    """One line from one rank; the usage is what ``--help`` is for."""

    def error(self, message: str) -> NoReturn:
        _refuse_unplaced(message)


def parser() -> argparse.ArgumentParser:
    """The arguments of one rank."""
    made = _Parser(
        prog="trainer",
        description=_DESCRIPTION,
        epilog=_EPILOGUE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("--cell", type=Path, required=True, metavar="FILE", help="cell.json: what to run")
    made.add_argument("--out", type=Path, metavar="DIR", help="an existing folder for records")
    checked = made.add_argument_group("preflight", "one process, for a cell of any number of ranks; writes nothing")
    checked.add_argument(
        "--preflight", action="store_true", help="run one rank on fake tensors: what is wrong, memory, communication"
    )
    checked.add_argument("--rank", type=int, default=0, metavar="R", help="which rank (default: 0)")
    checked.add_argument("--json", action="store_true", help="print the record instead of a table")
    return made


def main(argv: Sequence[str] | None = None) -> None:
    """Run one rank; leaves the process by itself where something goes wrong."""
    started_at = time.time()
    arguments = parser().parse_args(argv)
    if arguments.preflight:
        # Its own module: it starts no ranks and answers on standard output.
        from trainer import preflight_cli

        sys.exit(preflight_cli.main(arguments.cell, rank=arguments.rank, as_json=arguments.json))
    if arguments.out is None:
        _refuse_unplaced("--out DIR is needed: an existing folder for records.")
    if not arguments.out.is_dir():
        _refuse_unplaced(f"--out {arguments.out}: there is no such folder. Make it first.")
    try:
        ranks = Ranks.from_environment(os.environ)
    except refusal.Refusal as refused:
        _refuse_unplaced(str(refused))
    die_with_agent(ranks)
    flight.prepare(arguments.out, os.environ)
    reporter = Reporter(arguments.out, ranks, Whereabouts(), keep_flight=lambda: flight.dump(arguments.out, ranks.rank))
    StopWatcher(reporter, ranks).start()
    with reported(reporter):
        try:
            file = refusal.read_cell(arguments.cell)
            refusal.check_ranks(file.cell, ranks)
            tokens_file.check(file.cell)
        except refusal.Refusal as refused:
            _refuse(str(refused), reporter, ranks, speaker=0)
        # Only now: importing torch takes seconds, and a login node that only asks has none.
        from trainer import session

        try:
            refusal.check_devices(file.device, session.names_on_node(file.device.type), ranks)
            session.check_precision(file.cell, session.capabilities_on_node(file.device.type))
            if file.device.type == "cuda" and (nvml := node.open_nvml()) is not None:
                node.check_empty(nvml, session.uuids_on_node(file.device.type, ranks.local_world_size))
        except refusal.Refusal as refused:
            _refuse(str(refused), reporter, ranks, speaker=ranks.node_speaker)
        session.run(file, arguments.out, ranks, reporter, started_at=started_at)


def _refuse_unplaced(reason: str) -> NoReturn:
    """Refuse what every rank finds before it knows its place, in one line of rank 0."""
    if speaks_for_all(os.environ):
        print(f"trainer: refused: {reason}", file=sys.stderr, flush=True)
    else:
        # The first rank that leaves makes the agent stop the others.
        time.sleep(_BRIEF_PATIENCE_S)
    leave(EXIT_REFUSED)


def _refuse(reason: str, reporter: Reporter, ranks: Ranks, *, speaker: int) -> NoReturn:
    """Say in one line of one rank what all ranks, or all of this node, find alike.

    The others wait, so that it is not stopped before it has. A node that alone finds something (a file that is on no
    disk of its own) says so itself, once it has waited for nothing.
    """
    candidates = [speaker, ranks.node_speaker]
    for candidate in dict.fromkeys(candidates):
        if ranks.rank == candidate:
            print(f"trainer: refused: {reason}", file=sys.stderr, flush=True)
            reporter.report(ErrorClass.REFUSED, reason)
            break
        if _is_refused_by(candidate, reporter, _PATIENCE_S if candidate == speaker else _BRIEF_PATIENCE_S):
            break
    leave(EXIT_REFUSED)


def _is_refused_by(rank: int, reporter: Reporter, patience_s: float) -> bool:
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        if reporter.reported_class(rank) is ErrorClass.REFUSED:
            return True
        time.sleep(0.05)
    return False
