"""A session: one process's hold on one run, put together from what a command asks for and the ports it works on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Protocol

from sweep.core.attempts.attempt import AttemptKey
from sweep.core.attempts.verdict import Verdict
from sweep.core.cells.cell import Cell
from sweep.core.cells.device import Device
from sweep.core.encoding.frozen import dataclass
from sweep.core.jobs.submission import Submission
from sweep.core.settings.policy import Policy
from sweep.core.settings.spec import ClusterSpec
from sweep.ports import BlameBook, Clock, ClusterView, Ledger, RunDirectory, Scheduler


class Reporter(Protocol):
    """Tells people what happens, as it happens."""

    def submitted(self, submission: Submission, jobs: tuple[str, ...]) -> None:
        """A submission has become jobs."""

    def ended(self, key: AttemptKey, verdict: Verdict) -> None:
        """An attempt is over."""

    def note(self, text: str) -> None:
        """Something that people should know and that changes nothing by itself."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """A command's order: what it asks of a run.

    Attributes:
        cells: The cells of this command, by id, in grid order.
        known: Every cell that the run directory knows, by id.
        repeats: Independent runs of each.
        devices: Profiles by name.
        cluster: Where they run.
        policy: What is retried, held back and allowed to cost.
        canary_helps: True if a canary makes sense here: cells would otherwise go out together.
        order_seed: Seed of the order of submission; None: the grid's order.
    """

    cells: Mapping[str, Cell]
    known: Mapping[str, Cell]
    repeats: int
    devices: Mapping[str, Device]
    cluster: ClusterSpec
    policy: Policy = field(default_factory=Policy)
    canary_helps: bool = True
    order_seed: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Where new submissions come from.

    Attributes:
        run_name: Grid and cluster: the start of job names.
        sources_dir: The snapshot of the code that new jobs run.
        sources_hash: Its hash.
        provenance: Commit, packages and command.
        new_token: Gives a fresh short random word for each submission's name.
    """

    run_name: str
    sources_dir: str
    sources_hash: str
    provenance: Mapping[str, object]
    new_token: Callable[[], str]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunPorts:
    """The ports of one run whose lease is held.

    Attributes:
        scheduler: Runs its jobs.
        view: What else the cluster can be asked.
        ledger: Remembers.
        run_dir: Holds the records.
        clock: Tells the time.
        reporter: Tells people.
        blame: Evidence against the cluster's nodes.
        check_lease: Raises if this process no longer holds the run.
    """

    scheduler: Scheduler
    view: ClusterView
    ledger: Ledger
    run_dir: RunDirectory
    clock: Clock
    reporter: Reporter
    blame: BlameBook
    check_lease: Callable[[], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Session:
    """A command's order, the origin of its submissions, and the run's ports."""

    order: Order
    origin: Origin
    ports: RunPorts
