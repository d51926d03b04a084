"""The command line of one rank: reads the cell, refuses one that cannot run, trains it."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from sweep.core.attempts.attempt import ErrorClass
from trainer.data import tokens_file
from trainer.device import nvml as gpus
from trainer.failure import error_report as flight
from trainer.failure.error_report import ErrorReporter, RankProgress, reported
from trainer.failure.process_exit import EXIT_REFUSED, die_with_agent, leave
from trainer.failure.watchers import StopWatcher
from trainer.process import refusal
from trainer.process.ranks import Ranks, reports_at_once

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
# Seconds that a rank waits for the reporting rank of its node, which may still be importing.
_PATIENCE_S = 60.0
# Seconds for rank 0 of another node: torchrun starts all ranks at once, and a rank that waits longer may be stopped.
_PATIENCE_WITH_ANOTHER_NODE_S = 10.0
# Seconds where another report is unlikely, or there is no folder to find it in.
_BRIEF_PATIENCE_S = 5.0


class _Parser(argparse.ArgumentParser):
    """Reports an error in one line of one rank, without the usage text."""

    def error(self, message: str) -> NoReturn:
        _refuse_unplaced(message)


def parser() -> argparse.ArgumentParser:
    """Build the argument parser."""
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
    """Run one rank; an error ends the process."""
    started_at = time.time()
    arguments = parser().parse_args(argv)
    if arguments.preflight:
        from trainer.preflight import command as preflight_cli

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
    flight.enable(arguments.out, os.environ)
    reporter = ErrorReporter(
        arguments.out, ranks, RankProgress(), keep_flight=lambda: flight.dump(arguments.out, ranks.rank)
    )
    StopWatcher(reporter, ranks).start()
    with reported(reporter):
        try:
            file = refusal.read_cell(arguments.cell)
            refusal.check_ranks(file.cell, ranks)
            # Thousands of ranks would read the same file: rank 0 reads it, and its refusal ends the run.
            tokens_file.check(file.cell, reads_tokens=ranks.rank == 0)
        except refusal.Refusal as refused:
            _refuse(str(refused), reporter, ranks, speaker=0)
        # Only now: the import of torch takes seconds, and a broken rule needs none.
        from trainer.device import devices
        from trainer.model import precision
        from trainer.training import session

        try:
            refusal.check_devices(file.device, devices.names_on_node(file.device.type), ranks)
            precision.check(file.cell, devices.capabilities_on_node(file.device.type))
            if file.device.type == "cuda" and (nvml := gpus.open_nvml()) is not None:
                gpus.check_empty(nvml, devices.uuids_on_node(file.device.type, ranks.local_world_size))
        except refusal.Refusal as refused:
            _refuse(str(refused), reporter, ranks, speaker=ranks.first_rank_of_node)
        session.run(file, arguments.out, ranks, reporter, started_at=started_at)


def _refuse_unplaced(reason: str) -> NoReturn:
    """Refuse before this rank knows its place; rank 0 prints the line if it finds the same error."""
    if not reports_at_once(os.environ):
        # The first rank that ends makes its agent stop the others of its node, so the node's first rank waits less.
        time.sleep(_BRIEF_PATIENCE_S if os.environ.get("LOCAL_RANK") == "0" else 2 * _BRIEF_PATIENCE_S)
    _print(reason)
    leave(EXIT_REFUSED)


def _refuse(reason: str, reporter: ErrorReporter, ranks: Ranks, *, speaker: int) -> NoReturn:
    """Refuse in one line of one rank for an error that all ranks, or all of this node, find.

    The others wait, so that the agent does not stop the reporting rank too early. If its report does not come, because
    only this node has the error (for example a missing file), the node's first rank reports it; else this rank does.
    ``speaker`` is the rank that should report.
    """
    reporter.progress.refusal = reason
    for other in dict.fromkeys((speaker, ranks.first_rank_of_node)):
        if other == ranks.rank:
            break
        if _is_refused_by(other, reporter, _patience_s(other, speaker, ranks)):
            leave(EXIT_REFUSED)
    _print(reason)
    reporter.report(ErrorClass.REFUSED, reason)
    leave(EXIT_REFUSED)


def _patience_s(other: int, speaker: int, ranks: Ranks) -> float:
    if other not in ranks.node_ranks:
        return _PATIENCE_WITH_ANOTHER_NODE_S
    return _PATIENCE_S if other == speaker else _BRIEF_PATIENCE_S


def _print(reason: str) -> None:
    print(f"trainer: refused: {reason}", file=sys.stderr, flush=True)


def _is_refused_by(rank: int, reporter: ErrorReporter, patience_s: float) -> bool:
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        if reporter.reported_class(rank) is ErrorClass.REFUSED:
            return True
        time.sleep(0.05)
    return False
