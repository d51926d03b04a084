"""The world around an orchestrator, made of fakes, and short words for what happens in it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from sweep.core.attempts.attempt import AttemptKey, ErrorClass, Outcome, RankError
from sweep.core.attempts.ledger import Ended
from sweep.core.cells.cell import Cell, cell_id
from sweep.core.decisions.plan import ActionKind
from sweep.core.jobs.submission import Submission
from sweep.core.records.attempt_record import AttemptFile
from sweep.core.settings.policy import Policy
from sweep.core.settings.site import Site
from sweep.core.settings.spec import ClusterSpec, SchedulerKind
from sweep.ports import SchedulerUnreachableError
from sweep.usecases.orchestrate import Orchestrator, Snapshot
from sweep.usecases.session import Order, Origin, RunPorts, Session
from tests.fakes import (
    CPU,
    FakeClock,
    FakeScheduler,
    ListReporter,
    MemoryBlameBook,
    MemoryLedger,
    MemoryRunDirectory,
    result_of,
    tiny_cell,
)

CLUSTER = ClusterSpec(
    name="fake",
    scheduler=SchedulerKind.SLURM,
    scale="laptop",
    gpus_per_node=1,
    device="cpu",
    walltime_min=30,
    poll_interval_s=10.0,
    result_grace_s=60.0,
    lost_after_s=300.0,
    hang_grace_s=60.0,
)
CALM = Policy(canary=False)
AnEvent = TypeVar("AnEvent")


def rank_error(error_class: ErrorClass, message: str = "boom", **changes: object) -> RankError:
    values = {"rank": 0, "node_rank": 0, "time": 1.0, "error_class": error_class, "message": message, **changes}
    return RankError(**values)  # type: ignore[arg-type]  # assembled from keywords


def away() -> SchedulerUnreachableError:
    return SchedulerUnreachableError("Unable to contact slurm controller (connect failure)")


def nodes_known(*nodes: str) -> Site:
    """A cluster of these nodes, all of them in service."""
    return Site(nodes=frozenset(nodes), usable=frozenset(nodes))


def several(number: int) -> list[Cell]:
    """Cells that differ, and need the same resources."""
    return [tiny_cell(seq_len=32 * i) for i in range(1, number + 1)]


def kinds(now: Snapshot) -> list[ActionKind]:
    return [action.kind for action in now.actions]


def session_of(order: Order, ports: RunPorts, tokens: Iterator[int]) -> Session:
    """A session whose submissions are told apart by a number."""
    origin = Origin(
        run_name="weak-fake",
        sources_dir="/src",
        sources_hash="0" * 16,
        provenance={},
        new_token=lambda: f"{next(tokens):06x}",
    )
    return Session(order=order, origin=origin, ports=ports)


@dataclass
class World:
    """Everything that survives the death of an orchestrator, and a way to start the next one."""

    cells: dict[str, Cell] = field(
        default_factory=lambda: {cell_id(c): c for c in [tiny_cell(nodes=1), tiny_cell(nodes=2)]}
    )
    known: dict[str, Cell] = field(default_factory=dict)
    repeats: int = 1
    clock: FakeClock = field(default_factory=FakeClock)
    scheduler: FakeScheduler = field(default_factory=FakeScheduler)
    ledger: MemoryLedger = field(default_factory=MemoryLedger)
    run_dir: MemoryRunDirectory = field(default_factory=MemoryRunDirectory)
    reporter: ListReporter = field(default_factory=ListReporter)
    blame: MemoryBlameBook = field(default_factory=MemoryBlameBook)
    policy: Policy = CALM
    canary_helps: bool = True
    seed: int | None = None
    tokens: itertools.count[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.scheduler.clock = self.clock

    def set_cells(self, *cells: Cell) -> list[str]:
        """The run has these cells and no others; gives their ids."""
        self.cells = {cell_id(cell): cell for cell in cells}
        return list(self.cells)

    def orchestrator(self) -> Orchestrator:
        """A new process takes the run up."""
        order = Order(
            cells=self.cells,
            known={**self.known, **self.cells},
            repeats=self.repeats,
            devices={"cpu": CPU},
            cluster=CLUSTER,
            policy=self.policy,
            canary_helps=self.canary_helps,
            order_seed=self.seed,
        )
        ports = RunPorts(
            scheduler=self.scheduler,
            view=self.scheduler.view,
            ledger=self.ledger,
            run_dir=self.run_dir,
            clock=self.clock,
            reporter=self.reporter,
            blame=self.blame,
            check_lease=lambda: None,
        )
        return Orchestrator(session_of(order, ports, self.tokens))

    def begun(self, *cells: Cell) -> Orchestrator:
        """A process that has looked once at the run: at one of these cells, or as it is."""
        if cells:
            self.set_cells(*cells)
        orchestrator = self.orchestrator()
        orchestrator.step()
        return orchestrator

    def one_job(self) -> tuple[Orchestrator, str]:
        """A process has submitted the one cell of its run; gives its job too."""
        orchestrator = self.begun(tiny_cell())
        (job,) = self.scheduler.live_jobs()
        return orchestrator, job

    def look_on(self, orchestrator: Orchestrator, *, times: int) -> None:
        for _ in range(times):
            orchestrator.step()
            self.clock.sleep(CLUSTER.poll_interval_s)

    def look_twice(self, orchestrator: Orchestrator, between_s: float = CLUSTER.result_grace_s) -> Snapshot:
        """Two looks, and between them the time that files have to appear; gives what the second one says."""
        orchestrator.step()
        self.clock.sleep(between_s)
        return orchestrator.step()

    def finish(self, job: str, state: str = "COMPLETED") -> AttemptKey:
        """A job measures its cell and ends."""
        key = self.scheduler.keys[job]
        self.run_dir.results[key] = result_of(key)
        self.scheduler.say(job, state)
        return key

    def finish_all(self) -> None:
        for job in self.scheduler.live_jobs():
            self.finish(job)

    def fail(self, job: str, *errors: RankError, state: str = "FAILED", **details: object) -> None:
        """A job ends badly, and its ranks say so."""
        self.run_dir.rank_errors[self.scheduler.keys[job]] = list(errors)
        self.scheduler.say(job, state, **details)

    def end_all(self, orchestrator: Orchestrator, state: str, *errors: RankError, **details: object) -> None:
        """Every job in the queue ends so, and its files have had their time to appear; nothing is submitted."""
        for job in self.scheduler.live_jobs():
            self.fail(job, *errors, state=state, **details)
        orchestrator.executor.settle()
        self.clock.sleep(CLUSTER.result_grace_s)
        orchestrator.executor.settle()

    def attempt_file(self, job: str, **changes: object) -> AttemptFile:
        """What the launcher of a job writes."""
        key = self.scheduler.keys[job]
        values = {"key": key, "job_id": job, "restart": 0, "hosts": ("n1",), "pid": 1, "started_at": 1000.0, **changes}
        return AttemptFile(**values)  # type: ignore[arg-type]  # assembled from keywords

    def launched(self, job: str, **changes: object) -> None:
        """The launcher of a job wrote its file, and was killed with the job."""
        self.run_dir.attempt_files[self.scheduler.keys[job]] = self.attempt_file(job, **changes)

    def run_to_the_end(self, *, steps: int = 200) -> Orchestrator:
        """A process in whose world every job succeeds at once."""
        orchestrator = self.orchestrator()
        for _ in range(steps):
            now = orchestrator.step()
            if now.is_over:
                return orchestrator
            self.finish_all()
            self.clock.sleep(CLUSTER.poll_interval_s)
        raise AssertionError(f"not over after {steps} steps: {now.actions}")

    def events(self, kind: type[AnEvent]) -> list[AnEvent]:
        """What the ledger has of a kind."""
        return [event for event in self.ledger.events() if isinstance(event, kind)]

    def outcomes(self) -> list[Outcome]:
        return [event.outcome for event in self.events(Ended)]

    def submitted(self) -> list[Submission]:
        return [submission for submission, _ in self.reporter.submissions]
