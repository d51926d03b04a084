"""Names of all files and folders of a run directory, on which the tool, the trainer and the analysis agree.

A run directory::

    sweep.json                                          the grid's points, rejections, series and devices
    ledger.jsonl                                        what was reserved, submitted and how it ended
    lease.json                                          the process that may write now
    scheduler-away.json                                 since when the scheduler cannot be reached; absent while it can
    sources/<hash>/{sweep,trainer,analysis}/            the code that queued jobs run
    submissions/<name>.json                             what one submission runs, by array index
    submissions/<name>.claim                            the one job that runs the submission, or that it was withdrawn
    submissions/logs/                                   what a job printed before it knew its attempt
    cells/<cell_id>/repeat-01/attempt-01/               one try at a repeat
        cell.json                                       what to run
        attempt.json                                    what the launcher of node 0 did and saw
        node-0.log node-1.log                           everything a node's processes printed
        progress.json                                   the step a running trainer is at
        steps.jsonl                                     one line a step
        error-rank-0.json error-node-0.json             only after an error
        flight-rank-0                                   torch's flight recorder, only after communication failed
        result.json                                     renamed last: it is complete
        restart-1/                                      the same files of the next run of the same job id
    local/                                              processes of local jobs (the local cluster only)
    provenance/                                         uncommitted diffs, by their hash
    requests/                                           cancels for the process that holds the lease
    tables/ figures/
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePosixPath

from sweep.core.attempts.attempt import AttemptKey

SWEEP_FILE = "sweep.json"
LEDGER_FILE = "ledger.jsonl"
LEASE_FILE = "lease.json"
AWAY_FILE = "scheduler-away.json"
SOURCES_DIR = "sources"
SUBMISSIONS_DIR = "submissions"
SUBMISSION_LOGS_DIR = "submissions/logs"
CELLS_DIR = "cells"
TABLES_DIR = "tables"
FIGURES_DIR = "figures"
CELL_FILE = "cell.json"
ATTEMPT_FILE = "attempt.json"
PROGRESS_FILE = "progress.json"
STEPS_FILE = "steps.jsonl"
RESULT_FILE = "result.json"
FLIGHT_PREFIX = "flight-rank-"
ERROR_GLOB = "error-*.json"
STORAGE_MARK = re.compile(r"storage-(?P<number>\d{1,4})-node-(?P<node>\d{1,6})")
LOG_GLOB = "node-*.log"
ACTED_ON = (SUBMISSIONS_DIR, "local", "requests", SOURCES_DIR)
"""Folders whose records decide what runs or is ended."""

_RESTART = re.compile(r"restart-([1-9][0-9]*)")


def attempt_dir(key: AttemptKey) -> PurePosixPath:
    """Folder of an attempt, relative to the run directory."""
    return PurePosixPath(attempt_path(key))


def attempt_path(key: AttemptKey) -> str:
    """The same folder as text; making a text is faster than making a path."""
    return f"{CELLS_DIR}/{key.cell_id}/repeat-{key.repeat:02d}/attempt-{key.attempt:02d}"


def restart_dir(attempt: PurePosixPath, restart: int) -> PurePosixPath:
    """Folder of a restart (the same job id run again); restart 0 is the attempt's own folder."""
    return attempt if restart == 0 else attempt / f"restart-{restart}"


def restarts_in(names: Iterable[str]) -> list[int]:
    """Restarts of an attempt, in order, from the names in its folder; 0, the first run, is always among them."""
    return [0, *sorted(int(match[1]) for name in names if (match := _RESTART.fullmatch(name)))]


def node_log(node_rank: int) -> str:
    """File with everything that the processes of one node print."""
    return f"node-{node_rank}.log"


def rank_error(rank: int) -> str:
    """Error file of one rank."""
    return f"error-rank-{rank}.json"


def storage_mark(number: int, node_rank: int) -> str:
    """Empty file of a node's launcher that could write nothing, with the error's number: a full disk takes names."""
    return f"storage-{number}-node-{node_rank}"


def node_error(node_rank: int) -> str:
    """Error file of one node's launcher."""
    return f"error-node-{node_rank}.json"
