"""How Slurm itself says, in a job's log, that it ended the job: what is left once nobody can be asked any more.

The log is the one that sbatch names. The launcher sends everything that it and the trainer print to other files, so
that apart from a site's set-up lines only slurmstepd and srun write here.
"""

from __future__ import annotations

import re
from datetime import datetime

from sweep.core.attempt import JobReport, Phase

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
# By polling (jobacct_gather); by cgroup in two wordings, before and since Slurm 23.
_OVER_MEMORY = re.compile(r"exceeded (?:job )?memory limit|oom[-_]kill event", re.IGNORECASE)


def last_words(text: str, *, since: float) -> JobReport | None:
    """What a job's log says of its end, Slurm's own sentence as the reason; None where it says nothing of it.

    Args:
        text: The log, or its end.
        since: Unix time before which nothing counts: a job that is requeued goes on in the same log.
    """
    word: tuple[str, str] | None = None
    ended_at: float | None = None
    for line in text.splitlines():
        found = _LINE.match(line)
        if found is None:
            continue
        said = found["text"].strip()
        ended = _ENDED.search(said)
        if ended is not None:
            at = datetime.fromisoformat(ended["at"]).timestamp()
            if at < since:
                word = ended_at = None
                continue
            ended_at = at
        state = _state(said, ended)
        # For its memory a job is killed first and called cancelled afterwards.
        if state is not None and (word is None or word[0] != "OUT_OF_MEMORY"):
            word = (state, said)
    if word is None:
        return None
    return JobReport(state=word[0], phase=Phase.ENDED, reason=word[1], ended_at=ended_at)


def _state(said: str, ended: re.Match[str] | None) -> str | None:
    if ended is None:
        return "OUT_OF_MEMORY" if _OVER_MEMORY.search(said) else None
    if ended["what"] == "STEP" and ended["why"] is None:
        return None
    why = ended["why"]
    return _STATES.get(None if why is None else why.strip())
