from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import pytest

from sweep.core.attempt import AttemptKey
from sweep.core.cell import Cell, cell_id
from sweep.core.policy import Policy
from sweep.core.spec import ClusterSpec, SchedulerKind
from sweep.usecases.orchestrate import Orchestrator
from sweep.usecases.session import Session, Sources
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
    policy: Policy = field(default_factory=lambda: Policy(canary=False))
    canary_helps: bool = True
    tokens: itertools.count[int] = field(default_factory=itertools.count)

    def orchestrator(self) -> Orchestrator:
        """A new process takes the run up."""
        return Orchestrator(
            Session(
                cells=self.cells,
                known={**self.known, **self.cells},
                repeats=self.repeats,
                devices={"cpu": CPU},
                cluster=CLUSTER,
                run_name="weak-fake",
                scheduler=self.scheduler,
                ledger=self.ledger,
                run_dir=self.run_dir,
                clock=self.clock,
                reporter=self.reporter,
                sources=Sources(directory="/src", digest="0" * 16),
                provenance={},
                new_token=lambda: f"{next(self.tokens):06x}",
                check_lease=lambda: None,
                blame=self.blame,
                policy=self.policy,
                canary_helps=self.canary_helps,
            )
        )

    def finish(self, job: str, state: str = "COMPLETED") -> AttemptKey:
        """A job measures its cell and ends."""
        key = self.scheduler.keys[job]
        self.run_dir.results[key] = result_of(key)
        self.scheduler.say(job, state)
        return key

    def run_to_the_end(self, *, steps: int = 200) -> Orchestrator:
        """A process in whose world every job succeeds at once."""
        orchestrator = self.orchestrator()
        for _ in range(steps):
            now = orchestrator.step()
            if now.is_over:
                return orchestrator
            for job in self.scheduler.live_jobs():
                self.finish(job)
            self.clock.sleep(CLUSTER.poll_interval_s)
        raise AssertionError(f"not over after {steps} steps: {now.actions}")


@pytest.fixture
def world() -> World:
    return World()
