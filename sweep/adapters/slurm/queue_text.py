"""Reads the rows that squeue and sacct print about jobs, and decides between the two."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, replace
from types import MappingProxyType

from sweep.adapters.slurm.fields import (
    UNKNOWN,
    array_of,
    is_script_of,
    parse_exit_code,
    parse_nodes,
    parse_row_id,
    parse_time,
    split_script,
)
from sweep.core.attempts.attempt import ABSENT, JobReport, JobRun, Phase, slurm_state
from sweep.core.encoding.frozen import dataclass

# The reason comes late: an administrator's text may hold anything, a separator too. So may another user's job name.
SQUEUE_FORMAT = "%i|%j|%T|%N|%S|%e|%r|%o"
RUNS_FORMAT = "JobID,Start,End"
SACCT_FORMAT = "JobID,JobName,State,NodeList,Start,End,ExitCode,Reason"

NO_NAMES: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """The reports that one command gave."""

    exact: dict[str, JobReport] = field(default_factory=dict)
    """By id, for the jobs and array tasks that the command names."""
    rest: dict[str, JobReport] = field(default_factory=dict)
    """By array, for the tasks that it does not name: a task list was cut short (``42_[2,5,...]``), or the array has
    only a record of its own (``42``) because its waiting tasks ended before they became jobs."""
    others: dict[str, str] = field(default_factory=dict)
    """By array the name of another job that has its id: a controller that lost its state gives ids out again."""
    arrays: set[str] = field(default_factory=set)
    """Arrays and plain jobs of which the command names anything."""

    def add(self, row_id: str, name: str, report: JobReport, names: Mapping[str, str], script: str = "") -> None:
        """Take in one row; skip it where its first column is no job id (a step, a banner).

        Of an array in ``names`` a row counts only with that name or with the submission's script: ``scontrol update``
        or a site's job_submit plugin can change the name.
        """
        named = parse_row_id(row_id)
        if named is None:
            return
        array, ids, is_whole = named
        if array in names and name != names[array] and not is_script_of(names[array], script):
            self.others[array] = name
            return
        self.arrays.add(array)
        self.exact.update(dict.fromkeys(ids, report))
        if not is_whole:
            self.rest[array] = report


def read_squeue(text: str, names: Mapping[str, str] = NO_NAMES) -> Rows:
    """Rows of ``squeue -h -o SQUEUE_FORMAT``; of an array in ``names`` only those with its name or its script."""
    return _read(map(split_script, text.splitlines()), _squeue_report, names)


def read_sacct(text: str, names: Mapping[str, str] = NO_NAMES) -> Rows:
    """Rows of ``sacct -X -P -n -o SACCT_FORMAT``; of an array in ``names`` only those with its name."""
    return _read(((line, "") for line in text.splitlines()), _sacct_report, names)


def read_runs(text: str) -> dict[str, list[JobRun]]:
    """Runs of each job in ``sacct -D -X -P -n -o RUNS_FORMAT``, the earliest first; a job that waits has no run."""
    found: dict[str, list[JobRun]] = {}
    for line in text.splitlines():
        row_id, start, end, *_ = [*line.split("|"), "", ""]
        named, started_at, ended_at = parse_row_id(row_id), parse_time(start), parse_time(end)
        # Slurm gives a job that ended while it waited the same start as end, or no start.
        if named is not None and started_at is not None and started_at != ended_at:
            for job in named[1]:
                found.setdefault(job, []).append(JobRun(started_at=started_at, ended_at=ended_at))
    return {job: sorted(runs, key=lambda run: run.started_at) for job, runs in found.items()}


def _read(lines: Iterable[tuple[str, str]], report: Callable[[list[str]], JobReport], names: Mapping[str, str]) -> Rows:
    rows = Rows()
    for line, script in lines:
        row_id, *fields = line.split("|")
        if len(fields) == 1:
            # A line that was cut short, perhaps inside the name, still shows that the job exists.
            rows.add(row_id, names.get(array_of(row_id), ""), report([""] * 6), names)
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
    """One report, without times that did not happen, such as the expected start of a pending job."""
    state, hosts = state.strip(), parse_nodes(nodes)
    phase = slurm_state(state).phase
    has_ended = phase is Phase.ENDED
    # While the processes of a requeued job end, squeue prints the time of the requeue as the job's start.
    is_requeued = state == "COMPLETING" and parse_time(end) is None
    return JobReport(
        state=state,
        phase=phase,
        reason="" if reason.strip() in UNKNOWN else reason.strip(),
        nodes=hosts,
        exit_code=exit_code if has_ended else None,
        # Slurm gives a job that ended while it waited the same start as end, and no nodes.
        started_at=parse_time(start) if hosts and phase is not Phase.PENDING and not is_requeued else None,
        ended_at=parse_time(end) if has_ended else None,
    )


def best_report(job_id: str, queue: Rows, accounting: Rows) -> JobReport | None:
    """The report on one job that counts: an exact row before its array's, and the queue, which is current, first.

    The user who cancelled a job stands only in accounting. A job that only accounting reports as alive is absent,
    since the queue has every job that is alive: either its end has not reached accounting yet, or the controller has
    lost the job and accounting will never record an end.
    """
    recorded = accounting.exact.get(job_id) or accounting.rest.get(array_of(job_id))
    found = _best_report(job_id, queue, accounting, recorded)
    if found is None or found.state != "CANCELLED" or recorded is None:
        return found
    return replace(found, state=recorded.state) if recorded.state.startswith("CANCELLED by ") else found


def _best_report(job_id: str, queue: Rows, accounting: Rows, recorded: JobReport | None) -> JobReport | None:
    array, exact = array_of(job_id), accounting.exact.get(job_id)
    candidates = (queue.exact.get(job_id), _if_ended(exact), queue.rest.get(array), _if_ended(recorded))
    found = next((report for report in candidates if report is not None), None)
    if found is None and recorded is not None:
        return replace(ABSENT, state=recorded.state)
    return _REMOVED if found is None and array != job_id and array in accounting.arrays else found


_REMOVED = JobReport(
    state="CANCELLED",
    phase=Phase.ENDED,
    reason="its array goes on without it: a cancelled pending task leaves no other trace",
    is_inferred=True,
)
"""Slurm 22.05 keeps no record of an array task that is cancelled while it waits, as long as other tasks are left."""


def _if_ended(report: JobReport | None) -> JobReport | None:
    return report if report is not None and report.phase is Phase.ENDED else None
