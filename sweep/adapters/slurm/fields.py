"""Reads single values that Slurm's commands print: node lists, times, exit codes."""

from __future__ import annotations

import re
from datetime import datetime
from functools import lru_cache

from sweep.core.encoding.hostlist import expand_hostlist

UNKNOWN = ("", "None", "NONE", "N/A", "Unknown", "(null)", "None assigned", "n/a")
"""How Slurm's commands print a value that is not known or not there."""


@lru_cache(maxsize=4096)
def parse_nodes(text: str) -> tuple[str, ...]:
    """Node names of a host list; empty where Slurm has assigned none. Text that is no host list becomes one name."""
    text = text.strip()
    if text in UNKNOWN:
        return ()
    try:
        return expand_hostlist(text)
    except ValueError:
        return (text,)


def parse_time(text: str) -> float | None:
    """Unix time, from seconds (SLURM_TIME_FORMAT=%s) or from ISO local time where Slurm ignores that variable."""
    text = text.strip()
    if text.isdecimal():
        return float(text) or None
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return None


def parse_exit_code(text: str) -> int | None:
    """Exit code of sacct's ``STATUS:SIGNAL``; 128 + SIGNAL where a signal ended the job, as a shell reports it.

    sacct subtracts 128 from a status above it: it shows ``9:0`` for a batch script whose srun was killed (137).
    """
    match = re.fullmatch(r"(\d+):(\d+)", text.strip())
    if match is None:
        return None
    status, number = int(match[1]), int(match[2])
    return 128 + number if number else status
