"""Decides by a table of Slurm's error messages whether a failed sbatch submitted a job."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING

from sweep.ports import SchedulerError, SubmissionRejectedError, SubmissionUncertainError

if TYPE_CHECKING:
    from sweep.adapters.slurm.commands import Answer


class Meaning(StrEnum):
    """The fate of a submission."""

    UNCERTAIN = "uncertain"
    """A job may exist."""
    UNREACHED = "unreached"
    """The controller never saw the request."""
    NOT_NOW = "not_now"
    """Refused by a limit that may pass."""
    REFUSED = "refused"
    """Refused for good."""


# Searched in this order in everything that sbatch printed; the first match decides.
RULES: tuple[tuple[str, Meaning], ...] = (
    # The request was sent and no reply came: the controller may have accepted it.
    (r"socket timed out", Meaning.UNCERTAIN),
    (r"\((send|receive|shutdown) failure\)", Meaning.UNCERTAIN),
    (r"zero bytes were transmitted|unexpected message received|incomplete message", Meaning.UNCERTAIN),
    (r"connection reset|broken pipe|transport endpoint", Meaning.UNCERTAIN),
    # The request never reached a controller that accepts jobs.
    (r"\(connect failure\)|connection refused|unable to resolve|standby mode", Meaning.UNREACHED),
    (r"configuration (source|file)|munge|authentication|credential", Meaning.UNREACHED),
    (r"unable to contact slurm controller", Meaning.UNCERTAIN),
    # Limits on submitted jobs (QOSMaxSubmitJobPerUserLimit, AssocMaxSubmitJobLimit, QOSGrpSubmitJobsLimit,
    # AssocGrpSubmitJobsLimit ...), and nodes out of service. "Job violates accounting/QOS policy" follows limits on
    # walltime and size too, so it decides nothing: the line before it does.
    (r"\b(QOS|Assoc)\w*Submit\w*Limit\b|^sbatch: error: MaxSubmitJobsPerAccount\b", Meaning.NOT_NOW),
    (r"temporarily un|required (partition|node) not available", Meaning.NOT_NOW),
    (r"^sbatch: (error|fatal): |^sbatch: (unrecognized|invalid|option|ambiguous)", Meaning.REFUSED),
)
_NOT_EXECUTED = (126, 127)
_NO_NODE = re.compile(r"requested node configuration is not available", re.IGNORECASE)


def meaning_of(answer: Answer) -> Meaning:
    """The fate of a submission whose sbatch failed; where no message matches, a job may exist."""
    for pattern, meaning in RULES:
        if re.search(pattern, answer.stderr, re.IGNORECASE | re.MULTILINE):
            return meaning
    return Meaning.UNREACHED if answer.returncode in _NOT_EXECUTED else Meaning.UNCERTAIN


def error_of(answer: Answer) -> SchedulerError | SubmissionRejectedError | SubmissionUncertainError:
    """The exception for a failed sbatch, with Slurm's own message."""
    message = answer.message or f"sbatch ended with exit code {answer.returncode} and printed no error"
    match meaning_of(answer):
        case Meaning.UNCERTAIN:
            return SubmissionUncertainError(message)
        case Meaning.UNREACHED:
            return SchedulerError(message)
        case Meaning.NOT_NOW:
            return SubmissionRejectedError(message, is_transient=True)
        case Meaning.REFUSED:
            return SubmissionRejectedError(message, leaves_no_node=_NO_NODE.search(answer.stderr) is not None)
