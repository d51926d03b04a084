"""The command line of one rank: read the cell, refuse what cannot run, train, leave."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

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
from trainer.ranks import Ranks

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


def parser() -> argparse.ArgumentParser:
    """The arguments of one rank."""
    made = argparse.ArgumentParser(
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
        parser().error("--out DIR is needed: an existing folder for records")
    if not arguments.out.is_dir():
        parser().error(f"--out {arguments.out}: there is no such folder. Make it first.")
    ranks = Ranks.from_environment(os.environ)
    die_with_agent(ranks)
    flight.prepare(arguments.out, os.environ)
    reporter = Reporter(arguments.out, ranks, Whereabouts(), keep_flight=lambda: flight.dump(arguments.out, ranks.rank))
    StopWatcher(reporter, ranks).start()
    with reported(reporter):
        try:
            file = refusal.read_cell(arguments.cell)
            refusal.check_ranks(file.cell, ranks)
            tokens_file.check(file.cell)
            # Only now: importing torch takes seconds, and a login node that only asks has none.
            from trainer import session

            refusal.check_devices(file.device, session.names_on_node(file.device.type), ranks)
            session.check_precision(file.cell, session.capabilities_on_node(file.device.type))
            if file.device.type == "cuda" and (nvml := node.open_nvml()) is not None:
                node.check_empty(nvml, session.uuids_on_node(file.device.type, ranks.local_world_size))
        except refusal.Refusal as refused:
            _refuse(str(refused), reporter, ranks)
            return
        session.run(file, arguments.out, ranks, reporter, started_at=started_at)


def _refuse(reason: str, reporter: Reporter, ranks: Ranks) -> None:
    """All ranks of a node find the same; one says it, and the others wait so that it is not stopped before it has."""
    if ranks.speaks_for_node:
        print(f"trainer: refused: {reason}", file=sys.stderr, flush=True)
        reporter.report(ErrorClass.REFUSED, reason)
    else:
        _wait_for(reporter, ranks.node_ranks.start)
    leave(EXIT_REFUSED)


def _wait_for(reporter: Reporter, rank: int) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not reporter.is_reported(rank) and time.monotonic() < deadline:
        time.sleep(0.05)
