"""Asks squeue and sacct about the jobs of one user: how they go, whose they are, which were killed for host memory."""

from __future__ import annotations

import pwd
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import field
from pathlib import Path

from sweep.adapters.slurm.commands import SlurmCommands, argument_chunks
from sweep.adapters.slurm.fields import array_of, arrays_in, is_script_in, is_script_of, parse_row_id, split_script
from sweep.adapters.slurm.queue_text import (
    RUNS_FORMAT,
    SACCT_FORMAT,
    SQUEUE_FORMAT,
    Rows,
    read_runs,
    read_sacct,
    read_squeue,
)
from sweep.core.attempts.attempt import JobRun, Phase, slurm_state
from sweep.core.encoding.frozen import dataclass
from sweep.ports import SchedulerError

NO_SUCH_JOB = re.compile(r"invalid job id specified|already completing or completed", re.IGNORECASE)
"""Slurm's complaint about a job that has ended."""
# The clocks of the login node and of the controller may differ, and sacct takes a day to begin at its midnight.
_MARGIN_S = 86_400.0
# Without both options sacct leaves out a job that was cancelled before it could ever run, unless asked by id.
_EVERY_STATE = ("-s", "BF,CA,CD,DL,F,NF,OOM,PD,PR,R,RQ,RS,RV,S,TO", "-E", "now+1days")


class JobQueries:
    """Asks squeue and sacct; each method makes one call, or several where the ids exceed one command line.

    Each method raises :class:`sweep.ports.SchedulerError` where a command fails.

    Args:
        commands: Runs the commands.
        user: Name or number of the user.
    """

    def __init__(self, commands: SlurmCommands, user: str) -> None:
        self._commands, self._user = commands, user

    def queue(self, names: Mapping[str, str]) -> Rows:
        """The user's jobs in the queue; of an array in ``names`` only a job with that name or the job script."""
        return read_squeue(self._squeue(SQUEUE_FORMAT), names)

    def queued_arrays(self, name: str) -> list[str]:
        """Ids of the arrays and jobs in the queue that have a name."""
        return arrays_in(self._squeue("%i", f"--name={name}"))

    def recorded_arrays(self, name: str, *, since: float) -> list[str]:
        """Ids of the arrays and jobs in accounting that have a name."""
        return arrays_in(self._sacct("JobID", f"--name={name}", *_EVERY_STATE, since=since))

    def recorded(self, job_ids: Iterable[str], names: Mapping[str, str], *, since: float) -> Rows:
        """Accounting's rows of jobs. Whole arrays are asked for, because sacct is slow task by task."""
        lines = [self._sacct(SACCT_FORMAT, "-j", ids, since=since) for ids in _array_chunks(job_ids)]
        return read_sacct("\n".join(lines), names)

    def runs(self, job_ids: Iterable[str], *, since: float) -> dict[str, list[JobRun]]:
        """Every run of jobs, which sacct lists only with -D."""
        lines = [self._sacct(RUNS_FORMAT, "-D", "-j", ids, since=since) for ids in _array_chunks(job_ids)]
        return read_runs("\n".join(lines))

    def over_memory(self, job_ids: Iterable[str], *, since: float) -> dict[str, str]:
        """The jobs of which a step was killed above its memory limit, with a sentence; a failure finds none."""
        found: dict[str, str] = {}
        for ids in _array_chunks(job_ids):
            with suppress(SchedulerError):
                found |= killed_over_memory(self._sacct(MEMORY_FORMAT, "-j", ids, since=since, steps=True))
        return found

    def owners(self, job_ids: Iterable[str]) -> Owners:
        """The owner, name and script of whatever has these ids now, other users' jobs included."""
        ask = ("squeue", "--array", "-h", "-t", "all")
        lines = [
            self._commands.ask([*ask, "-j", ids, "-o", OWNER_FORMAT], unless=NO_SUCH_JOB)
            for ids in _array_chunks(job_ids)
        ]
        return read_owners("\n".join(lines), self._user)

    def _squeue(self, columns: str, *more: str) -> str:
        # All states: squeue shows a job with its final state for MinJobAge seconds after its end, before sacct does.
        return self._commands.ask(["squeue", "--array", "-h", "-t", "all", "-u", self._user, "-o", columns, *more])

    def _sacct(self, columns: str, *more: str, since: float, steps: bool = False) -> str:
        # The first day leaves out jobs of the same id from before a reset of the controller's counter.
        day = time.strftime("%Y-%m-%d", time.localtime(since - _MARGIN_S))
        rows = [] if steps else ["-X"]
        try:
            return self._commands.ask(["sacct", *rows, "-P", "-n", "-u", self._user, "-S", day, "-o", columns, *more])
        except SchedulerError as error:
            if "accounting storage is disabled" in str(error).lower():
                raise SchedulerError(f"{error}. This cluster keeps no accounting: set slurm.sacct=false.") from error
            raise


def _array_chunks(job_ids: Iterable[str]) -> Iterator[str]:
    """The ids of the jobs' arrays, each once, in as few comma-separated lists as command lines allow."""
    return (",".join(ids) for ids in argument_chunks(list(dict.fromkeys(map(array_of, job_ids)))))


MEMORY_FORMAT = "JobID,ExitCode,MaxRSS,ReqMem,NNodes"
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMGTP]?)([nc]?)")
_UNITS = {unit: 1024**power for power, unit in enumerate(("", "K", "M", "G", "T", "P"))}


def killed_over_memory(text: str) -> dict[str, str]:
    """The jobs killed above their memory limit, with a sentence, by ``sacct -P -n -o MEMORY_FORMAT`` with steps."""
    limits: dict[str, float] = {}
    used: dict[str, float] = {}
    for line in text.splitlines():
        row_id, exit_code, max_rss, req_mem, nodes, *_ = [*line.split("|"), *[""] * 5]
        job, _, step = row_id.partition(".")
        if step:
            if exit_code.endswith(":9"):
                used[job] = max(used.get(job, 0.0), _bytes(max_rss) or 0.0)
            continue
        named, limit = parse_row_id(job), _limit_bytes(req_mem, nodes)
        if named is not None and limit is not None:
            limits.update(dict.fromkeys(named[1], limit))
    return {
        job: f"a step was killed that used {_mib(most)} of the job's {_mib(limits[job])} on each node"
        for job, most in used.items()
        if most > limits.get(job, float("inf"))
    }


def _limit_bytes(req_mem: str, nodes: str) -> float | None:
    """Bytes that a job asked for on each node: with ``n`` (before Slurm 21.08) as given, else the sum of all nodes."""
    size, match = _bytes(req_mem), _SIZE.fullmatch(req_mem.strip())
    if not size or match is None or match[3] == "c":
        return None
    if match[3] == "n":
        return size
    return size / int(nodes) if nodes.strip().isdecimal() and int(nodes) else None


def _mib(size_bytes: float) -> str:
    return f"{size_bytes / 2**20:,.0f} MiB"


def _bytes(text: str) -> float | None:
    match = _SIZE.fullmatch(text.strip())
    return None if match is None else float(match[1]) * _UNITS[match[2]]


OWNER_FORMAT = "%i|%T|%U|%u|%j|%o"
_CANCELLED_BY = re.compile(r"CANCELLED by (\d+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Owners:
    """The jobs that have some ids now."""

    names: dict[str, str] = field(default_factory=dict)
    """By array or plain job its name; for another user's job, also that user's."""
    scripts: dict[str, str] = field(default_factory=dict)
    """By array or plain job of this user its job script."""
    pending: set[str] = field(default_factory=set)
    """Jobs and array tasks that have not begun."""

    def objection(self, job_id: str, submission: str, run_dir: Path) -> str | None:
        """Why the job that has this id now is none of the submission's; None where it is, empty where it is gone.

        A name proves little: who wrote the records may have put the name and id of any job into them. The job's script
        was given to Slurm by the owner, and cannot be changed.
        """
        array = array_of(job_id)
        if array not in self.names:
            return ""
        name, script = self.names[array], self.scripts.get(array, "")
        if name != submission and not is_script_of(submission, script):
            return f"{job_id} is now the id of another job, {name}"
        if is_script_in(run_dir, script):
            return None
        return f"{job_id} has the name {name}, but its job script {script or '(unknown)'} is none of {run_dir}"


def read_owners(text: str, user: str) -> Owners:
    """Rows of ``squeue --array -h -o OWNER_FORMAT``; ``user`` is a name or a numeric id."""
    owners = Owners()
    for line in text.splitlines():
        row_id, state, uid, owner, rest = (*line.split("|", 4), "", "", "", "")[:5]
        name, script = split_script(rest)
        named = parse_row_id(row_id)
        if named is None:
            continue
        is_mine = user in (uid, owner)
        owners.names[named[0]] = name if is_mine else f"{name} of {owner}"
        if is_mine:
            owners.scripts[named[0]] = script
        if slurm_state(state).phase is Phase.PENDING:
            owners.pending.update(named[1])
    return owners


def who_cancelled(state: str, user: str) -> str:
    """Who cancelled a job, as a phrase after "cancelled by"; empty where its state does not tell.

    Only the owner, an operator or an administrator can cancel a job.
    """
    found = _CANCELLED_BY.fullmatch(state)
    if found is None:
        return ""
    try:
        name = pwd.getpwuid(int(found[1])).pw_name
    except (KeyError, OverflowError):
        name = f"user {found[1]}"
    return "you outside of this tool (scancel)" if user in (found[1], name) else f"{name} (an administrator)"
