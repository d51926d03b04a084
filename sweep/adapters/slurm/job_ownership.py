"""Reads who owns a job and who cancelled it. A controller that lost its state gives job ids out again."""

from __future__ import annotations

import pwd
import re
from dataclasses import field

from sweep.adapters.slurm.job_ids import array_of, is_script_of, parse_row_id, split_script
from sweep.core.attempts.attempt import Phase, slurm_state
from sweep.core.encoding.frozen import dataclass

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

    def owns(self, job_id: str, submission: str) -> bool:
        """True if the job that has this id now is this user's job of the submission, by its name or its script."""
        array = array_of(job_id)
        return self.names.get(array) == submission or is_script_of(submission, self.scripts.get(array, ""))


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
