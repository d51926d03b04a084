"""How Slurm says, in a job's log, that it ended the job or could not begin it: what is left once nobody can be asked.

The log is the one that sbatch names. The launcher sends everything that it and the trainer print to other files, so
that apart from a site's set-up lines only slurmstepd and srun write here.
"""

from __future__ import annotations

import re
from datetime import datetime

from sweep.core.attempts.attempt import JobReport, Phase
from sweep.core.encoding.frozen import dataclass

# slurmstepd-NODE where several slurmd share a host; srun's --label puts a number before it; some sites have a time.
_LINE = re.compile(r"^(?:\s*\d+: )?(?:slurmstepd(?:-\S+)?:|\[\d{4}-\d\d-\d\dT[\d:.]+\]) error: (?P<text>.+)$")
# _handle_signal_container() and job_signal() in Slurm's src/slurmd; a step alone is ended for many reasons.
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
# _launch_tasks() in Slurm's src/api. For other reasons than these (a CPU binding that cannot be) no node is to blame.
_NOT_LAUNCHED = re.compile(r"^srun: error: (?P<text>Task launch for \S+ failed on node (?P<node>\S+): (?P<why>.+))$")
_NOT_REACHED = re.compile(
    r"^communication|timed out|not connected|connection (refused|reset)|no route|unreachable|host is down|zero bytes"
    r"|find an address|credential expired",
    re.IGNORECASE,
)
# By polling (jobacct_gather); by cgroup in two wordings, before and since Slurm 23.
_OVER_MEMORY = re.compile(r"exceeded (?:job )?memory limit|oom[-_]kill event", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Said:
    """A line of slurmstepd or srun: what it means for the job (None: nothing), when (Unix time), of which node."""

    text: str
    state: str | None
    at: float | None = None
    node: str = ""


def last_words(text: str, *, since: float) -> JobReport | None:
    """What a job's log says of its end, Slurm's own sentence as the reason; None where it says nothing of it.

    Args:
        text: The log, or its end.
        since: Unix time before which nothing counts: a job that is requeued goes on in the same log.
    """
    lines: list[_Said] = []
    for said in filter(None, map(_said, text.splitlines())):
        if said.at is not None and said.at < since:
            lines.clear()
        else:
            lines.append(said)
    telling = [said for said in lines if said.state is not None]
    if not telling:
        return None
    # For its memory a job is killed first and called cancelled afterwards.
    over_memory = (said for said in telling if said.state == "OUT_OF_MEMORY")
    # What ended the job may be why srun did not reach a node.
    word = next(over_memory, ([said for said in telling if not said.node] or telling)[-1])
    nodes = dict.fromkeys(said.node for said in lines if said.node)
    return JobReport(
        state=str(word.state),
        phase=Phase.ENDED,
        reason=word.text,
        ended_at=next((said.at for said in reversed(lines) if said.at is not None), None),
        at_fault=tuple(nodes) if word.state == "NODE_FAIL" else (),
    )


def _said(line: str) -> _Said | None:
    launch = _NOT_LAUNCHED.match(line)
    if launch is not None and _NOT_REACHED.search(launch["why"]):
        return _Said(text=launch["text"], state="NODE_FAIL", node=launch["node"])
    found = _LINE.match(line)
    if found is None:
        return None
    text = found["text"].strip()
    ended = _ENDED.search(text)
    at = None if ended is None else datetime.fromisoformat(ended["at"]).timestamp()
    return _Said(text=text, state=_state(text, ended), at=at)


def _state(said: str, ended: re.Match[str] | None) -> str | None:
    if ended is None:
        return "OUT_OF_MEMORY" if _OVER_MEMORY.search(said) else None
    if ended["what"] == "STEP" and ended["why"] is None:
        return None
    why = ended["why"]
    return _STATES.get(None if why is None else why.strip())
