"""The policy of a run, as data: its retries, its limits and its budget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from sweep.core.attempts.attempt import Outcome
from sweep.core.attempts.outcome_rules import BLAMING, OUTCOME_RULES, OutcomeRule
from sweep.core.encoding.frozen import dataclass

NEVER_RETRIED = frozenset({Outcome.SUCCEEDED, Outcome.OOM_DEVICE, Outcome.OOM_HOST, Outcome.CANCELLED})
"""A measurement stands, out of memory is a finding, and a cancelled repeat stays so until the user asks for it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """Everything that decides about attempts besides the cells and their history.

    Attributes:
        outcomes: The rule for each outcome; total over :class:`sweep.core.attempts.attempt.Outcome`.
        canary: True if the smallest cell of each model goes first, and the others once it is not given up.
        pause_after: Identical TRAINER_ERRORs after which nothing more is submitted; 0: never.
        infer_oom: True if cells are not run that need strictly more memory than one that ran out of it.
        max_concurrent_jobs: Jobs in the queue at once; None: no limit.
        max_concurrent_gpus: GPUs of jobs in the queue at once; None: no limit.
        budget_gpu_hours: GPU-hours that the run may cost; walltime x GPUs is reserved, what was used is settled.
        watchdog_s: Seconds without a step after which a running job is ended; 0: never.
        hopeless_after_s: Seconds that a job may wait in the queue for a reason that will never pass.
        pending_limit_h: Hours that a job may wait in the queue for any reason; None: no limit.
        bad_node_after: Cells that must blame a node before later submissions exclude it.
        bad_node_expiry_h: Hours after which blame is forgotten.
    """

    outcomes: Mapping[Outcome, OutcomeRule] = field(default_factory=lambda: dict(OUTCOME_RULES))
    canary: bool = True
    pause_after: int = 3
    infer_oom: bool = True
    max_concurrent_jobs: int | None = None
    max_concurrent_gpus: int | None = None
    budget_gpu_hours: float | None = None
    watchdog_s: float = 0.0
    hopeless_after_s: float = 60.0
    pending_limit_h: float | None = None
    bad_node_after: int = 2
    bad_node_expiry_h: float = 24.0

    def __post_init__(self) -> None:
        """Refuse a policy that leaves an outcome open, or would retry what must not be."""
        missing = [outcome for outcome in Outcome if outcome not in self.outcomes]
        if missing:
            raise ValueError(f"the policy says nothing of {', '.join(missing)}. Give each outcome a rule.")
        wrong = [outcome for outcome in NEVER_RETRIED if self.outcomes[outcome].max_retries]
        if wrong:
            raise ValueError(
                f"{', '.join(sorted(wrong))} is never retried by itself: a measurement stands, out of memory is a "
                "finding, and a cancelled cell waits to be asked for (retry=[...]). Set max_retries: 0."
            )
        blind = [outcome for outcome in Outcome if self.outcomes[outcome].avoid_nodes and outcome not in BLAMING]
        if blind:
            raise ValueError(
                f"avoid_nodes for {', '.join(blind)}: only {' and '.join(sorted(BLAMING))} say which node is at fault. "
                "Leave it out there."
            )
        for name in ("max_concurrent_jobs", "max_concurrent_gpus", "budget_gpu_hours", "pending_limit_h"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name}={value} would let nothing run. Give a number above 0, or null for no limit.")
