"""Chooses the adapters for a configuration and puts a session together from them."""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, assert_never

from sweep.adapters.clock import SystemClock
from sweep.adapters.files.blame_file import BlameFile, blame_path
from sweep.adapters.files.ledger_file import LedgerFile
from sweep.adapters.files.sources_snapshot import collect, packages_root, snapshot
from sweep.core.records.layout import LEDGER_FILE
from sweep.core.settings.spec import ClusterSpec, SchedulerKind, SlurmSpec
from sweep.ports import ClusterView, Scheduler, SchedulerError
from sweep.usecases.observe import Observation, observe
from sweep.usecases.session import Order, Origin, Reporter, RunPorts, Session

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sweep.adapters.files.lease import Lease
    from sweep.adapters.files.run_directory import RunDir
    from sweep.adapters.slurm.scheduler import SlurmScheduler
    from sweep.core.attempts.attempt import JobReport
    from sweep.core.attempts.history import History
    from sweep.core.jobs.submission import Submission
    from sweep.core.records.sweep_file import SweepFile


def cluster_for(cluster: ClusterSpec, run_dir: RunDir, *, starts: bool = True) -> tuple[Scheduler, ClusterView]:
    """The scheduler that a cluster names, and the view of that cluster, which only reads.

    Args:
        cluster: The cluster.
        run_dir: The run directory.
        starts: True if a local scheduler may start jobs that wait.

    Raises:
        sweep.ports.SchedulerError: If its commands are missing on this machine.
    """
    if cluster.scheduler is SchedulerKind.SLURM:
        from sweep.adapters.slurm.scheduler import SlurmScheduler

        slurm = SlurmScheduler(cluster.slurm, Path(run_dir.path))
        return slurm, _slurm_view(slurm, cluster.slurm)
    if cluster.scheduler is not SchedulerKind.LOCAL:
        assert_never(cluster.scheduler)
    from sweep.adapters.local.scheduler import LocalScheduler

    def is_ours(submission: Submission) -> bool:
        directory, digest = snapshot(Path(run_dir.path))
        sources = (submission.sources_dir, submission.sources_hash)
        return submission.launch == cluster.launch and sources == (str(directory), digest)

    local = LocalScheduler(
        Path(run_dir.path),
        max_concurrent_cells=cluster.max_concurrent_cells,
        starts=starts,
        setup=cluster.slurm.setup,
        is_ours=is_ours,
    )
    return local, ClusterView(reports=local, diagnosis=local)


def _slurm_view(slurm: SlurmScheduler, spec: SlurmSpec) -> ClusterView:
    return ClusterView(reports=slurm, accounting=slurm if spec.sacct else None, facts=slurm, diagnosis=slurm)


def observe_run(history: History, content: SweepFile, run_dir: RunDir) -> Observation:
    """Bring the history of a run that nobody watches up to date, in memory only."""
    if not any(attempt.job_id is not None for attempt in history.in_flight()):
        return Observation(reports={}, unrecorded=frozenset())
    try:
        view = _view(content, run_dir)
    except SchedulerError as error:
        return Observation(reports={}, unrecorded=frozenset(), problem=str(error))
    return observe(history, records=run_dir, view=view, now=SystemClock().now())


def observe_queue(history: History, content: SweepFile, run_dir: RunDir) -> Observation:
    """Slurm's reports on the jobs of a run that another process watches; nothing is concluded from them."""
    reports: Mapping[str, JobReport] = {}
    in_flight = [attempt for attempt in history.in_flight() if attempt.job_id is not None]
    if in_flight and content.scheduler == SchedulerKind.SLURM:
        since = min(attempt.reserved_at for attempt in in_flight)
        with suppress(SchedulerError):  # the watching process reports that it is away
            reports = _view(content, run_dir).reports.poll([str(attempt.job_id) for attempt in in_flight], since=since)
    return Observation(reports=reports, unrecorded=frozenset())


def _view(content: SweepFile, run_dir: RunDir) -> ClusterView:
    """The view of a run's cluster, which only reads."""
    if content.scheduler == SchedulerKind.SLURM:
        from sweep.adapters.slurm.scheduler import SlurmScheduler

        spec = SlurmSpec(sacct=content.accounting)
        return _slurm_view(SlurmScheduler(spec, Path(run_dir.path)), spec)
    if content.scheduler not in (SchedulerKind.LOCAL, None):  # None: of a run directory that an old version wrote
        assert_never(content.scheduler)
    from sweep.adapters.local.scheduler import LocalScheduler

    local = LocalScheduler(Path(run_dir.path), drives=False)
    return ClusterView(reports=local, diagnosis=local)


def session_for(
    order: Order,
    content: SweepFile,
    *,
    run_dir: RunDir,
    lease: Lease,
    scheduler: Scheduler,
    view: ClusterView,
    reporter: Reporter,
    command: Sequence[str],
) -> Session:
    """A session on a run directory whose lease is held, for some or all of the cells in its ``sweep.json``."""
    path = Path(run_dir.path)
    directory, digest = snapshot(path)
    origin = Origin(
        run_name=f"{content.grid}-{order.cluster.name}",
        sources_dir=str(directory),
        sources_hash=digest,
        provenance=collect(command=command, sources=packages_root(), run_dir=path),
        new_token=lambda: uuid.uuid4().hex[:6],
    )
    ports = RunPorts(
        scheduler=scheduler,
        view=view,
        ledger=LedgerFile(path / LEDGER_FILE),
        run_dir=run_dir,
        clock=SystemClock(),
        reporter=reporter,
        blame=BlameFile(blame_path(content.blame_name, os.environ)),
        check_lease=lease.check,
    )
    return Session(order=order, origin=origin, ports=ports)
