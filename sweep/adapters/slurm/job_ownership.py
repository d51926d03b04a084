"""Reads who owns a job and who cancelled it. A controller that lost its state gives job ids out again."""

from __future__ import annotations

import pwd
import re
from dataclasses import field
from typing import TYPE_CHECKING

from sweep.adapters.slurm.fields import array_of, is_script_in, is_script_of, parse_row_id, split_script
from sweep.core.attempts.attempt import Phase, slurm_state
from sweep.core.encoding.frozen import dataclass

if TYPE_CHECKING:
    from pathlib import Path

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
