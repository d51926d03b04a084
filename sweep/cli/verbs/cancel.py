"""``cancel``: ends cells that are queued or running and submits none of them again; or asks the watching process to."""

from __future__ import annotations

import math
import time
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from sweep.adapters.files.lease import Lease, LeaseHeldError
from sweep.adapters.files.ledger_file import LedgerFile
from sweep.cli.common import OK, CommandError, cells_named, consoles, find_run_dir, read_history, sweep_file_of
from sweep.cli.console import print_json
from sweep.cli.display.progress import ConsoleReporter
from sweep.cli.wiring import cluster_for, session_for
from sweep.core.attempts.ledger import CancelRequested
from sweep.core.cells.axes import axis_names
from sweep.core.cells.parallelism import DEGREES
from sweep.core.decisions.reopen import had_ended, held_back
from sweep.core.encoding.message import counted
from sweep.core.grids.combination import DERIVED
from sweep.core.grids.conditions import Condition, ConditionError
from sweep.core.records.layout import LEDGER_FILE
from sweep.core.settings.spec import ClusterSpec, SchedulerKind, SlurmSpec
from sweep.usecases.orchestrate import Orchestrator
from sweep.usecases.session import Order

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console

    from sweep.adapters.files.run_directory import RunDir
    from sweep.cli.args import Arguments
    from sweep.core.grids.grid import Point
    from sweep.core.records.sweep_file import SweepFile

_PATIENCE_S = 60.0
_MOST_LISTED = 8  # --json names all


def main(asked: Arguments) -> int:
    """Cancel cells of a run."""
    run_dir = find_run_dir(asked)
    run_dir.refuse_strangers_files()
    content = sweep_file_of(run_dir)
    if not asked.cells and not asked.all_cells and asked.where is None:
        raise CommandError("cancel needs cells, --where or --all: python -m sweep cancel CELL [CELL ...]")
    cells = list(content.cells) if asked.all_cells else cells_named(asked.cells, content)
    if asked.where is not None:
        cells += _meeting(asked.where, content)
    _, err = consoles()
    before = len(_cancels(run_dir))
    if cells:
        try:
            with Lease(Path(run_dir.path)) as lease:
                _cancel_here(asked, run_dir, content, cells, lease, err)
        except LeaseHeldError:
            _ask_the_holder(run_dir, cells, err)
        nothing = "these cells are measured, explained, given up or cancelled already"
    else:
        nothing = f"no cell of this run meets {asked.where!r}"
    _report(asked, run_dir, _cancels(run_dir)[before:], nothing, err)
    return OK


def _cancels(run_dir: RunDir) -> list[CancelRequested]:
    """All cancels of a run so far."""
    events, _ = LedgerFile(Path(run_dir.path) / LEDGER_FILE).read()
    return [event for event in events if isinstance(event, CancelRequested)]


def _report(asked: Arguments, run_dir: RunDir, cancels: list[CancelRequested], nothing: str, err: Console) -> None:
    """The result of a request: attempts that are ended, and repeats that are not submitted (again)."""
    keys = list(dict.fromkeys(key for event in cancels for key in event.keys))
    history, _ = read_history(run_dir)
    held = held_back(cancels, history, sweep_file_of(run_dir).policy.outcomes)
    over = had_ended(cancels, history)
    if asked.as_json:
        found = [{"cell": cell, "repeat": repeat} for cell, repeat in held]
        print_json({"run_dir": run_dir.path, "attempts": list(map(str, keys)), "held_back": found})
    parts = []
    if keys:
        parts.append(f"cancelled {counted(len(keys), 'attempt')}{_listed(map(str, keys))}")
    if held:
        listed = _listed(f"{cell}/{repeat}" for cell, repeat in held)
        parts.append(f"held back {counted(len(held), 'repeat')} not in the queue{listed}")
    if over:
        their, is_judged = ("its", "is") if len(over) == 1 else ("their", "are")
        parts.append(
            f"{counted(len(over), 'attempt')} had ended before and {is_judged} judged by {their} own end"
            f"{_listed(map(str, over))}"
        )
    text = f"{'; '.join(parts)}." if parts else f"nothing to cancel: {nothing}."
    if keys or held:
        text += " A run with retry=[CANCELLED] tries them again."
    err.print(text, highlight=False, markup=False, soft_wrap=True)


def _listed(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - _MOST_LISTED} more" if len(listed) > _MOST_LISTED else ""
    return f" ({', '.join(listed[:_MOST_LISTED])}{more})" if listed else ""


def _meeting(text: str, content: SweepFile) -> list[str]:
    """Cells of the points whose axes meet a condition."""
    try:
        condition = Condition(text, {*axis_names(content.batch_kind), *DERIVED})
        return [point.cell_id for point in content.points if condition.holds(_values(point, content))]
    except ConditionError as error:
        raise CommandError(str(error)) from error


def _values(point: Point, content: SweepFile) -> dict[str, object]:
    """The names that a condition may use of a point: its axes, ``auto`` degrees as they came out, and derived sizes."""
    cell = content.cells[point.cell_id]
    degrees = {name: getattr(cell.parallelism, name) for name in DEGREES}
    derived = {"gpus": cell.gpus, "n_params": cell.model.n_params, "global_batch": cell.global_batch}
    settings = {f"trainer.{item.name}": getattr(cell.trainer, item.name) for item in fields(cell.trainer)}
    return {**settings, **point.axes, **degrees, "micro_batch": cell.micro_batch, **derived}


def _ask_the_holder(run_dir: RunDir, cells: list[str], err: Console) -> None:
    name = run_dir.request_cancel(cells)
    deadline = time.monotonic() + _PATIENCE_S
    while run_dir.is_request_pending(name):
        if time.monotonic() > deadline:
            raise CommandError(
                f"the process that watches {run_dir.path} has not taken the request up within {_PATIENCE_S:.0f} s. It "
                "stays there; 'python -m sweep status' shows what becomes of it."
            )
        time.sleep(0.2)
    err.print("the process that watches the run has taken the cancel up.", highlight=False)


def _cancel_here(
    asked: Arguments, run_dir: RunDir, content: SweepFile, cells: list[str], lease: Lease, err: Console
) -> None:
    cluster = _cluster(content)
    scheduler, view = cluster_for(cluster, run_dir, starts=False)
    order = Order(
        cells=content.cells,
        known=content.cells,
        repeats=content.repeats,
        devices=content.devices,
        cluster=cluster,
        policy=content.policy,
        canary_helps=False,
    )
    session = session_for(
        order,
        content,
        run_dir=run_dir,
        lease=lease,
        scheduler=scheduler,
        view=view,
        reporter=ConsoleReporter(err, content.cells),
        command=["python", "-m", "sweep", asked.verb, *asked.cells],
    )
    executor = Orchestrator(session).executor
    executor.cancel(cells)
    if executor.cancel_failure:
        raise CommandError(
            f"the scheduler did not take the cancel: {executor.cancel_failure}. Jobs go on. Give the same command "
            "again once it answers; a run that is started meanwhile repeats it, too."
        )
    executor.settle()


def _cluster(content: SweepFile) -> ClusterSpec:
    """The part of the cluster that ends jobs, from the run directory alone: the cluster's file may lie anywhere.

    How long jobs may be missing is not known here: a job is given up by the sweep's own command.
    """
    return ClusterSpec(
        name=content.cluster,
        scheduler=content.scheduler or SchedulerKind.LOCAL,
        scale=content.scale,
        gpus_per_node=1,
        device="",
        lost_after_s=math.inf,
        hang_grace_s=math.inf,
        slurm=SlurmSpec(sacct=content.accounting),
    )
