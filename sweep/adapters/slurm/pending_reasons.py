"""Recognises the reasons of a pending job that no waiting cures."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sweep.core.attempts.attempt import Phase

if TYPE_CHECKING:
    from sweep.core.attempts.attempt import JobReport

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
