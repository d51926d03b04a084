"""Reads from a job's log how Slurm ended the job or failed to start it, for when nobody can be asked any more.

sbatch names the log. The launcher sends its own output and the trainer's to other files, so that apart from a site's
set-up lines, and of what the job script says of them, only slurmstepd and srun write here.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from sweep.core.attempts.attempt import JobReport, Phase
from sweep.core.encoding.frozen import dataclass
from sweep.core.jobs.set_up import failure_in

# Written by `fields.SAY_ZONE`.
_ZONE = re.compile(r"^sweep: zone (?P<sign>[+-])(?P<hours>\d\d)(?P<minutes>\d\d)$")
# slurmstepd-NODE where several slurmd share a host; srun's --label puts a number first; some sites print a time.
_LINE = re.compile(r"^(?:\s*\d+: )?(?:slurmstepd(?:-\S+)?:|\[\d{4}-\d\d-\d\dT[\d:.]+\]) error: (?P<text>.+)$")
# _handle_signal_container() and job_signal() in Slurm's src/slurmd. A step alone is ended for many other reasons.
_ENDED = re.compile(
    r"\*\*\* (?P<what>JOB|STEP) \S+ (?:ON \S+ )?CANCELLED AT (?P<at>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)"
    r"(?: DUE TO (?P<why>[A-Z ]+))?"
)
_STATES = {
    "TIME LIMIT": "TIMEOUT",
    "PREEMPTION": "PREEMPTED",
    "NODE FAILURE": "NODE_FAIL",
    "JOB REQUEUE": "PREEMPTED",
    None: "CANCELLED",
}
# _launch_tasks() in Slurm's src/api. Any other reason (an impossible CPU binding) is not the node's fault.
_NOT_LAUNCHED = re.compile(r"^srun: error: (?P<text>Task launch for \S+ failed on node (?P<node>\S+): (?P<why>.+))$")
_NOT_REACHED = re.compile(
    r"^communication|timed out|not connected|connection (refused|reset)|no route|unreachable|host is down|zero bytes"
    r"|find an address|credential expired",
    re.IGNORECASE,
)
# By polling (jobacct_gather), and by cgroup in the wordings before and since Slurm 23.
_OVER_MEMORY = re.compile(r"exceeded (?:job )?memory limit|oom[-_]kill event", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Line:
    """A line of slurmstepd or srun."""

    text: str
    state: str | None
    """The job's state by this line; None where the line gives none."""
    at: float | None = None
    """Unix time."""
    node: str = ""
    """The node that srun did not reach."""


def reported_end(text: str, *, since: float) -> JobReport | None:
    """The end of a job by its log, with Slurm's own sentence as the reason; None where the log does not tell.

    Args:
        text: The log, or its beginning and its end.
        since: Unix time before which lines do not count: a requeued job goes on in the same log. A line whose zone the
            log does not tell has no time.
    """
    lines: list[_Line] = []
    zone: timedelta | None = None
    for written in text.splitlines():
        if found := _ZONE.match(written):
            offset = timedelta(hours=int(found["hours"]), minutes=int(found["minutes"]))
            zone = -offset if found["sign"] == "-" else offset
        line = _parse(written, zone)
        if line is None:
            continue
        if line.at is not None and line.at < since:
            lines.clear()
        else:
            lines.append(line)
    telling = [line for line in lines if line.state is not None]
    if not telling:
        return failure_in(text)
    # Slurm kills a job for its memory first and reports it as cancelled afterwards.
    over_memory = (line for line in telling if line.state == "OUT_OF_MEMORY")
    # Whatever ended the job may also be why srun did not reach a node, so it comes before an unreached node.
    decisive = next(over_memory, ([line for line in telling if not line.node] or telling)[-1])
    nodes = dict.fromkeys(line.node for line in lines if line.node)
    return JobReport(
        state=str(decisive.state),
        phase=Phase.ENDED,
        reason=decisive.text,
        ended_at=next((line.at for line in reversed(lines) if line.at is not None), None),
        at_fault=tuple(nodes) if decisive.state == "NODE_FAIL" else (),
    )


def _parse(line: str, zone: timedelta | None) -> _Line | None:
    launch = _NOT_LAUNCHED.match(line)
    if launch is not None and _NOT_REACHED.search(launch["why"]):
        return _Line(text=launch["text"], state="NODE_FAIL", node=launch["node"])
    found = _LINE.match(line)
    if found is None:
        return None
    text = found["text"].strip()
    ended = _ENDED.search(text)
    at = None
    if ended is not None and zone is not None:
        at = (datetime.fromisoformat(ended["at"]).replace(tzinfo=UTC) - zone).timestamp()
    return _Line(text=text, state=_state(text, ended), at=at)


def _state(text: str, ended: re.Match[str] | None) -> str | None:
    if ended is None:
        return "OUT_OF_MEMORY" if _OVER_MEMORY.search(text) else None
    if ended["what"] == "STEP" and ended["why"] is None:
        return None
    why = ended["why"]
    return _STATES.get(None if why is None else why.strip())
