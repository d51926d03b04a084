"""``run``: runs every cell that is not measured yet, watches the jobs to their end, and makes the tables."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from sweep.adapters.files.lease import Lease, LeaseLostError
from sweep.adapters.files.run_directory import RunDir
from sweep.cli.common import (
    BAD_USAGE,
    GAVE_UP,
    INTERRUPTED,
    NOT_WATCHED,
    CommandError,
    baseline_notes,
    consoles,
    load_spec,
    print_notes,
    sbatch_notes,
)
from sweep.cli.console import print_error
from sweep.cli.display.notify import Notifier
from sweep.cli.display.progress import ConsoleReporter, Watching
from sweep.cli.display.summary import hole_lines, print_rejections
from sweep.cli.verbs.preflight_step import examine
from sweep.cli.verbs.tables import make_tables
from sweep.cli.wiring import cluster_for, session_for
from sweep.core.attempts.history import fold
from sweep.core.decisions.plan import TO_SUBMIT, ActionKind
from sweep.core.encoding.message import counted
from sweep.core.grids.grid import Expansion, expand
from sweep.core.records.layout import LEDGER_FILE
from sweep.ports import ClusterView, Scheduler, SchedulerError
from sweep.usecases.orchestrate import Orchestrator, Snapshot, exit_code
from sweep.usecases.plan import declare, sweep_file_of
from sweep.usecases.session import Order, Session

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from rich.console import Console

    from sweep.cli.args import Arguments
    from sweep.core.records.sweep_file import SweepFile
    from sweep.core.settings.spec import SweepSpec


def main(asked: Arguments) -> int:
    """Run the sweep."""
    spec = load_spec(asked)
    expansion = expand(spec.grid)
    run_dir = RunDir(Path(spec.run_dir))
    scheduler, view = cluster_for(spec.cluster, run_dir)
    if not spec.watch and not scheduler.keeps_jobs:
        raise CommandError(
            "watch=false leaves jobs to a scheduler, and the local cluster has none: its jobs end with this command. "
            "Leave watch=false out, or choose a Slurm cluster."
        )
    path = Path(run_dir.path)
    is_new = not path.exists()
    try:
        return _run(asked, spec, expansion, run_dir, scheduler, view)
    except SchedulerError:
        ledger = path / LEDGER_FILE
        if is_new and not (ledger.exists() and ledger.stat().st_size):
            # Nothing was submitted: an empty run directory would only be in the way of the real ones.
            shutil.rmtree(path, ignore_errors=True)
        raise


def _run(
    asked: Arguments, spec: SweepSpec, expansion: Expansion, run_dir: RunDir, scheduler: Scheduler, view: ClusterView
) -> int:
    _, err = consoles()
    notifier = Notifier(spec, run_dir, err)
    print_notes(err, run_dir.apply_access())
    run_dir.create()
    run_dir.refuse_strangers_files()
    with Lease(Path(run_dir.path)) as lease:
        own_name = None if view.facts is None else view.facts.own_name()
        content = declare(run_dir, sweep_file_of(spec, expansion, own_name=own_name))
        print_rejections(err, content)
        print_notes(err, [*sbatch_notes(spec.cluster, os.environ), *baseline_notes(content)])
        session = session_for(
            _order_of(spec, expansion, content, keeps_jobs=scheduler.keeps_jobs),
            content,
            run_dir=run_dir,
            lease=lease,
            scheduler=scheduler,
            view=view,
            reporter=ConsoleReporter(err, content.cells),
            command=["python", "-m", "sweep", asked.verb, *asked.overrides],
        )
        with _signals_as_interrupt():
            try:
                ruled_out = examine(session, err) if spec.preflight else {}
                snapshot = _orchestrate(Orchestrator(session, ruled_out), spec, content, err, notifier)
            except KeyboardInterrupt:
                return _interrupted(session, err)
            except OSError as error:
                notifier.stopped(f"the run directory cannot be used: {error}", NOT_WATCHED)
                scheduler.close()
                return _unusable(run_dir, error, scheduler)
            except LeaseLostError as error:
                notifier.stopped(str(error), BAD_USAGE)
                raise
            except Exception as error:
                notifier.stopped(f"{type(error).__name__}: {error}", GAVE_UP)
                raise
            finally:
                scheduler.close()
    return _finish(spec, snapshot, run_dir, err, notifier)


def _order_of(spec: SweepSpec, expansion: Expansion, content: SweepFile, *, keeps_jobs: bool) -> Order:
    return Order(
        cells={point.cell_id: expansion.cells[point.cell_id] for point in expansion.points},
        known=content.cells,
        repeats=spec.repeats,
        devices=spec.devices,
        cluster=spec.cluster,
        policy=spec.policy,
        canary_helps=keeps_jobs,
        order_seed=content.order_seed,
    )


def _orchestrate(
    orchestrator: Orchestrator, spec: SweepSpec, content: SweepFile, err: Console, notifier: Notifier
) -> Snapshot:
    orchestrator.reopen(spec.retry)
    try:
        if not spec.watch:
            return orchestrator.step()
        with Watching(err, content, orchestrator) as watching:

            def show(snapshot: Snapshot) -> None:
                watching.show(snapshot)
                notifier.watched(snapshot)

            return orchestrator.watch(show)
    finally:
        # Where that cannot be written, the next process gives it back.
        with suppress(OSError):
            orchestrator.leave()


@contextmanager
def _signals_as_interrupt() -> Iterator[None]:
    """Treat SIGHUP and SIGTERM as Ctrl-C; a second signal does not interrupt the clean-up."""
    handled = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in handled}

    def interrupt(number: int, frame: FrameType | None) -> None:
        for other in handled:
            signal.signal(other, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in handled:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupted(session: Session, err: Console) -> int:
    """Leave after Ctrl-C: local jobs are ended and their ends recorded; Slurm jobs go on."""
    again = "The same command again resumes."
    if session.ports.scheduler.keeps_jobs:
        count = sum(1 for _ in fold(session.ports.ledger.read()[0]).in_flight())
        go = "goes" if count == 1 else "go"
        err.print(f"\ninterrupted; {counted(count, 'job')} {go} on without being watched. {again}", highlight=False)
        return INTERRUPTED
    err.print("\ninterrupted; ending the running cells ...", highlight=False)
    session.ports.scheduler.close()
    try:
        _settle_interrupted(session)
    except OSError as error:
        print_error(f"error: the ends of the cells cannot be recorded: {error}. The same command records them.")
    err.print(f"no process is left. {again}", highlight=False)
    return INTERRUPTED


def _unusable(run_dir: RunDir, error: OSError, scheduler: Scheduler) -> int:
    """Leave because the run directory cannot be written any more: it is full, read-only, or gone."""
    jobs = "Slurm jobs go on" if scheduler.keeps_jobs else "no process is left"
    print_error(
        f"error: the run directory {run_dir.path} cannot be used any more: {error}. Nothing measured is lost, and "
        f"{jobs}. Mend it and give the same command again."
    )
    return NOT_WATCHED


def _settle_interrupted(session: Session) -> None:
    """Record the ends of the interrupted cells, so that ``status`` is right before the run is resumed."""
    executor, clock = Orchestrator(session).executor, session.ports.clock
    deadline = clock.monotonic() + session.order.cluster.result_grace_s + 1
    executor.settle()
    while any(executor.history.in_flight()) and clock.monotonic() < deadline:
        clock.sleep(0.2)
        executor.settle()


def _finish(spec: SweepSpec, snapshot: Snapshot, run_dir: RunDir, err: Console, notifier: Notifier) -> int:
    counts = snapshot.counts()
    if not snapshot.is_over:
        err.print(
            f"{counted(counts[ActionKind.WAIT], 'job')} submitted and not watched{_what_follows(snapshot)}. "
            f"python -m sweep status {shlex.quote(f'run_dir={run_dir.path}')} shows where they stand; "
            "the same command without watch=false takes over.",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
        return exit_code(snapshot)
    for line in hole_lines(snapshot.actions):
        err.print(line, highlight=False, markup=False, soft_wrap=True)
    if spec.tables:
        make_tables(run_dir, mix_fingerprints=spec.mix_fingerprints, err=err)
    notifier.ended(snapshot, exit_code(snapshot))
    return exit_code(snapshot)


def _what_follows(snapshot: Snapshot) -> str:
    """A line about the cells that were not submitted yet, with the reason, where no process stays to submit them."""
    rest = [action for action in snapshot.actions if action.kind in (*TO_SUBMIT, ActionKind.LATER)]
    if not rest:
        return ""
    return f"; {len(rest)} more follow when the same command is given again ({rest[0].cell_id}: {rest[0].reason})"
