"""Holds attempts back that could be submitted: for inferred OOM, a pause, the canary, back-off, budget, limits.

Every function looks at all actions of a run and gives them back, some turned into ones that wait or explain.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, replace

from sweep.core.attempts.attempt import Outcome
from sweep.core.attempts.history import AttemptState, History
from sweep.core.cells.cell import Cell
from sweep.core.decisions.canary import KnownToRunOut, canaries, canary_is_over, why_canary_pauses
from sweep.core.decisions.maintenance import before_maintenance
from sweep.core.decisions.plan import TO_SUBMIT, Action, ActionKind, in_rounds
from sweep.core.encoding.frozen import dataclass
from sweep.core.encoding.message import hours_text
from sweep.core.settings.policy import Policy
from sweep.core.settings.site import SizeLimit


@dataclass(frozen=True, kw_only=True, slots=True)
class AdmissionBounds:
    """The bounds of the moment, besides the policy.

    Attributes:
        now: Unix time.
        free_tasks: Further tasks that the cluster takes of this user just now; None where it sets no limit.
        maintenance_at: Unix time at which a known maintenance begins; None where none is known.
        canary_helps: True if cells would otherwise go out together.
        most_jobs: Jobs of the run that the site's settings let into the queue at once; None: no limit.
        size_limits: What the cluster never gives a single job.
        ruled_out: Cells that a preflight keeps from being tried: the table's word and the reason, by cell id.
        order_seed: Seed of the order of submission; None: the order of the actions.
    """

    now: float
    maintenance_at: float | None = None
    free_tasks: int | None = None
    canary_helps: bool = True
    most_jobs: int | None = None
    size_limits: Sequence[SizeLimit] = ()
    ruled_out: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    order_seed: int | None = None


def admitted(
    actions: Sequence[Action], cells: Mapping[str, Cell], history: History, policy: Policy, bounds: AdmissionBounds
) -> list[Action]:
    """The actions as the policy and the moment let them be.

    Args:
        actions: One for every repeat of every cell of a command.
        cells: Every cell that the run directory knows, those of earlier commands too: what they took says something.
        history: All attempts so far.
        policy: What the user lets happen.
        bounds: What the moment does.
    """
    # What can never run is told first: nothing is to wait behind it.
    held = [_beyond_size(_ruled_out(action, bounds), cells, policy, bounds) for action in actions]
    if policy.infer_oom:
        known = KnownToRunOut(cells, history)
        held = [_inferred(action, cells, known) for action in held]
    held = _paused(held, history, policy)
    if bounds.maintenance_at is not None:
        held = before_maintenance(held, cells, history, left_s=bounds.maintenance_at - bounds.now)
    has_canaries = policy.canary and bounds.canary_helps
    first = set(canaries(held, cells, history).values()) if policy.canary else set()
    if bounds.order_seed is not None:
        held = in_rounds(held, bounds.order_seed, first)
    held = _within_budget(held, cells, history, policy, first if has_canaries else ())
    held = [_backed_off(action, history, policy, bounds) for action in held]
    if has_canaries:
        held = _behind_canaries(held, cells, history)
    return _within_limits(held, cells, history, policy, bounds)


def passes_with_time(actions: Sequence[Action], bounds: AdmissionBounds) -> bool:
    """True if time alone may change the actions: a back-off ends, a maintenance comes near."""
    is_near = bounds.maintenance_at is not None
    return is_near or any(action.kind is ActionKind.LATER and action.outcome is not None for action in actions)


HOLES: Mapping[str, ActionKind] = {
    "oom_inferred": ActionKind.EXPLAINED,
    "oom_predicted": ActionKind.EXPLAINED,
    "preflight_failed": ActionKind.EXPLAINED,
    "over_budget": ActionKind.OVER_BUDGET,
    "over_limit": ActionKind.PAUSED,
    "paused": ActionKind.PAUSED,
}
"""The table's words for cells that are not tried, and what each means for the run."""


def _later(action: Action, reason: str) -> Action:
    return replace(action, kind=ActionKind.LATER, reason=reason)


def _untried(action: Action, hole: str, reason: str, outcome: Outcome | None = None) -> Action:
    return replace(action, kind=HOLES[hole], hole=hole, reason=reason, outcome=outcome or action.outcome)


def _ruled_out(action: Action, bounds: AdmissionBounds) -> Action:
    found = bounds.ruled_out.get(action.cell_id)
    return action if found is None or action.kind not in TO_SUBMIT else _untried(action, *found)


def _beyond_size(action: Action, cells: Mapping[str, Cell], policy: Policy, bounds: AdmissionBounds) -> Action:
    """Leave a job out that is larger than the cluster or the policy allows: the cluster would let it wait for ever."""
    cell, most_gpus = cells[action.cell_id], policy.max_concurrent_gpus
    if action.kind in TO_SUBMIT and most_gpus is not None and cell.gpus > most_gpus:
        reason = f"it needs {cell.gpus} GPUs; max_concurrent_gpus={most_gpus} never lets it run"
        return _untried(action, "over_limit", reason)
    above = (limit for limit in bounds.size_limits if limit.exceeded_by(nodes=cell.nodes, gpus=cell.gpus))
    limit = next(above, None) if action.kind in TO_SUBMIT else None
    if limit is None:
        return action
    size = f"{cell.nodes} node{'s' if cell.nodes > 1 else ''} x {cell.gpus_per_node} GPUs"
    return _untried(action, "over_limit", f"it needs {size}; {limit.name} never lets it run")


def _inferred(action: Action, cells: Mapping[str, Cell], known: KnownToRunOut) -> Action:
    other = known.needing_less_than(cells[action.cell_id]) if action.kind is ActionKind.SUBMIT else None
    if other is None:
        return action
    reason = f"inferred, not run: {other} ran out of device memory, and this cell needs more by every term"
    return _untried(action, "oom_inferred", reason, Outcome.OOM_DEVICE)


# -------------------------------------------------------------------------------------------------------------- pause


def _paused(actions: list[Action], history: History, policy: Policy) -> list[Action]:
    """After so many TRAINER_ERRORs of one kind the fault is not the cells': stop before all have failed."""
    reason = pause_reason(actions, history, policy)
    return [_untried(a, "paused", reason) if reason and a.kind in TO_SUBMIT else a for a in actions]


def pause_reason(actions: Sequence[Action], history: History, policy: Policy) -> str:
    """Why nothing more is to be tried, and what waits in the queue is to be taken back; empty where all is well."""
    if not policy.pause_after:
        return ""
    for message, cells in _trainer_errors(actions, history).items():
        if len(cells) >= policy.pause_after:
            return (
                f"paused: {len(cells)} cells failed alike ({message}). Mend it, then run again with "
                "retry=[TRAINER_ERROR]; policy.pause_after=0 goes on regardless"
            )
    return ""


def _trainer_errors(actions: Sequence[Action], history: History) -> dict[str, set[str]]:
    """Cells by the message of the TRAINER_ERROR that ended them, since they were last reopened."""
    found: dict[str, set[str]] = {}
    for action in actions:
        past = history.of(action.cell_id, action.repeat)
        for attempt in past.attempts:
            if attempt.outcome is Outcome.TRAINER_ERROR and attempt.key.attempt > past.reopened_after:
                found.setdefault(alike(attempt.reason), set()).add(action.cell_id)
    return found


_DIFFERS = (
    # Paths, as in a run directory; addresses of objects; UUIDs; ids of cells and hashes; ranks, steps, sizes.
    (re.compile(r"(?<![\w/.])\.{0,2}(?:/[\w.@%+=,~-]+)+/?|(?<![\w/.])[\w.-]+(?:/[\w.@%+=,~-]+){2,}/?"), "/..."),
    (re.compile(r"\b0x[0-9a-f]+", re.IGNORECASE), "#"),
    (re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.IGNORECASE), "#"),
    (re.compile(r"\b[0-9a-f]{8,}\b", re.IGNORECASE), "#"),
    (re.compile(r"\d+"), "#"),
)


def alike(reason: str) -> str:
    """A failure's reason without what differs between cells that failed alike."""
    for differs, mark in _DIFFERS:
        reason = differs.sub(mark, reason)
    return reason[:200]


# ------------------------------------------------------------------------------------------------------------- budget


def gpu_hours_committed(history: History) -> float:
    """GPU-hours that the run has cost (settled) or may still cost (reserved: walltime x GPUs)."""
    return sum(_committed(attempt) for repeat in history.repeats.values() for attempt in repeat.attempts)


def _committed(attempt: AttemptState) -> float:
    if attempt.released:
        return 0.0
    # What an ended attempt used may be unknown; then it counts with all that it could have used.
    if attempt.outcome is None or attempt.gpu_seconds is None:
        # A job that was requeued may take its whole walltime once more.
        return attempt.gpu_hours + attempt.earlier_gpu_seconds / 3600
    return attempt.gpu_seconds / 3600


def beyond_budget(history: History, policy: Policy) -> list[AttemptState]:
    """Attempts in flight that were requeued, and whose next run might take more than what is left of the budget."""
    if policy.budget_gpu_hours is None:
        return []
    left, found = policy.budget_gpu_hours - gpu_hours_committed(history), []
    requeued = [attempt for attempt in history.in_flight() if attempt.earlier_gpu_seconds]
    left += sum(attempt.gpu_hours for attempt in requeued if attempt.stop is not None)
    for attempt in requeued:
        if left < -1e-9 and attempt.stop is None:
            left += attempt.gpu_hours
            found.append(attempt)
    return found


def _within_budget(
    actions: list[Action], cells: Mapping[str, Cell], history: History, policy: Policy, first: Collection[Action]
) -> list[Action]:
    """The actions that the budget has room for, in the order of the plan, canaries first."""
    if policy.budget_gpu_hours is None:
        return actions
    left = policy.budget_gpu_hours - gpu_hours_committed(history)
    held = list(actions)
    for number in sorted(range(len(actions)), key=lambda number: actions[number] not in first):
        action = actions[number]
        if action.kind not in TO_SUBMIT:
            continue
        cost = cells[action.cell_id].gpus * action.walltime_min / 60
        if cost > left + 1e-9:
            held[number] = _over_budget(action, cost, left, policy, history)
        else:
            left -= cost
    return held


def _over_budget(action: Action, cost: float, left: float, policy: Policy, history: History) -> Action:
    reason = (
        f"budget: up to {hours_text(cost)} GPU-hours (walltime x GPUs) do not fit into the "
        f"{hours_text(max(0.0, left))} left of {hours_text(policy.budget_gpu_hours)}"
    )
    # What runs may turn out cheaper than what was reserved for it: then there is room again.
    may_settle = any(True for _ in history.in_flight())
    return _later(action, reason) if may_settle else _untried(action, "over_budget", reason)


# ---------------------------------------------------------------------------------------------------- back-off, canary


def _backed_off(action: Action, history: History, policy: Policy, bounds: AdmissionBounds) -> Action:
    last = history.of(action.cell_id, action.repeat).last
    if action.kind is not ActionKind.RETRY or last is None or last.outcome is None or last.ended_at is None:
        return action
    past = history.of(action.cell_id, action.repeat)
    if last.key.attempt <= past.reopened_after:
        return action
    delay_s = policy.outcomes[last.outcome].backoff_s * 2 ** (past.ended(last.outcome) - 1)
    wait_s = last.ended_at + delay_s - bounds.now
    if wait_s <= 0:
        return action
    return _later(action, f"{action.reason}; in {math.ceil(wait_s)} s")


def _behind_canaries(actions: list[Action], cells: Mapping[str, Cell], history: History) -> list[Action]:
    chosen = canaries(actions, cells, history)
    return [_behind(action, chosen.get(cells[action.cell_id].model.name)) for action in actions]


def _behind(action: Action, canary: Action | None) -> Action:
    if canary is None or action is canary or action.kind is not ActionKind.SUBMIT:
        return action
    if not canary_is_over(canary):
        return _later(action, f"waits for the smallest cell of its model, {canary.cell_id}")
    why = why_canary_pauses(canary)
    return action if why is None else _untried(action, "paused", why)


# ------------------------------------------------------------------------------------------------------------- limits


def _within_limits(
    actions: list[Action], cells: Mapping[str, Cell], history: History, policy: Policy, bounds: AdmissionBounds
) -> list[Action]:
    """The actions that there is room for now; those that never fit are holes already."""
    in_flight = list(history.in_flight())
    jobs, gpus = len(in_flight), sum(attempt.gpus for attempt in in_flight)
    free = math.inf if bounds.free_tasks is None else bounds.free_tasks
    most_jobs = min(policy.max_concurrent_jobs or math.inf, bounds.most_jobs or math.inf)
    most_gpus = policy.max_concurrent_gpus or math.inf
    held = []
    for action in actions:
        if action.kind not in TO_SUBMIT:
            held.append(action)
            continue
        needed = cells[action.cell_id].gpus
        if free < 1:
            held.append(_later(action, "the cluster takes no further job of this user for now"))
        elif jobs >= most_jobs:
            held.append(_later(action, f"max_concurrent_jobs={most_jobs} are in the queue"))
        elif gpus + needed > most_gpus:
            held.append(_later(action, f"{gpus} of max_concurrent_gpus={most_gpus} are in the queue"))
        else:
            jobs, gpus, free = jobs + 1, gpus + needed, free - 1
            held.append(action)
    return held
