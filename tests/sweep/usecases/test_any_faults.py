"""Any faults together: random scenarios on a simulated cluster, and an audit by what really happened there.

``pytest --hypothesis-profile=search`` looks at many more than the fixed ones.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sweep.adapters.files.run_directory import RunDir
from sweep.adapters.slurm.scheduler import SlurmScheduler
from sweep.core.attempts.attempt import AttemptKey, Outcome, StopKind
from sweep.core.attempts.history import AttemptState, fold
from sweep.core.attempts.ledger import Event, Reopened, Submitted
from sweep.core.attempts.outcome_rules import OUTCOME_RULES
from sweep.core.cells.cell import Cell, cell_id
from sweep.core.decisions.admission import gpu_hours_committed
from sweep.core.decisions.plan import UNDER_WAY, ActionKind
from sweep.core.settings.policy import Policy
from sweep.core.settings.spec import ClusterSpec, SchedulerKind, SlurmSpec
from sweep.ports import ClusterView, SchedulerError
from sweep.usecases.orchestrate import Orchestrator, Snapshot, exit_code
from sweep.usecases.plan import declare
from sweep.usecases.session import Order, RunPorts
from sweep.usecases.status import statuses
from tests.fakes import CPU, Crash, ListReporter, MemoryBlameBook, MemoryLedger, tiny_cell, weak_content
from tests.sweep.usecases.simulated_cluster import BEGAN, Cluster, Deed, End, Fate, Happening, Run
from tests.sweep.usecases.simulated_slurm import Sbatch, SimulatedCommands, Site, Spell, Trouble
from tests.sweep.usecases.world import session_of

POOL = (
    tiny_cell(nodes=1),
    tiny_cell(nodes=1, seq_len=64),
    tiny_cell(nodes=2),
    tiny_cell(nodes=1, gpus_per_node=2),
    tiny_cell(nodes=1, seq_len=96),
)
WALLTIME_MIN, GRACE_S, LOST_AFTER_S = 10, 60.0, 300.0


@dataclass(frozen=True, kw_only=True)
class Stint:
    """One process that takes the run up, and how it ends.

    Attributes:
        looks: After so many it is left (Ctrl-C, ``watch=false``); 0: it is a ``cancel``, which looks once.
        dies_at: Killed at the so-manieth moment instead: before or after a command, or a line of the ledger.
        retry: Outcomes that are to be tried again.
        cancel: Cells that the user cancels, before its last look.
        idle_s: Seconds until the next process.
        clock_s: By how much the clock of its machine is wrong.
    """

    looks: int = 3
    dies_at: int | None = None
    retry: tuple[Outcome, ...] = ()
    cancel: tuple[int, ...] = ()
    idle_s: int = 0
    clock_s: int = 0


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """All that is chosen."""

    cells: int = 1
    repeats: int = 1
    seed: int | None = None
    poll_s: int = 30
    policy: Policy = field(default_factory=Policy)
    site: Site = field(default_factory=Site)
    fates: tuple[Fate, ...] = ()
    sbatch: tuple[Sbatch, ...] = ()
    spells: tuple[Spell, ...] = ()
    happenings: tuple[Happening, ...] = ()
    stints: tuple[Stint, ...] = ()


@dataclass
class SimulatedClock:
    """The clock of the machine that the orchestrator is on."""

    cluster: Cluster
    wrong_s: float = 0.0

    def now(self) -> float:
        return self.cluster.now + self.wrong_s

    def monotonic(self) -> float:
        return self.cluster.now

    def sleep(self, seconds: float) -> None:
        self.cluster.advance(self.cluster.now + seconds)


@dataclass
class MortalLedger(MemoryLedger):
    """A ledger at whose lines the process may die."""

    moment: object = None

    def append(self, event: Event) -> None:
        self.moment(f"before {type(event).__name__}")  # type: ignore[operator]
        super().append(event)
        self.moment(f"after {type(event).__name__}")  # type: ignore[operator]


class Play:
    """One scenario, played to its end."""

    def __init__(self, scenario: Scenario, folder: Path) -> None:
        self.scenario = scenario
        self.run_dir = RunDir(folder)
        self.run_dir.create()
        self.cells: Mapping[str, Cell] = {cell_id(cell): cell for cell in POOL[: scenario.cells]}
        self.cluster = Cluster(run_dir=self.run_dir, fates=list(scenario.fates))
        self.cluster.add_foreign(name="theirs", user=1000)
        for happening in scenario.happenings:
            self.cluster.at(BEGAN + happening.at_s, partial(self.cluster.happens, happening))
        self.clock = SimulatedClock(self.cluster)
        self.moments_left: int | None = None
        self.ledger = MortalLedger(moment=self.moment)
        self.commands = SimulatedCommands(
            self.cluster,
            scenario.site,
            spells=scenario.spells,
            sbatch=list(scenario.sbatch),
            moment=self.moment,
            sleep=self.clock.sleep,
        )
        self.blame = MemoryBlameBook()
        self.reporter = ListReporter()
        self.tokens = itertools.count()
        self.cancelled: dict[str, list[float]] = {}
        content = weak_content(self.cells)
        self.content = declare(
            self.run_dir, replace(content, repeats=scenario.repeats, policy=scenario.policy, scheduler="slurm")
        )
        self.last: Snapshot | None = None
        self.looked_at: list[float] = []

    def moment(self, what: str) -> None:
        if self.moments_left is not None:
            self.moments_left -= 1
            if self.moments_left < 0:
                self.moments_left = None
                raise Crash

    def orchestrator(self) -> Orchestrator:
        scenario = self.scenario
        cluster = ClusterSpec(
            name="fake",
            scheduler=SchedulerKind.SLURM,
            scale="laptop",
            gpus_per_node=1,
            device="cpu",
            walltime_min=WALLTIME_MIN,
            poll_interval_s=scenario.poll_s,
            result_grace_s=GRACE_S,
            lost_after_s=LOST_AFTER_S,
            hang_grace_s=60.0,
            slurm=SlurmSpec(sacct=scenario.site.sacct),
        )
        slurm = SlurmScheduler(
            cluster.slurm, Path(self.run_dir.path), user="me", commands=self.commands, now=self.clock.now
        )
        accounting = slurm if cluster.slurm.sacct else None
        order = Order(
            cells=self.cells,
            known=self.cells,
            repeats=scenario.repeats,
            devices={"cpu": CPU},
            cluster=cluster,
            policy=scenario.policy,
            order_seed=scenario.seed,
        )
        ports = RunPorts(
            scheduler=slurm,
            view=ClusterView(reports=slurm, accounting=accounting, facts=slurm, diagnosis=slurm),
            ledger=self.ledger,
            run_dir=self.run_dir,
            clock=self.clock,
            reporter=self.reporter,
            blame=self.blame,
            check_lease=lambda: None,
        )
        return Orchestrator(session_of(order, ports, self.tokens))

    def play(self) -> None:
        for stint in self.scenario.stints:
            self.clock.wrong_s = stint.clock_s
            self.moments_left = stint.dies_at
            with contextlib.suppress(Crash, SchedulerError):
                self._stint(stint)
            self.moments_left = None
            self.clock.sleep(stint.idle_s)
        self.clock.wrong_s = 0.0
        # The faults of Slurm are over, and what was late has come.
        spells, happenings = self.scenario.spells, self.scenario.happenings
        over = max([0, *(spell.at_s + spell.for_s for spell in spells), *(event.at_s for event in happenings)])
        self.cluster.advance(max(self.cluster.now, self.commands.began_at + over) + 1)
        self.commands.heal()
        self.watch()
        self.cluster.advance(self.cluster.now + 3600)
        self.watch()

    def _stint(self, stint: Stint) -> None:
        names = [name for number, name in enumerate(self.cells) if number in stint.cancel]
        orchestrator = self.orchestrator()
        if not stint.looks:
            if names:
                self._note_cancel(names)
                orchestrator.executor.cancel(names)
                orchestrator.executor.settle()
            return
        orchestrator.reopen(stint.retry)
        for look in range(1, stint.looks + 1):
            if look == stint.looks and names:
                self._note_cancel(names)
                self.run_dir.request_cancel(names)
            if orchestrator.step().is_over:
                break
            self.check_now()
            if look < stint.looks:
                self.clock.sleep(self.scenario.poll_s)
        orchestrator.leave()

    def _note_cancel(self, names: list[str]) -> None:
        for name in names:
            self.cancelled.setdefault(name, []).append(self.cluster.now)

    def watch(self) -> None:
        """A process that nothing happens to sees the run to its end."""
        orchestrator = self.orchestrator()
        for _ in range(3000):
            self.last = orchestrator.step()
            self.check_now()
            if self.last.is_over:
                return
            self.clock.sleep(self.scenario.poll_s)
        raise AssertionError(f"not over: {[action for action in self.last.actions if action.kind in UNDER_WAY]}")

    # --------------------------------------------------------------------------------------------------------- audit

    def check_now(self) -> None:
        """What holds at every moment."""
        self.looked_at.append(self.cluster.now)
        live = [job for job in self.cluster.jobs if job.is_live and job.key is not None and job.state != "COMPLETING"]
        policy = self.scenario.policy
        # What arrives after it was given back, or twice, waits in the queue, and does not begin.
        extra = {Sbatch.TAKEN_TWICE, Sbatch.GETS_THROUGH_LATE} & set(self.scenario.sbatch)
        if not extra and all(stint.dies_at is None for stint in self.scenario.stints):
            assert len(live) <= (policy.max_concurrent_jobs or math.inf), [job.id for job in live]
            assert sum(job.gpus for job in live) <= (policy.max_concurrent_gpus or math.inf), [job.id for job in live]
        assert not self.cluster.wrongs

    def runs(self) -> Iterator[Run]:
        for job in self.cluster.jobs:
            yield from job.runs

    def audit(self) -> None:
        """Hold what the tool says against what happened."""
        assert self.last is not None
        Audit(self).all()


@dataclass
class Audit:
    """Nothing lost, nothing twice, every failure understood: by the cluster's own truth."""

    play: Play

    def all(self) -> None:
        play = self.play
        self.history = fold(play.ledger.events())
        ours = {job for event in play.ledger.events() if isinstance(event, Submitted) for job in event.jobs}
        left = [job for job in play.cluster.jobs if job.is_live and job.id in ours]
        assert not left, f"jobs are left: {left}"
        self.runs_of: dict[tuple[str, int], list[Run]] = {}
        for run in play.runs():
            if run.has_begun:
                self.runs_of.setdefault((run.key.cell_id, run.key.repeat), []).append(run)
        self.every_repeat_is_explained()
        self.nothing_runs_twice()
        self.what_was_measured_is_in_the_table()
        self.every_failure_is_understood()
        self.rules_are_kept()
        self.nobody_well_was_ended()
        self.the_budget_adds_up()
        self.nothing_more_happens()

    def every_repeat_is_explained(self) -> None:
        play = self.play
        assert play.last is not None
        asked = Counter((name, repeat) for name in play.cells for repeat in range(1, play.scenario.repeats + 1))
        assert Counter((action.cell_id, action.repeat) for action in play.last.actions) == asked
        for action in play.last.actions:
            assert action.kind not in UNDER_WAY
            assert action.reason, action
        explained = (ActionKind.DONE, ActionKind.EXPLAINED)
        is_well = all(action.kind in explained for action in play.last.actions)
        assert exit_code(play.last) == (0 if is_well else 1)
        shown = statuses(play.content, self.history, play.run_dir)
        shown_as = [(status.action.cell_id, status.action.repeat, status.action.kind) for status in shown]
        actions = [(action.cell_id, action.repeat, action.kind) for action in play.last.actions]
        # What `status` shows is in the grid's order.
        assert sorted(shown_as) == sorted(actions)

    def nothing_runs_twice(self) -> None:
        for repeat, runs in self.runs_of.items():
            ordered = sorted(runs, key=lambda run: run.started_at)
            for before, after in itertools.pairwise(ordered):
                assert before.ended_at is not None
                assert before.ended_at <= after.started_at, f"{repeat} ran twice at once: {before.key}, {after.key}"
            measured = [run for run in ordered if run.measured_at is not None]
            for before, after in itertools.pairwise(measured):
                # One that could be seen only when the next attempt had begun could not be known of.
                assert before.measured_at is not None
                was_late = before.fate.end is End.MEASURED_LATE and before.fate.late_s > 0
                assert was_late, f"{repeat} was measured twice: {before.key}, {after.key}"

    def what_was_measured_is_in_the_table(self) -> None:
        for (cell, repeat), past in self.history.repeats.items():
            runs = self.runs_of.get((cell, repeat), [])
            measured = {run.key for run in runs if run.measured_at is not None}
            succeeded = past.succeeded
            assert (succeeded is not None) == bool(measured), f"{cell}/{repeat}: measured {measured}, {succeeded}"
            assert succeeded is None or succeeded.key in measured
        for name in self.runs_of:
            assert name in self.history.repeats, f"{name} ran, and the ledger does not know it"

    def every_failure_is_understood(self) -> None:
        last: dict[AttemptKey, Run] = {}
        for runs in self.runs_of.values():
            for run in sorted(runs, key=lambda run: run.started_at):
                last[run.key] = run
        for past in self.history.repeats.values():
            for attempt in past.attempts:
                assert not attempt.in_flight
                run = last.get(attempt.key)
                if attempt.released:
                    assert run is None, f"{attempt.key} ran, and counts as not having happened"
                elif run is not None:
                    self._is_understood(attempt, run)

    def _is_understood(self, attempt: AttemptState, run: Run) -> None:
        job, run = run.job, run.job.runs[-1]
        allowed = set(EXPECTED[run.fate.end])
        if job.cancelled_in is not None:
            allowed |= {Outcome.CANCELLED} if run.key.cell_id in self.play.cancelled else set()
            allowed |= {Outcome.COMM_FAILURE} if attempt.stop and attempt.stop.kind is StopKind.HANG else set()
            allowed |= {Outcome.PREEMPTED} if attempt.stop and attempt.stop.kind is StopKind.OVER_BUDGET else set()
        if attempt.is_cancel_requested:
            allowed.add(Outcome.CANCELLED)
        if run.measured_at is not None and run.fate.end is not End.MEASURED_LATE:
            allowed = {Outcome.SUCCEEDED}
        if not self.play.scenario.site.sacct and run.fate.end in UNTOLD_WITHOUT_ACCOUNTING:
            allowed.add(Outcome.LOST)
        if job.is_forgotten and attempt.outcome is not Outcome.SUCCEEDED:
            return  # another one may have its id, and end in any way (ADR 0016)
        if attempt.stop is not None and Sbatch.TAKEN_TWICE in self.play.scenario.sbatch:
            allowed.add(Outcome.REJECTED_BY_SCHEDULER)  # the stop of the other, which waited for ever
        if job.restart and not run.has_begun:
            allowed.add(Outcome.PREEMPTED)  # what its run before the requeue has left is all that there is
        if job.killed_by is not None and job.cancelled_in is None:
            allowed.add(Outcome.CANCELLED)
        assert attempt.outcome in allowed, (
            f"{run.key} (job {job.id}): {run.fate.end}; {attempt.outcome}: {attempt.reason}"
        )

    def rules_are_kept(self) -> None:
        reopened = [event for event in self.play.ledger.events() if isinstance(event, Reopened)]
        rules = self.play.scenario.policy.outcomes
        for repeat, past in self.history.repeats.items():
            times = sum(repeat in event.repeats for event in reopened)
            ended = Counter(attempt.outcome for attempt in past.attempts if attempt.outcome is not None)
            for outcome, count in ended.items():
                assert count <= (rules[outcome].max_retries + 1) * (times + 1), f"{repeat}: {outcome} {count} times"
            runs = sorted(self.runs_of.get(repeat, []), key=lambda run: run.started_at)
            final = [run for n, run in enumerate(runs) if n + 1 == len(runs) or runs[n + 1].key != run.key]
            ooms = [run for run in final if run.fate.end in OUT_OF_MEMORY and run.job.cancelled_in is None]
            assert len(ooms) <= 1 + times, f"{repeat} ran out of memory {len(ooms)} times"

    def nobody_well_was_ended(self) -> None:
        policy = self.play.scenario.policy
        for job in self.play.cluster.jobs:
            if job.cancelled_in in (None, "PENDING") or job.key is None:
                continue
            end = job.runs[-1].fate.end
            asked = job.key.cell_id in self.play.cancelled
            hangs = bool(policy.watchdog_s) and end is End.HANG
            over_budget = policy.budget_gpu_hours is not None and job.restart > 0
            withdrawn = not job.runs[-1].has_begun
            lingers = end is End.MEASURED_AND_LINGERS
            assert asked or hangs or over_budget or lingers or withdrawn, f"job {job.id} was well, and was ended"

    def the_budget_adds_up(self) -> None:
        cap, runs = self.play.scenario.policy.budget_gpu_hours, list(self.play.runs())
        used = sum(run.gpu_seconds for run in runs) / 3600
        ids = Counter(job.base for job in self.play.cluster.jobs if job.index in (None, 0))
        unseen = sum(self._unseen_s(run) for job in self.play.cluster.jobs for run in job.runs[1:])
        slack = (self.play.cluster.suspended_s + sum(map(self._unknown_s, runs)) + unseen) / 3600
        assert cap is None or used <= cap + slack, f"used {used} of {cap} GPU-hours"
        assert cap is None or gpu_hours_committed(self.history) <= cap + slack
        for past in self.history.repeats.values():
            for attempt in past.attempts:
                beside = [run for run in runs if run.key == attempt.key]
                if attempt.released or attempt.gpu_seconds is None or any(ids[run.job.base] > 1 for run in beside):
                    continue  # another one may have its id (ADR 0016)
                spent, near = sum(run.gpu_seconds for run in beside), sum(map(self._unknown_s, beside))
                assert abs(spent - attempt.gpu_seconds) <= near, f"{attempt.key}: {spent} s, said {attempt.gpu_seconds}"

    def _unseen_s(self, run: Run) -> float:
        """GPU-seconds of a run after a requeue until somebody looked, and could end it."""
        seen_at = next((look for look in self.play.looked_at if look >= run.started_at), run.started_at)
        away_s = sum(spell.for_s for spell in self.play.scenario.spells)
        return min(run.gpu_seconds, (seen_at - run.started_at + 60 + away_s) * run.job.gpus)

    def _unknown_s(self, run: Run) -> float:
        """GPU-seconds of a run that nobody may have been told of: a launcher's start, and what it was killed after."""
        scenario = self.play.scenario
        assert run.ended_at is not None
        is_known = scenario.site.sacct and not scenario.site.lag_s and not scenario.spells
        if not is_known and not run.job.runs[-1].has_begun:
            return 5 * run.job.gpus + run.gpu_seconds  # requeued, and over before it had written anything
        killed_after_s = 0.0 if is_known else run.ended_at - run.last_file_at
        return (5 + killed_after_s) * run.job.gpus

    def nothing_more_happens(self) -> None:
        lines, submits = len(self.play.ledger.lines), self.play.commands.submits
        kinds = [action.kind for action in self.play.last.actions]
        self.play.watch()
        assert len(self.play.ledger.lines) == lines, self.play.ledger.events()[lines:]
        assert self.play.commands.submits == submits
        assert [action.kind for action in self.play.last.actions] == kinds


OUT_OF_MEMORY = (End.OOM_DEVICE, End.OOM_HOST, End.OOM_POLLED)
UNTOLD_WITHOUT_ACCOUNTING = (End.NODE_FAIL, End.KILLED, End.NO_RESULT, End.CUT_RESULT)
EXPECTED: Mapping[End, tuple[Outcome, ...]] = {
    End.MEASURED: (Outcome.SUCCEEDED,),
    End.MEASURED_LATE: (Outcome.SUCCEEDED, Outcome.TRAINER_ERROR),
    End.MEASURED_AND_LINGERS: (Outcome.SUCCEEDED,),
    End.CUT_RESULT: (Outcome.TRAINER_ERROR,),
    End.NO_RESULT: (Outcome.TRAINER_ERROR,),
    End.EXCEPTION: (Outcome.TRAINER_ERROR,),
    End.OOM_DEVICE: (Outcome.OOM_DEVICE,),
    End.OOM_HOST: (Outcome.OOM_HOST,),
    End.OOM_POLLED: (Outcome.OOM_HOST,),
    End.COMMUNICATION: (Outcome.COMM_FAILURE,),
    End.DEVICE: (Outcome.DEVICE_ERROR,),
    End.KILLED: (Outcome.LOST,),
    End.NODE_FAIL: (Outcome.NODE_FAIL,),
    End.PREEMPTED: (Outcome.PREEMPTED,),
    End.REQUEUED: (Outcome.CANCELLED, Outcome.PREEMPTED, Outcome.REJECTED_BY_SCHEDULER),
    End.TOO_LONG: (Outcome.TIMEOUT,),
    End.HANG: (Outcome.TIMEOUT,),
    End.BY_HAND: (Outcome.CANCELLED,),
    End.BY_ADMIN: (Outcome.CANCELLED,),
    End.NO_LAUNCHER: (Outcome.TRAINER_ERROR, Outcome.NODE_FAIL),
    End.STORAGE: (Outcome.STORAGE_ERROR,),
    End.NODE_FAIL_AT_START: (Outcome.NODE_FAIL,),
    End.FORGOTTEN: (Outcome.LOST,),
    End.NEVER_STARTS: (Outcome.REJECTED_BY_SCHEDULER,),
}

ALL_BUT_SUCCEEDED = tuple(outcome for outcome in Outcome if outcome is not Outcome.SUCCEEDED)
_few = {Outcome.PREEMPTED: 3, Outcome.NODE_FAIL: 2}
RULES = {o: replace(r, max_retries=min(r.max_retries, _few.get(o, 9))) for o, r in OUTCOME_RULES.items()}
POLICIES = st.builds(
    Policy,
    outcomes=st.just(RULES),
    canary=st.sampled_from([False, False, True]),
    pause_after=st.sampled_from([0, 0, 2]),
    infer_oom=st.booleans(),
    max_concurrent_jobs=st.sampled_from([None, None, 1, 2]),
    max_concurrent_gpus=st.sampled_from([None, 2, 3]),
    budget_gpu_hours=st.sampled_from([None, 0.2, 0.4, 1.0]),
    watchdog_s=st.sampled_from([0.0, 120.0]),
    hopeless_after_s=st.just(60.0),
    pending_limit_h=st.sampled_from([None, 0.1]),
)
SITES = st.builds(
    Site,
    sacct=st.sampled_from([True, True, False]),
    lag_s=st.sampled_from([0, 0, 20, 120]),
    min_job_age_s=st.sampled_from([300, 60, 5]),
    max_array=st.sampled_from([1001, 2]),
    max_submit=st.sampled_from([None, 1, 3]),
    tells_max_submit=st.booleans(),
)
FATES = st.builds(
    Fate,
    end=st.sampled_from([*End, End.MEASURED_LATE, *[End.REQUEUED] * 4]),
    wait_s=st.sampled_from([1, 15, 70, 400]),
    run_s=st.sampled_from([1, 25, 100, 400]),
    late_s=st.sampled_from([0, 40, 200]),
    is_silent=st.booleans(),
)
SPELLS = st.builds(
    Spell, trouble=st.sampled_from(Trouble), at_s=st.integers(0, 900), for_s=st.sampled_from([20, 100, 200])
)
HAPPENINGS = st.builds(Happening, deed=st.sampled_from(Deed), at_s=st.integers(0, 900), which=st.integers(0, 3))
STINTS = st.builds(
    Stint,
    looks=st.sampled_from([1, 0, 4, 12]),
    dies_at=st.none() | st.integers(0, 80),
    retry=st.sampled_from(
        [
            (),
            (Outcome.CANCELLED,),
            (Outcome.TRAINER_ERROR, Outcome.LOST),
            tuple(outcome for outcome in Outcome if outcome is not Outcome.SUCCEEDED),
        ]
    ),
    cancel=st.sampled_from([(), (), (), (), (0,), (1, 2), (0, 1, 2, 3, 4)]),
    idle_s=st.sampled_from([0, 5, 90, 700]),
    clock_s=st.sampled_from([0, 0, 3600, -3600]),
)
SCENARIOS = st.builds(
    Scenario,
    cells=st.integers(1, len(POOL)),
    repeats=st.sampled_from([1, 2]),
    seed=st.sampled_from([None, 1, 2]),
    poll_s=st.sampled_from([30, 10]),
    policy=POLICIES,
    site=SITES,
    fates=st.lists(FATES, min_size=6, max_size=10).map(tuple),
    sbatch=st.lists(st.sampled_from(Sbatch), max_size=3).map(tuple),
    spells=st.lists(SPELLS, max_size=3).map(tuple),
    happenings=st.lists(HAPPENINGS, max_size=3).map(tuple),
    stints=st.lists(STINTS, max_size=5).map(tuple),
)


@pytest.fixture
def without_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine does not fail, only processes do."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.mark.timeout(3600)  # for the search
@settings(max_examples=5 * settings.default.max_examples, suppress_health_check=list(HealthCheck))
@given(scenario=SCENARIOS)
def test_nothing_is_lost_or_done_twice_and_every_failure_is_understood(
    scenario: Scenario, tmp_path_factory: pytest.TempPathFactory, without_fsync: None
) -> None:
    folder = tmp_path_factory.mktemp("run")
    play = Play(scenario, folder)
    play.play()
    play.audit()
    shutil.rmtree(folder)
