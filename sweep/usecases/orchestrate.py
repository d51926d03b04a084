"""The main job: settle what is over, decide, submit; again until every cell is measured or explained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from sweep.core.attempts.attempt import JobReport, Outcome
from sweep.core.attempts.history import History
from sweep.core.attempts.ledger import Reopened, Skipped
from sweep.core.decisions.admission import AdmissionBounds, admitted, passes_with_time, pause_reason
from sweep.core.decisions.plan import TO_SUBMIT, UNDER_WAY, Action, ActionKind, decide
from sweep.core.decisions.reopen import Reopening, reopen
from sweep.core.encoding.frozen import dataclass
from sweep.core.settings.site import UNLIMITED, Site
from sweep.core.settlement.case import SettlementPolicy
from sweep.ports import SchedulerError
from sweep.usecases.executor import Executor
from sweep.usecases.session import Session
from sweep.usecases.submit import Submitter

_ARRIVAL_GRACE_S = 60.0
"""An sbatch that outlived a killed orchestrator may still be under way; its name is looked for that long."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """Where a run stands at one moment.

    Attributes:
        actions: One for every repeat of every cell.
        reports: The scheduler's latest word on jobs in flight.
    """

    actions: tuple[Action, ...]
    reports: Mapping[str, JobReport]

    def counts(self) -> Counter[ActionKind]:
        """How many repeats are in each state."""
        return Counter(action.kind for action in self.actions)

    @property
    def is_over(self) -> bool:
        """True if nothing runs and nothing is to be run."""
        return not any(action.kind in UNDER_WAY for action in self.actions)


class Orchestrator:
    """Runs one session to its end.

    Args:
        session: The run.
        ruled_out: Cells that a preflight keeps from being tried (`admission.AdmissionBounds`).

    Attributes:
        executor: Settles the run; its history is loaded.
        order: What the command asks for.
        ports: The run's ports.
        ruled_out: As given.
    """

    def __init__(self, session: Session, ruled_out: Mapping[str, tuple[str, str]] | None = None) -> None:
        """Load the history."""
        self.order, self.ports, self.ruled_out = session.order, session.ports, ruled_out or {}
        cluster, scheduler = self.order.cluster, session.ports.scheduler
        policy = SettlementPolicy(
            policy=self.order.policy,
            repeats=self.order.repeats,
            result_grace_s=cluster.result_grace_s,
            lost_after_s=cluster.lost_after_s,
            hang_grace_s=cluster.hang_grace_s,
            arrival_grace_s=min(_ARRIVAL_GRACE_S, cluster.lost_after_s) if scheduler.keeps_jobs else 0.0,
        )
        self.executor = Executor(session.ports, policy, session.origin.run_name)
        self._submitter = Submitter(session.order, session.origin, session.ports, self.executor)
        self._site = UNLIMITED
        self._reopening = Reopening()
        self._decided: _Decided | None = None
        self._is_first_step = True

    @property
    def history(self) -> History:
        """All attempts so far."""
        return self.executor.history

    def reopen(self, outcomes: Collection[Outcome]) -> None:
        """Let repeats be tried again that have ended so, although they were given up (:class:`Reopening`)."""
        self._reopening = Reopening(outcomes=frozenset(outcomes), is_asked=bool(outcomes))

    def step(self) -> Snapshot:
        """Settle, decide and submit once; at the end of a run write down why cells were not tried."""
        now = self._step()
        if now.is_over and self.executor.take_late_results():
            # The tables have them; and what was held back behind them may go out.
            now = self._step()
        if now.is_over:
            self._explain_holes(now)
        return now

    def _step(self) -> Snapshot:
        self._settle()
        if self._is_first_step or any(action.kind is ActionKind.RETRY for action in self._decide()):
            self.executor.take_late_results()
        self._is_first_step = False
        if reason := pause_reason(self._decide(), self.history, self.order.policy):
            self._submitter.give_back(reason)
            self.executor.take_back(reason)
        # How many jobs the cluster takes changes all the time: it is asked whenever there is one to be submitted.
        self._site = replace(self._site, free_tasks=None)
        is_any = self.executor.waiting or any(action.kind in TO_SUBMIT for action in self._decide())
        if is_any and self._ask_site() and self._submitter.submit(self._decide(), self._site):
            # Jobs that a local scheduler can start are started now, not at the next look.
            self._settle()
        return self.snapshot()

    def _settle(self) -> None:
        executor = self.executor
        executor.settle()
        if self._reopening.is_done:
            return
        self._reopening, repeats = reopen(
            self._reopening,
            self._decide(),
            self.history,
            executor.reports,
            was_reached=executor.contact.was_reached,
        )
        if repeats:
            executor.record(Reopened(time=self.ports.clock.now(), repeats=repeats))

    def _ask_site(self) -> bool:
        """Ask what the cluster allows; False where it is away, which is the user's to know if it never was there.

        Raises:
            SchedulerError: If it was never reached, and nothing is in flight that would have to be watched.
        """
        facts, contact = self.ports.view.facts, self.executor.contact
        try:
            before, self._site = self._site, UNLIMITED if facts is None else facts.site()
        except SchedulerError as error:
            if not contact.was_reached and not any(self.history.in_flight()):
                raise
            contact.not_reached(str(error))
            return False
        for note in self._site.notes:
            if note not in before.notes:
                self.ports.reporter.note(note)
        return True

    def leave(self) -> None:
        """Give back what was reserved and could not be handed over: nobody stays to do it."""
        self._submitter.give_back("it could not be handed over before the run was left")

    def snapshot(self) -> Snapshot:
        """Where the run stands."""
        return Snapshot(actions=self._decide(), reports=self.executor.reports)

    def watch(self, show: Callable[[Snapshot], None]) -> Snapshot:
        """Step until all is measured or explained, showing where it stands after each step."""
        while True:
            now = self.step()
            show(now)
            if now.is_over:
                return now
            self.ports.clock.sleep(self.order.cluster.poll_interval_s)

    def _explain_holes(self, snapshot: Snapshot) -> None:
        """Write down why cells were not tried, so that the table can say so without the policy."""
        skipped: dict[tuple[str, str], list[tuple[str, int]]] = {}
        for action in snapshot.actions:
            past = self.history.of(action.cell_id, action.repeat)
            is_first = past.last is None
            why = (action.hole, action.reason if is_first else f"after {action.outcome}, {action.reason}")
            if action.hole and past.skipped != why:
                skipped.setdefault(why, []).append((action.cell_id, action.repeat))
        for (kind, reason), repeats in skipped.items():
            now = self.ports.clock.now()
            self.executor.record(Skipped(time=now, repeats=tuple(repeats), kind=kind, reason=reason))

    def _decide(self) -> tuple[Action, ...]:
        """One action for every repeat; worked out anew only where what they rest on is not as it was."""
        second = int(self.ports.clock.now())
        basis = (self.history.changes, self._site)
        if self._decided is None or not self._decided.holds(basis, second):
            bounds = self._bounds()
            actions = self._decide_anew(bounds)
            until = second if passes_with_time(actions, bounds) else None
            self._decided = _Decided(basis=basis, second=until, actions=actions)
        return self._decided.actions

    def _decide_anew(self, bounds: AdmissionBounds) -> tuple[Action, ...]:
        order = self.order
        actions = decide(
            order.cells,
            repeats=order.repeats,
            history=self.history,
            rules=order.policy.outcomes,
            walltime_min=order.cluster.walltime_min,
            longest_walltime_min=self._site.max_walltime_min,
        )
        return tuple(admitted(actions, order.known, self.history, order.policy, bounds))

    def _bounds(self) -> AdmissionBounds:
        return AdmissionBounds(
            now=self.ports.clock.now(),
            free_tasks=self._site.free_tasks,
            most_jobs=self.order.cluster.slurm.max_concurrent_jobs,
            size_limits=self._site.size_limits,
            maintenance_at=self._site.maintenance_at,
            canary_helps=self.order.canary_helps,
            ruled_out=self.ruled_out,
            order_seed=self.order.order_seed,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Decided:
    """Actions, and what they rest on.

    Attributes:
        basis: Number of changes to the history, and the site.
        second: Unix time, of actions that hold for this second only; None: time alone changes none.
        actions: One for every repeat.
    """

    basis: tuple[int, Site]
    second: int | None
    actions: tuple[Action, ...]

    def holds(self, basis: tuple[int, Site], second: int) -> bool:
        return self.basis == basis and self.second in (None, second)


def exit_code(snapshot: Snapshot) -> int:
    """0: all measured or explained by design; 1: some cell was given up or is held; 3: not watched to the end."""
    if not snapshot.is_over:
        return 3
    explained = (ActionKind.DONE, ActionKind.EXPLAINED)
    return 0 if all(action.kind in explained for action in snapshot.actions) else 1
