"""Reasons of a pending job that no waiting cures, and reasons that pass."""

from __future__ import annotations

import pytest

from sweep.adapters.slurm.refusal import HOPELESS, is_hopeless
from sweep.core.attempts.attempt import JobReport, Phase


@pytest.mark.parametrize(
    "reason",
    [
        "PartitionTimeLimit",
        "PartitionNodeLimit",
        "BadConstraints",
        "AccountNotAllowed",
        "Job's account not permitted to use this partition (debug allows other not sweep)",
        "Job's QOS not permitted to use this partition (debug allows normal not high)",
        "InvalidAccount",
        "InvalidQOS",
        "QOSMaxWallDurationPerJobLimit",
        "AssocMaxWallDurationPerJobLimit",
        "QOSMaxNodePerJobLimit",
        "QOSMaxGRESPerJob",
        "QOSMaxGRESMinutesPerJob",
        "AssocMaxCpuPerNode",
        "QOSMinCpuNotSatisfied",
        "QOSMinGRES",
        "MaxMemPerLimit",
        "ReservationDeleted",
        "DependencyNeverSatisfied",
    ],
)
def test_this_reason_never_passes(reason: str) -> None:
    assert is_hopeless(JobReport(state="PENDING", phase=Phase.PENDING, reason=reason))
    assert not is_hopeless(JobReport(state="RUNNING", phase=Phase.RUNNING, reason=reason))


@pytest.mark.parametrize(
    "reason",
    [
        *("", "None", "Priority", "Resources", "Reservation", "BeginTime", "Dependency", "JobArrayTaskLimit"),
        *("QOSMaxJobsPerUserLimit", "QOSMaxGRESPerUser", "QOSMaxCpuPerUserLimit", "QOSGrpGRES", "AssocGrpCpuLimit"),
        *("QOSGrpCPUMinutesLimit", "AssocMaxJobsLimit", "MaxGRESPerAccount", "QOSMaxSubmitJobPerUserLimit"),
        *("PartitionDown", "PartitionInactive", "JobHeldUser", "JobHeldAdmin", "Licenses", "NodeDown"),
        "ReqNodeNotAvail, UnavailableNodes:node2",
        "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
        *("PartitionTimeLimitSoon", "SomethingNew", "not InvalidQOS"),
    ],
)
def test_this_reason_may_pass(reason: str) -> None:
    assert not is_hopeless(JobReport(state="PENDING", phase=Phase.PENDING, reason=reason))


def test_every_hopeless_reason_is_explained() -> None:
    assert all(pattern and meaning for pattern, meaning in HOPELESS)
