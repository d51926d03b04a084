"""Tables of Slurm's words: whether a failed sbatch submitted a job, and which waiting of a job never ends."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING

from sweep.core.attempts.attempt import JobReport, Phase
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
    UNKNOWN = "unknown"
    """Refused, as it seems, in words that this table does not know: a site's own, or a new version's."""


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
    # The controller's own disk, and a site's wrapper, which asks for patience.
    (r"I/O error writing script|try again later", Meaning.NOT_NOW),
    (r"^sbatch: (unrecognized|invalid|option|ambiguous)|^sbatch: error: unable to open file", Meaning.REFUSED),
    (r"invalid [^\n]*(specif|combination)|is invalid$|not permitted|access denied", Meaning.REFUSED),
    (r"violates accounting/QOS policy|can not be satisfied|configuration is not available", Meaning.REFUSED),
)
_NOT_EXECUTED = (126, 127)
_NO_NODE = re.compile(r"requested node configuration is not available", re.IGNORECASE)


def meaning_of(answer: Answer) -> Meaning:
    """The fate of a submission whose sbatch failed; after one that a signal ended, a job may exist."""
    printed = f"{answer.stderr}\n{answer.stdout}"
    for pattern, meaning in RULES:
        if re.search(pattern, printed, re.IGNORECASE | re.MULTILINE):
            return meaning
    if answer.returncode in _NOT_EXECUTED:
        return Meaning.UNREACHED
    return Meaning.UNKNOWN if answer.returncode > 0 else Meaning.UNCERTAIN


def error_of(answer: Answer) -> SchedulerError | SubmissionRejectedError | SubmissionUncertainError:
    """The exception for a failed sbatch, with the words that it printed."""
    message = answer.message or f"sbatch ended with exit code {answer.returncode} and printed nothing"
    match meaning_of(answer):
        case Meaning.UNCERTAIN:
            return SubmissionUncertainError(message)
        case Meaning.UNREACHED:
            return SchedulerError(message)
        case Meaning.NOT_NOW:
            return SubmissionRejectedError(message, is_transient=True)
        case Meaning.UNKNOWN:
            return SubmissionRejectedError(message, is_known=False)
        case Meaning.REFUSED:
            return SubmissionRejectedError(message, leaves_no_node=_NO_NODE.search(answer.stderr) is not None)


HOPELESS: tuple[tuple[str, str], ...] = (
    (r"PartitionTimeLimit", "the walltime is above the partition's MaxTime"),
    (r"PartitionNodeLimit", "the job asks for more or fewer nodes than the partition allows"),
    (r"PartitionConfig", "the partition's settings do not allow the request"),
    (r"BadConstraints", "no node can ever satisfy the request"),
    (r"AccountNotAllowed", "the partition does not accept the account"),
    (r"QOSNotAllowed", "the partition does not accept the QOS"),
    (r"Job's (account|QOS) not permitted to use this partition", "squeue's sentence for the two reasons above"),
    (r"InvalidAccount", "the account does not exist any more, or not for this user"),
    (r"InvalidQOS", "the QOS does not exist any more, or not for this user"),
    (r"(QOS|Assoc)Max\w+PerJob(Limit)?", "the job alone is above a limit on each job (walltime, nodes, GPUs ...)"),
    (r"(QOS|Assoc)Max\w+PerNode(Limit)?", "the job asks for more of each node than a limit allows"),
    (r"QOSMin\w+", "the job is smaller than the QOS requires"),
    (r"MaxMemPerLimit", "the job asks for more memory than MaxMemPerCPU or MaxMemPerNode"),
    (r"ReservationDeleted", "the reservation was deleted, and the job is held"),
    (r"DependencyNeverSatisfied", "a job that this one depends on has failed"),
)
"""Patterns of reasons that no waiting cures, each with its meaning.

The reasons come from Slurm's page of job reason codes (slurm.schedmd.com/job_reason_codes.html) and from
``job_reason_string()`` in its source. Seen with Slurm 22.05 on jobs that never started: PartitionTimeLimit,
PartitionNodeLimit, InvalidQOS, QOSMaxWallDurationPerJobLimit, QOSMaxNodePerJobLimit, QOSMinCpuNotSatisfied, and the
two sentences, which squeue prints instead of AccountNotAllowed and QOSNotAllowed.

Not listed, because they pass: a wait for other jobs (Priority, Resources, Reservation, JobArrayTaskLimit, Licenses), a
limit that is used up for now (``...PerUser...``, ``...PerAccount...``, ``...Grp...``, MaxJobs, MaxSubmit), a state that
somebody can change (PartitionDown, PartitionInactive, ReqNodeNotAvail, "Nodes required for job are DOWN, DRAINED or
reserved", JobHeldUser, JobHeldAdmin), and every reason that is not known.
"""
_HOPELESS = re.compile("|".join(f"(?:{pattern})" for pattern, _ in HOPELESS))
_WORD = re.compile(r"\w+")


def is_hopeless(report: JobReport) -> bool:
    """True if the job is pending for a reason that no waiting cures."""
    if report.phase is not Phase.PENDING:
        return False
    match = _HOPELESS.match(report.reason.strip())
    # A reason that only begins with one of the patterns is another reason.
    return match is not None and not _WORD.match(report.reason.strip(), match.end())
