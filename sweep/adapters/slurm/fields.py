"""Reads single values that Slurm's commands print: job ids, node lists, times, exit codes."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from pathlib import Path

from sweep.core.encoding.hostlist import expand_hostlist
from sweep.core.records.layout import SUBMISSION_LOGS_DIR

UNKNOWN = ("", "None", "NONE", "N/A", "Unknown", "(null)", "None assigned", "n/a")
"""How Slurm's commands print a value that is not known or not there."""
SAY_ZONE = 'echo "sweep: zone $(env -u TZ date +%z)"'
"""Line of a job script that writes the node's time zone into the log: slurmstepd writes its times without one."""


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


_JOB_ID = re.compile(r"(?P<array>\d+)(?:_(?:(?P<index>\d+)|\[(?P<indices>[^\]]*)(?P<closed>\])?))?")
_RANGE = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?")


def task_ids(array_id: str, tasks: int) -> tuple[str, ...]:
    """Ids of a submission's jobs: of an array ``42_0``, ``42_1``, ...; of a single task ``42``."""
    return (array_id,) if tasks == 1 else tuple(f"{array_id}_{index}" for index in range(tasks))


def array_of(job_id: str) -> str:
    """Id of the array that a task belongs to; a plain job's own id."""
    return job_id.partition("_")[0]


def arrays_in(text: str) -> list[str]:
    """Ids of the arrays and plain jobs in a column of job ids, each once."""
    named = (parse_row_id(line) for line in text.splitlines())
    return list(dict.fromkeys(item[0] for item in named if item is not None))


def parse_row_id(text: str) -> tuple[str, list[str], bool] | None:
    """A row's first column as (array or job, ids that it names, True if the row speaks of no others).

    None for anything that is neither a job nor array tasks, such as a step. Slurm was seen to print each of these:
    ``42``, ``42_7``, ``42_[0-2,5%2]``, ``42_[3-49:2%1]`` and, cut short, ``42_[4,7,11...%2]`` and ``42_[4,7,11,1``.
    """
    match = _JOB_ID.fullmatch(text.strip())
    if match is None:
        return None
    array = match["array"]
    if match["indices"] is not None:
        # Without its bracket even the last number may be cut: 56 was seen as 5.
        listed = match["indices"] if match["closed"] else match["indices"].rpartition(",")[0]
        indices, is_whole = _parse_indices(listed)
        return array, [f"{array}_{index}" for index in indices], is_whole and bool(match["closed"])
    if match["index"] is not None:
        return array, [f"{array}_{int(match['index'])}"], True
    return array, [array], False


def _parse_indices(text: str) -> tuple[list[int], bool]:
    """Indices of a task list, and True if the list is complete; a part that is no range counts as cut short."""
    indices: list[int] = []
    is_whole = True
    for part in text.partition("%")[0].split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            is_whole = False
            continue
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        indices.extend(range(first, last + 1, max(step, 1)))
    return indices, is_whole


def script_name(submission: str) -> str:
    """File name of a submission's job script. Unlike the job's name, nobody can change it after the submission."""
    return f"{submission}.sh"


def is_script_of(submission: str, script: str) -> bool:
    """True if a job's command, as squeue prints it, is the submission's job script."""
    return script.endswith(f"/{script_name(submission)}")


def is_script_in(run_dir: Path, script: str) -> bool:
    """True if a job's command, as squeue prints it, is a job script of this run directory.

    Links below the run directory count for nothing: one could lead to the scripts of another run.
    """
    folder = Path(script).parent
    if folder == run_dir / SUBMISSION_LOGS_DIR:
        return True
    with suppress(OSError):  # neither is there; a run directory may have several names
        return str(folder).endswith(f"/{SUBMISSION_LOGS_DIR}") and folder.parents[1].samefile(run_dir)
    return False


def split_script(text: str) -> tuple[str, str]:
    """A row without its last column, and that column: the job's command (%o), empty where the job has no script."""
    before, separator, command = text.rpartition("|")
    if command.strip() in UNKNOWN:
        return (before, "") if separator and command else (text, "")
    before, separator, path = text.partition("|/")
    return (before, f"/{path}") if separator else (text, "")
