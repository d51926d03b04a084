"""Which adapters a configuration stands for, and one session put together from them."""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from sweep.adapters.clock import SystemClock
from sweep.adapters.files.blame_file import BlameFile, blame_path
from sweep.adapters.files.ledger_file import LedgerFile
from sweep.adapters.files.provenance import collect
from sweep.adapters.files.sources_snapshot import packages_root, snapshot
from sweep.core.records.layout import LEDGER_FILE
from sweep.core.settings.spec import SchedulerKind, SlurmSpec
from sweep.ports import SchedulerError
from sweep.usecases.look import Look, look_over
from sweep.usecases.session import Session, Sources

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sweep.adapters.files.lease import Lease
    from sweep.adapters.files.run_directory import RunDir
    from sweep.core.attempts.attempt import JobReport
    from sweep.core.attempts.history import History
    from sweep.core.cells.cell import Cell
    from sweep.core.cells.device import Device
    from sweep.core.records.sweep_file import SweepFile
    from sweep.core.settings.policy import Policy
    from sweep.core.settings.spec import ClusterSpec
    from sweep.ports import Scheduler
    from sweep.usecases.session import Reporter


def scheduler_for(cluster: ClusterSpec, run_dir: RunDir, *, starts: bool = True) -> Scheduler:
    """The scheduler that a cluster names.

    Args:
        cluster: The cluster.
        run_dir: The run directory.
        starts: Whether jobs that wait may be started, where this process has to do that.

    Raises:
        sweep.ports.SchedulerError: If its commands are not to be had here.
    """
    if cluster.scheduler is SchedulerKind.SLURM:
        from sweep.adapters.slurm.scheduler import SlurmScheduler

        return SlurmScheduler(cluster.slurm)
    from sweep.adapters.local.scheduler import LocalScheduler

    return LocalScheduler(Path(run_dir.path), max_concurrent_cells=cluster.max_concurrent_cells, starts=starts)


def look_over_run(history: History, content: SweepFile, run_dir: RunDir) -> Look:
    """Bring the history of a run that nobody watches up to date, in memory only."""
    if not any(attempt.job_id is not None for attempt in history.in_flight()):
        return Look(reports={}, unrecorded=frozenset())
    try:
        scheduler = _scheduler_to_ask(content, run_dir)
    except SchedulerError as error:
        return Look(reports={}, unrecorded=frozenset(), problem=str(error))
    return look_over(history, run_dir=run_dir, scheduler=scheduler, clock=SystemClock())


def look_at_queue(history: History, content: SweepFile, run_dir: RunDir) -> Look:
    """What Slurm says of the jobs of a run that somebody else watches; nothing is concluded from it."""
    reports: Mapping[str, JobReport] = {}
    flying = [attempt for attempt in history.in_flight() if attempt.job_id is not None]
    if flying and content.scheduler == SchedulerKind.SLURM:
        since = min(attempt.reserved_at for attempt in flying)
        with suppress(SchedulerError):  # who watches says so where it is away
            scheduler = _scheduler_to_ask(content, run_dir)
            reports = scheduler.poll([str(attempt.job_id) for attempt in flying], since=since)
    return Look(reports=reports, unrecorded=frozenset())


def _scheduler_to_ask(content: SweepFile, run_dir: RunDir) -> Scheduler:
    if content.scheduler == SchedulerKind.SLURM:
        from sweep.adapters.slurm.scheduler import SlurmScheduler

        return SlurmScheduler(SlurmSpec(sacct=content.accounting))
    from sweep.adapters.local.scheduler import LocalScheduler

    return LocalScheduler(Path(run_dir.path), drives=False)


def session_for(
    content: SweepFile,
    *,
    cells: Mapping[str, Cell],
    repeats: int,
    devices: Mapping[str, Device],
    cluster: ClusterSpec,
    run_dir: RunDir,
    lease: Lease,
    scheduler: Scheduler,
    reporter: Reporter,
    command: Sequence[str],
    policy: Policy,
    canary_helps: bool,
) -> Session:
    """A session on a run directory whose lease is held, for some or all of the cells in its ``sweep.json``."""
    path = Path(run_dir.path)
    directory, digest = snapshot(path)
    return Session(
        cells=cells,
        known=content.cells,
        repeats=repeats,
        devices=devices,
        cluster=cluster,
        run_name=f"{content.grid}-{cluster.name}",
        scheduler=scheduler,
        ledger=LedgerFile(path / LEDGER_FILE),
        run_dir=run_dir,
        clock=SystemClock(),
        reporter=reporter,
        sources=Sources(directory=str(directory), digest=digest),
        provenance=collect(command=command, sources=packages_root(), run_dir=path),
        new_token=lambda: uuid.uuid4().hex[:6],
        check_lease=lease.check,
        blame=BlameFile(blame_path(content.blame_name, os.environ)),
        policy=policy,
        canary_helps=canary_helps,
    )
