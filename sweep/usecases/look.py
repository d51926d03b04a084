"""Looking at a run that nobody watches: what the next run would settle at once, with nothing written or cancelled."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from sweep.core.settings.policy import Policy
from sweep.core.settings.spec import ClusterSpec, SchedulerKind
from sweep.ports import SchedulerError
from sweep.usecases.queue import reports_of
from sweep.usecases.reconcile import Reconciler
from sweep.usecases.session import Session, Sources

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from sweep.core.attempts.attempt import AttemptKey, JobReport
    from sweep.core.attempts.blame import Blame
    from sweep.core.attempts.history import History
    from sweep.core.attempts.ledger import Event
    from sweep.core.attempts.verdict import Verdict
    from sweep.core.jobs.submission import Submission
    from sweep.ports import Clock, ClusterView, Intent, RunDirectory, Scheduler


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """What was seen.

    Attributes:
        reports: The scheduler's word on each job in flight; empty where it could not be asked.
        unrecorded: Attempts that have ended without anybody having recorded it. The history that was looked over has
            them as the next run would judge them now (a result that is late may still come).
        problem: Why the scheduler could not be asked; empty where it could.
    """

    reports: Mapping[str, JobReport]
    unrecorded: frozenset[AttemptKey]
    problem: str = ""


def look_over(
    history: History, *, run_dir: RunDirectory, scheduler: Scheduler, view: ClusterView, clock: Clock
) -> Look:
    """Bring a history up to date in memory.

    Args:
        history: As the ledger has it; changed.
        run_dir: Only read.
        scheduler: Only asked.
        view: Only asked.
        clock: Tells the time.
    """
    flying = [attempt for attempt in history.in_flight() if attempt.job_id is not None]
    reports: Mapping[str, JobReport] | None = None
    problem = ""
    try:
        reports = reports_of(flying, history=history, scheduler=scheduler, run_dir=run_dir)
    except SchedulerError as error:
        problem = str(error)
    session = _session(history, run_dir, scheduler, view, clock)
    Reconciler(session).settle_by(flying, reports)
    ended = frozenset(attempt.key for attempt in flying if not attempt.in_flight)
    return Look(reports=reports or {}, unrecorded=ended, problem=problem)


def _session(history: History, run_dir: RunDirectory, scheduler: Scheduler, view: ClusterView, clock: Clock) -> Session:
    """A session in which nothing waits for anything, and that leaves no trace."""
    cluster = ClusterSpec(
        name="",
        scheduler=SchedulerKind.SLURM,
        scale="",
        gpus_per_node=1,
        device="",
        result_grace_s=0.0,
        lost_after_s=math.inf,
        hang_grace_s=math.inf,
    )
    made = Session(
        cells={},
        repeats=0,
        devices={},
        cluster=cluster,
        run_name="",
        scheduler=_OnlyAsked(scheduler),
        view=view,
        ledger=_Forgetful(),
        run_dir=cast("RunDirectory", _OnlyRead(run_dir)),
        clock=clock,
        reporter=_Silent(),
        sources=Sources(directory="", digest=""),
        provenance={},
        new_token=str,
        check_lease=lambda: None,
        blame=_NoBook(),
        policy=Policy(hopeless_after_s=math.inf),
    )
    made.history = history
    return made


class _Forgetful:
    """A ledger that keeps nothing."""

    def read(self) -> tuple[Sequence[Event], Sequence[str]]:
        return (), ()

    def append(self, event: Event) -> None:
        pass


class _NoBook:
    """A book of blame that keeps nothing."""

    def read(self) -> Sequence[Blame]:
        return ()

    def add(self, blames: Iterable[Blame]) -> None:
        pass


class _Silent:
    """Nobody is told anything."""

    def submitted(self, submission: Submission, jobs: tuple[str, ...]) -> None:
        pass

    def ended(self, key: AttemptKey, verdict: Verdict) -> None:
        pass

    def note(self, text: str) -> None:
        pass


@dataclass(frozen=True, slots=True)
class _OnlyRead:
    """A run directory in which nothing is claimed."""

    real: RunDirectory

    def withdraw(self, name: str) -> str:
        return self.real.job_that_began(name) or ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


@dataclass(frozen=True, slots=True)
class _OnlyAsked:
    """A scheduler that answers questions and takes no orders."""

    real: Scheduler

    @property
    def keeps_jobs(self) -> bool:
        return self.real.keeps_jobs

    def submit(self, submission: Submission) -> tuple[str, ...]:
        raise SchedulerError("nothing is submitted by a look")

    def find(self, submission: Intent) -> tuple[str, ...] | None:
        raise SchedulerError("nothing is looked for by a look")

    def jobs_of(self, shared_id: str, tasks: int) -> tuple[str, ...]:
        return self.real.jobs_of(shared_id, tasks)

    def poll(
        self, job_ids: Collection[str], *, since: float, names: Mapping[str, str] | None = None
    ) -> Mapping[str, JobReport]:
        return self.real.poll(job_ids, since=since, names=names)

    def cancel(self, jobs: Mapping[str, str], *, only_pending: bool = False) -> Sequence[str]:
        return ()

    def close(self) -> None:
        pass
