"""Why a job waits, in the scheduler's word, and what a person can do about one that somebody must release."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sweep.core.attempts.attempt import Phase

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sweep.core.attempts.attempt import JobReport

HINTS_FOR_HELD: Mapping[str, str] = {
    "jobhelduser": "its user held it: `scontrol release JOB`",
    "jobheldadmin": "an administrator held it: ask them, or cancel it",
    "requeue_hold": "it was requeued and held: `scontrol release JOB` once what ended it is mended, or cancel it",
    "special_exit": "it was requeued and held: `scontrol release JOB` once what ended it is mended, or cancel it",
    "launch failed requeued held": "its node could not start it: have the node seen to, then `scontrol release JOB`",
    "job requeued in held state": "it was requeued and held: `scontrol release JOB`, or cancel it",
}
"""By the scheduler's word for the state, or its reason, in small letters (Slurm's job reason codes page)."""


def held_hint(report: JobReport) -> str:
    """The remedy for a job that is held; empty for one that is not."""
    if report.phase is not Phase.PENDING:
        return ""
    words = (report.state.lower(), report.reason.strip().lower().strip("()").replace("_", " "), report.reason.lower())
    return next((HINTS_FOR_HELD[word] for word in words if word in HINTS_FOR_HELD), "")


def waits_for(report: JobReport) -> str:
    """Why a job waits, in the scheduler's word, and what can be done about it; empty for one that does not wait."""
    if report.phase is not Phase.PENDING:
        return ""
    why = report.reason.strip("()").replace("None", "") or report.state
    return "; ".join(filter(None, (why, held_hint(report))))
