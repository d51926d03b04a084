"""Describes what one command asks for, as ``sweep.json`` and as one action for every repeat; submits nothing."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING
from zlib import crc32

from sweep.core.attempts.ledger import Reopened
from sweep.core.decisions.admission import AdmissionBounds, admitted
from sweep.core.decisions.plan import Action, decide, to_reopen
from sweep.core.records.sweep_file import SweepFile, extended
from sweep.core.settings.spec import RunOrder, SchedulerKind, SweepSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sweep.core.attempts.history import History
    from sweep.core.cells.cell import Cell
    from sweep.core.grids.grid import Expansion
    from sweep.ports import RunDirectory


def sweep_file_of(spec: SweepSpec, expansion: Expansion, *, own_name: str | None = None) -> SweepFile:
    """The content of ``sweep.json`` for one command; ``own_name`` is the cluster's own name, where it was asked."""
    used = {cell.device for cell in expansion.cells.values()}
    return SweepFile(
        grid=spec.grid.name,
        cluster=spec.cluster.name,
        scale=spec.scale,
        batch_kind=spec.grid.batch_kind,
        repeats=spec.repeats,
        series=spec.series,
        flop_convention=spec.flop_convention,
        devices={name: device for name, device in spec.devices.items() if name in used},
        cells=expansion.cells,
        points=expansion.points,
        rejections=expansion.rejections,
        policy=spec.policy,
        own_name=own_name,
        scheduler=spec.cluster.scheduler,
        accounting=spec.cluster.slurm.sacct,
        # From the run's name: `plan` shows what `run` will do.
        order_seed=crc32(PurePath(spec.run_dir).name.encode()) if spec.order is RunOrder.SHUFFLED else None,
    )


def declare(run_dir: RunDirectory, content: SweepFile) -> SweepFile:
    """Write what a command asks for into ``sweep.json``, extending what is there.

    Raises:
        PinError: If the run directory is another grid's or cluster's.
    """
    old = run_dir.sweep_file()
    whole = content if old is None else extended(old, content)
    run_dir.publish_sweep_file(whole)
    return whole


def planned(
    spec: SweepSpec, cells: Mapping[str, Cell], whole: SweepFile, history: History, *, now: float
) -> list[Action]:
    """The first actions of a run of this command, as far as they follow without asking the cluster.

    Args:
        spec: What is asked for.
        cells: Its cells.
        whole: What the run directory would hold: those, and all others that it knows.
        history: All attempts so far; what is asked for again is reopened in it.
        now: Unix time.
    """
    bounds = AdmissionBounds(
        now=now,
        most_jobs=spec.cluster.slurm.max_concurrent_jobs,
        canary_helps=spec.cluster.scheduler is SchedulerKind.SLURM,
        order_seed=whole.order_seed,
    )

    def actions() -> list[Action]:
        decided = decide(
            cells,
            repeats=spec.repeats,
            history=history,
            rules=spec.policy.outcomes,
            walltime_min=spec.cluster.walltime_min,
        )
        return admitted(decided, whole.cells, history, spec.policy, bounds)

    if spec.retry:
        history.apply(Reopened(time=now, repeats=tuple(to_reopen(actions(), spec.retry))))
    return actions()
