"""``status``: prints the state of every cell of a run, every attempt at one cell, or the blamed nodes; only reads."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

from sweep.adapters.files.blame_file import BlameFile, blame_path
from sweep.adapters.files.lease import current_holder, watch_text
from sweep.adapters.files.run_directory import RunDir
from sweep.cli.args import Arguments
from sweep.cli.common import OK, cells_named, consoles, find_run_dir, print_notes, read_history, sweep_file_of
from sweep.cli.console import print_json
from sweep.cli.display import evidence
from sweep.cli.display.as_json import as_json
from sweep.cli.display.cells_table import describe, print_cells
from sweep.cli.display.summary import budget_notes, budget_totals, print_rejections, totals_line
from sweep.cli.wiring import observe_queue, observe_run
from sweep.core.attempts.blame import unexpired
from sweep.core.attempts.history import History
from sweep.core.encoding.message import hours_text
from sweep.core.encoding.plain import plain
from sweep.core.records.sweep_file import SweepFile
from sweep.usecases.executor import away_text
from sweep.usecases.observe import Observation
from sweep.usecases.status import statuses


def main(asked: Arguments) -> int:
    """Print the state of a run."""
    run_dir = find_run_dir(asked)
    content = sweep_file_of(run_dir)
    if asked.nodes:
        return _nodes(asked, content)
    history, problems = read_history(run_dir)
    if asked.cells:
        _attempts(asked, content, history, run_dir)
    else:
        _cells(asked, content, history, run_dir)
    _, err = consoles()
    strangers = run_dir.strangers_files()
    print_notes(err, [*problems, f"{strangers}; run and cancel refuse this run directory"] if strangers else problems)
    return OK


def _cells(asked: Arguments, content: SweepFile, history: History, run_dir: RunDir) -> None:
    holder = current_holder(Path(run_dir.path))
    seen = _observe(history, content, run_dir)
    listed = statuses(content, history, run_dir, seen=seen, is_watched=holder is not None)
    out, err = consoles()
    console = err if asked.as_json else out
    away = run_dir.away()
    cost = budget_totals(content.policy.budget_gpu_hours, history)
    if asked.as_json:
        totals = {
            **cost,
            "run_dir": run_dir.path,
            "watched_by": None if holder is None else str(holder),
            "scheduler_away_since": None if away is None else away[0],
            "unrecorded": len(seen.unrecorded),
        }
        print_json(as_json(content, listed, totals))
    else:
        print_cells(console, content, listed)
        print_rejections(console, content)
    console.print(
        f"\n{run_dir.path}: {totals_line(listed)}; {hours_text(cost['gpu_hours_spent'])} GPU-hours spent, "
        f"{hours_text(cost['gpu_hours_reserved'])} reserved; {watch_text(Path(run_dir.path))}.",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    print_notes(err, budget_notes(content.policy.budget_gpu_hours, history))
    print_notes(err, seen.notes())
    if away is not None:
        when = "" if holder is not None else ", when it was last watched"
        console.print(f"{away_text(*away)}{when}.", highlight=False, markup=False, soft_wrap=True)


def _observe(history: History, content: SweepFile, run_dir: RunDir) -> Observation:
    """Observe the scheduler's reports; where no process watches the run, ends are judged here."""
    is_watched = current_holder(Path(run_dir.path)) is not None
    return (observe_queue if is_watched else observe_run)(history, content, run_dir)


def _attempts(asked: Arguments, content: SweepFile, history: History, run_dir: RunDir) -> None:
    out, err = consoles()
    cells = cells_named(asked.cells, content)
    seen = _observe(history, content, run_dir)
    seen = replace(seen, unrecorded=frozenset(key for key in seen.unrecorded if key.cell_id in cells))
    if asked.as_json:
        found = [
            {"cell": cell, "attempts": evidence.attempts_as_json(cell, content, history, run_dir, seen)}
            for cell in cells
        ]
        print_json({"cells": found})
        return
    for cell in cells:
        out.print(f"cell {cell} ({describe(content.cells[cell])})", highlight=False, markup=False, soft_wrap=True)
        evidence.print_attempts(out, cell, content, history, run_dir, seen)
    print_notes(err, seen.notes())


def _nodes(asked: Arguments, content: SweepFile) -> int:
    blames = BlameFile(blame_path(content.blame_name, os.environ)).read()
    policy, now = content.policy, time.time()
    if asked.as_json:
        found = unexpired(blames, now=now, expiry_h=policy.bad_node_expiry_h)
        print_json({"nodes": {node: [plain(item) for item in items] for node, items in found.items()}})
        return OK
    out, _ = consoles()
    evidence.print_nodes(
        out, content.blame_name, blames, after=policy.bad_node_after, expiry_h=policy.bad_node_expiry_h, now=now
    )
    return OK
