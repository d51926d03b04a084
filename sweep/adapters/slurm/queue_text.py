"""Reading what squeue and sacct print: job ids, states, times, nodes."""

from __future__ import annotations

import re
from dataclasses import field, replace
from datetime import datetime
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING

from sweep.core.attempts.attempt import ABSENT, JobReport, JobRun, Phase, slurm_state
from sweep.core.encoding.frozen import dataclass
from sweep.core.encoding.hostlist import expand_hostlist

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

# The reason is late: an administrator's words may hold anything, a separator too. So may a name that is not ours.
SQUEUE_FORMAT = "%i|%j|%T|%N|%S|%e|%r|%o"
RUNS_FORMAT = "JobID,Start,End"
SACCT_FORMAT = "JobID,JobName,State,NodeList,Start,End,ExitCode,Reason"

NO_NAMES: Mapping[str, str] = MappingProxyType({})
_JOB_ID = re.compile(r"(?P<base>\d+)(?:_(?:(?P<index>\d+)|\[(?P<indices>[^\]]*)(?P<closed>\])?))?")
_RANGE = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?")
_UNKNOWN = ("", "None", "NONE", "N/A", "Unknown", "(null)", "None assigned", "n/a")


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """What one of the commands knows.

    Attributes:
        exact: Reports by job id, for the jobs and array tasks that it names.
        rest: By array, the report on the tasks that it does not name: a task list cut short (``42_[2,5,...]``), or the
            record of an array whose waiting tasks were ended before they became jobs of their own (``42``).
        others: By array the name of a job that has its id and is not the one that is meant: ids are given anew by a
            controller that has lost its state.
        arrays: Arrays and jobs of which it names anything.
    """

    exact: dict[str, JobReport] = field(default_factory=dict)
    rest: dict[str, JobReport] = field(default_factory=dict)
    others: dict[str, str] = field(default_factory=dict)
    arrays: set[str] = field(default_factory=set)

    def add(self, row_id: str, name: str, report: JobReport, names: Mapping[str, str], script: str = "") -> None:
        """Take in one row; a first column that is no job id (a step, a banner) is passed over.

        Of a job that is named only a row under its name, or with its script, counts: the name can be changed, by
        ``scontrol update`` or by a site's job_submit plugin.
        """
        named = parse_row_id(row_id)
        if named is None:
            return
        base, ids, is_whole = named
        if base in names and name != names[base] and not is_script_of(names[base], script):
            self.others[base] = name
            return
        self.arrays.add(base)
        self.exact.update(dict.fromkeys(ids, report))
        if not is_whole:
            self.rest[base] = report


def base_of(job_id: str) -> str:
    """The array that a task belongs to; a plain job's own id."""
    return job_id.partition("_")[0]


def script_name(submission: str) -> str:
    """What a submission's job script is called, whatever becomes of the job's name."""
    return f"{submission}.sh"


def is_script_of(submission: str, script: str) -> bool:
    """Whether a job's command, as squeue has it, is a submission's job script."""
    return script.endswith(f"/{script_name(submission)}")


def split_script(text: str) -> tuple[str, str]:
    """What stands before the last column, and that one: a job's command (%o); empty where it has no script."""
    before, separator, command = text.rpartition("|")
    if command.strip() in _UNKNOWN:
        return (before, "") if separator and command else (text, "")
    before, separator, path = text.partition("|/")
    return (before, f"/{path}") if separator else (text, "")


def parse_row_id(text: str) -> tuple[str, list[str], bool] | None:
    """A first column as (array or job, ids that it names, whether these are all that the row speaks of).

    None for anything that is neither a job nor array tasks, such as a step. Every form was seen in Slurm's own output:
    ``42``, ``42_7``, ``42_[0-2,5%2]``, ``42_[3-49:2%1]`` and, cut short, ``42_[4,7,11...%2]`` and ``42_[4,7,11,1``.
    """
    match = _JOB_ID.fullmatch(text.strip())
    if match is None:
        return None
    base = match["base"]
    if match["indices"] is not None:
        # Without its bracket even the last number may be cut: 56 was seen as 5.
        listed = match["indices"] if match["closed"] else match["indices"].rpartition(",")[0]
        indices, is_whole = _parse_indices(listed)
        return base, [f"{base}_{index}" for index in indices], is_whole and bool(match["closed"])
    if match["index"] is not None:
        return base, [f"{base}_{int(match['index'])}"], True
    return base, [base], False


def _parse_indices(text: str) -> tuple[list[int], bool]:
    """Indices of a task list, and whether it was whole: a part that is not understood counts as cut short."""
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


def read_squeue(text: str, names: Mapping[str, str] = NO_NAMES) -> Rows:
    """Rows of ``squeue -h -o SQUEUE_FORMAT``; of an array that is named, only those under its name or of its script."""
    return _read(map(split_script, text.splitlines()), _squeue_report, names)


def read_sacct(text: str, names: Mapping[str, str] = NO_NAMES) -> Rows:
    """Rows of ``sacct -X -P -n -o SACCT_FORMAT``; of an array that is named, only those under its name."""
    return _read(((line, "") for line in text.splitlines()), _sacct_report, names)


def read_runs(text: str) -> dict[str, list[JobRun]]:
    """Runs of jobs and array tasks in ``sacct -D -X -P -n -o RUNS_FORMAT``, the first first; one that waits is none."""
    found: dict[str, list[JobRun]] = {}
    for line in text.splitlines():
        row_id, start, end, *_ = [*line.split("|"), "", ""]
        named, started_at, ended_at = parse_row_id(row_id), parse_time(start), parse_time(end)
        # Slurm gives a job that ended while it waited the same start as end, or none.
        if named is not None and started_at is not None and started_at != ended_at:
            for job in named[1]:
                found.setdefault(job, []).append(JobRun(started_at=started_at, ended_at=ended_at))
    return {job: sorted(runs, key=lambda run: run.started_at) for job, runs in found.items()}


def bases(text: str) -> list[str]:
    """The arrays and jobs that a list of ids speaks of, each once."""
    named = (parse_row_id(line) for line in text.splitlines())
    return list(dict.fromkeys(item[0] for item in named if item is not None))


def _read(lines: Iterable[tuple[str, str]], report: Callable[[list[str]], JobReport], names: Mapping[str, str]) -> Rows:
    rows = Rows()
    for line, script in lines:
        row_id, *fields = line.split("|")
        if len(fields) == 1:
            # A line cut short, in its name perhaps, still says that the job is there.
            rows.add(row_id, names.get(base_of(row_id), ""), report([""] * 6), names)
        elif fields:
            name, *others = fields
            rows.add(row_id, name, report([*others, *[""] * 6]), names, script)
    return rows


def _squeue_report(fields: list[str]) -> JobReport:
    state, nodes, start, end, *reason = fields
    return _report(state, nodes, start, end, "|".join(reason).rstrip("|"))


def _sacct_report(fields: list[str]) -> JobReport:
    state, nodes, start, end, exit_code, *reason = fields
    return _report(state, nodes, start, end, "|".join(reason).rstrip("|"), parse_exit_code(exit_code))


def _report(state: str, nodes: str, start: str, end: str, reason: str, exit_code: int | None = None) -> JobReport:
    """One report; a time that lies ahead (the expected start of a waiting job) or never was is left out."""
    state, hosts = state.strip(), parse_nodes(nodes)
    phase = slurm_state(state).phase
    has_ended = phase is Phase.ENDED
    # Of a job that is requeued squeue shows when that was as its start, until its processes have ended.
    is_requeued = state == "COMPLETING" and parse_time(end) is None
    return JobReport(
        state=state,
        phase=phase,
        reason="" if reason.strip() in _UNKNOWN else reason.strip(),
        nodes=hosts,
        exit_code=exit_code if has_ended else None,
        # Slurm gives a job that ended while it waited the same start as end.
        started_at=parse_time(start) if hosts and phase is not Phase.PENDING and not is_requeued else None,
        ended_at=parse_time(end) if has_ended else None,
    )


@lru_cache(maxsize=4096)
def parse_nodes(text: str) -> tuple[str, ...]:
    """Node names; none where Slurm has not decided. A list that is not understood is kept as it is, as one name."""
    text = text.strip()
    if text in _UNKNOWN:
        return ()
    try:
        return expand_hostlist(text)
    except ValueError:
        return (text,)


def parse_time(text: str) -> float | None:
    """Unix time from what SLURM_TIME_FORMAT=%s gives, or from ISO local time where that variable is not honoured."""
    text = text.strip()
    if text.isdecimal():
        return float(text) or None
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return None


def parse_exit_code(text: str) -> int | None:
    """``STATUS:SIGNAL`` as one number: 128 + the signal, as a shell says it, where a signal ended the job.

    sacct takes 128 off a status above it: a batch script whose srun was killed (137) is shown as ``9:0``.
    """
    match = re.fullmatch(r"(\d+):(\d+)", text.strip())
    if match is None:
        return None
    status, number = int(match[1]), int(match[2])
    return 128 + number if number else status


def best_report(job_id: str, queue: Rows, accounting: Rows) -> JobReport | None:
    """The word that counts on one job: the more specific one, and the queue's before accounting's, which lags.

    Of a cancelled job only accounting says by whom. A job that accounting alone says is alive is absent: the queue has
    all that are. Either accounting has not heard of its end yet, or, where the controller has lost it, never will.
    """
    told = accounting.exact.get(job_id) or accounting.rest.get(base_of(job_id))
    found = _best_report(job_id, queue, accounting, told)
    if found is None or found.state != "CANCELLED":
        return found
    return replace(found, state=told.state) if told is not None and told.state.startswith("CANCELLED by ") else found


def _best_report(job_id: str, queue: Rows, accounting: Rows, told: JobReport | None) -> JobReport | None:
    base, exact = base_of(job_id), accounting.exact.get(job_id)
    candidates = (queue.exact.get(job_id), _if_ended(exact), queue.rest.get(base), _if_ended(told))
    found = next((report for report in candidates if report is not None), None)
    if found is None and told is not None:
        return replace(ABSENT, state=told.state)
    return _REMOVED if found is None and base != job_id and base in accounting.arrays else found


_REMOVED = JobReport(
    state="CANCELLED",
    phase=Phase.ENDED,
    reason="its array goes on without it: a task that waits leaves no other trace",
    is_inferred=True,
)
"""Slurm 22.05 keeps no record of an array's task that is cancelled while it waits, as long as others are there."""


def _if_ended(report: JobReport | None) -> JobReport | None:
    return report if report is not None and report.phase is Phase.ENDED else None
