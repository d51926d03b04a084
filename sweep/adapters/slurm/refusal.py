"""What a failed sbatch means: told apart by Slurm's own words, as data."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING

from sweep.ports import SchedulerError, SubmissionRejectedError, SubmissionUncertainError

if TYPE_CHECKING:
    from sweep.adapters.slurm.commands import Answer


class Meaning(StrEnum):
    """What became of the submission."""

    UNCERTAIN = "uncertain"
    UNREACHED = "unreached"
    NOT_NOW = "not_now"
    REFUSED = "refused"


# Tried in this order against everything that sbatch said; the first that is found decides.
RULES: tuple[tuple[str, Meaning], ...] = (
    # The request was sent and no reply came: it may have been taken.
    (r"socket timed out", Meaning.UNCERTAIN),
    (r"\((send|receive|shutdown) failure\)", Meaning.UNCERTAIN),
    (r"zero bytes were transmitted|unexpected message received|incomplete message", Meaning.UNCERTAIN),
    (r"connection reset|broken pipe|transport endpoint", Meaning.UNCERTAIN),
    # The request never reached a controller that takes jobs.
    (r"\(connect failure\)|connection refused|unable to resolve|standby mode", Meaning.UNREACHED),
    (r"configuration (source|file)|munge|authentication|credential", Meaning.UNREACHED),
    (r"unable to contact slurm controller", Meaning.UNCERTAIN),
    # Limits on how much may be submitted, and what is only out of service: QOSMaxSubmitJobPerUserLimit,
    # AssocMaxSubmitJobLimit, QOSGrpSubmitJobsLimit, AssocGrpSubmitJobsLimit ... "Job violates accounting/QOS policy"
    # is said for walltime and size too, so it decides nothing: the line before it does.
    (r"\b(QOS|Assoc)\w*Submit\w*Limit\b|^sbatch: error: MaxSubmitJobsPerAccount\b", Meaning.NOT_NOW),
    (r"temporarily un|required (partition|node) not available", Meaning.NOT_NOW),
    (r"^sbatch: (error|fatal): |^sbatch: (unrecognized|invalid|option|ambiguous)", Meaning.REFUSED),
)
_NOT_EXECUTED = (126, 127)
_NO_NODE = re.compile(r"requested node configuration is not available", re.IGNORECASE)


def meaning_of(answer: Answer) -> Meaning:
    """What a failed sbatch means; where nothing that is understood was said, the job may exist."""
    for pattern, meaning in RULES:
        if re.search(pattern, answer.stderr, re.IGNORECASE | re.MULTILINE):
            return meaning
    return Meaning.UNREACHED if answer.returncode in _NOT_EXECUTED else Meaning.UNCERTAIN


def error_of(answer: Answer) -> SchedulerError | SubmissionRejectedError | SubmissionUncertainError:
    """The exception for a failed sbatch, with Slurm's own words."""
    words = answer.message or f"sbatch ended with exit code {answer.returncode} and said nothing"
    match meaning_of(answer):
        case Meaning.UNCERTAIN:
            return SubmissionUncertainError(words)
        case Meaning.UNREACHED:
            return SchedulerError(words)
        case Meaning.NOT_NOW:
            return SubmissionRejectedError(words, is_transient=True)
        case Meaning.REFUSED:
            return SubmissionRejectedError(words, leaves_no_node=_NO_NODE.search(answer.stderr) is not None)
