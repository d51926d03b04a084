"""The rule for each outcome: how often it is retried, with which change, and its meaning in the end."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from sweep.core.attempts.attempt import Outcome
from sweep.core.encoding.frozen import dataclass


class Disposition(StrEnum):
    """The meaning of an outcome for its cell once no retry is left."""

    MEASURED = "measured"
    FINDING = "finding"
    GAVE_UP = "gave_up"
    HELD = "held"


@dataclass(frozen=True, kw_only=True, slots=True)
class OutcomeRule:
    """The consequences of an outcome.

    Attributes:
        max_retries: Further attempts that it is worth; 0 for what would fail again. One outcome's do not count
            against another's.
        disposition: What it means for the cell in the end.
        shown_as: The word in the table's status column.
        backoff_s: Seconds before the first retry; doubled for each further one.
        walltime_factor: Walltime of a retry over that of the attempt before it, up to the partition's limit.
        avoid_nodes: True if a retry keeps away from the nodes that the evidence blames.
    """

    max_retries: int
    disposition: Disposition
    shown_as: str
    backoff_s: float = 0.0
    walltime_factor: float = 1.0
    avoid_nodes: bool = False

    def __post_init__(self) -> None:
        """Refuse what no retry can mean."""
        if self.max_retries < 0 or self.backoff_s < 0 or self.walltime_factor < 1:
            raise ValueError(
                f"max_retries={self.max_retries}, backoff_s={self.backoff_s}, walltime_factor={self.walltime_factor}: "
                "the first two must be 0 or more, the factor 1 or more."
            )


OUTCOME_RULES: Mapping[Outcome, OutcomeRule] = {
    Outcome.SUCCEEDED: OutcomeRule(max_retries=0, disposition=Disposition.MEASURED, shown_as="measured"),
    Outcome.OOM_DEVICE: OutcomeRule(max_retries=0, disposition=Disposition.FINDING, shown_as="oom_device"),
    Outcome.OOM_HOST: OutcomeRule(max_retries=0, disposition=Disposition.FINDING, shown_as="oom_host"),
    Outcome.TIMEOUT: OutcomeRule(
        max_retries=1, disposition=Disposition.GAVE_UP, shown_as="timeout", walltime_factor=2.0
    ),
    Outcome.NODE_FAIL: OutcomeRule(
        max_retries=5, disposition=Disposition.GAVE_UP, shown_as="node_fail", avoid_nodes=True
    ),
    Outcome.PREEMPTED: OutcomeRule(max_retries=20, disposition=Disposition.GAVE_UP, shown_as="preempted"),
    Outcome.COMM_FAILURE: OutcomeRule(
        max_retries=2, disposition=Disposition.GAVE_UP, shown_as="comm_failure", backoff_s=10.0
    ),
    Outcome.DEVICE_ERROR: OutcomeRule(
        max_retries=2, disposition=Disposition.GAVE_UP, shown_as="device_error", avoid_nodes=True
    ),
    Outcome.STORAGE_ERROR: OutcomeRule(
        max_retries=5, disposition=Disposition.GAVE_UP, shown_as="storage_error", backoff_s=30.0
    ),
    Outcome.TRAINER_ERROR: OutcomeRule(max_retries=0, disposition=Disposition.GAVE_UP, shown_as="trainer_error"),
    Outcome.REJECTED_BY_SCHEDULER: OutcomeRule(
        max_retries=0, disposition=Disposition.GAVE_UP, shown_as="rejected_by_scheduler"
    ),
    Outcome.CANCELLED: OutcomeRule(max_retries=0, disposition=Disposition.HELD, shown_as="cancelled"),
    Outcome.LOST: OutcomeRule(max_retries=2, disposition=Disposition.GAVE_UP, shown_as="lost", backoff_s=60.0),
}

BLAMING = frozenset({Outcome.NODE_FAIL, Outcome.DEVICE_ERROR})
"""Outcomes that can be a node's fault."""
