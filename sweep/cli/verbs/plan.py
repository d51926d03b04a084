"""``plan``: prints every cell, the action that a run would take, and why; submits nothing and writes nothing."""

from __future__ import annotations

import os
import time
from pathlib import Path

from sweep.adapters.files.run_reader import RunReader
from sweep.cli.args import Arguments
from sweep.cli.common import OK, baseline_notes, consoles, load_spec, print_notes, read_history, sbatch_notes
from sweep.cli.console import print_json
from sweep.cli.display.cells_table import print_cells
from sweep.cli.display.summary import (
    budget_notes,
    budget_totals,
    gpu_hours_to_submit,
    order_text,
    print_rejections,
    totals_line,
)
from sweep.core.grids.grid import expand
from sweep.core.records.sweep_file import extended
from sweep.usecases.plan import planned, sweep_file_of
from sweep.usecases.status import statuses


def main(asked: Arguments) -> int:
    """Print the plan."""
    spec = load_spec(asked)
    content = sweep_file_of(spec, expand(spec.grid))
    run_dir = RunReader(Path(spec.run_dir))
    old = run_dir.sweep_file()
    # An error where the directory belongs to another grid or cluster.
    whole = content if old is None else extended(old, content)
    history, problems = read_history(run_dir)
    actions = planned(spec, content.cells, whole, history, now=time.time())
    listed = statuses(content, history, run_dir, actions)
    walltime_min = spec.cluster.walltime_min
    hours = gpu_hours_to_submit(listed, walltime_min)
    out, err = consoles()
    console = err if asked.as_json else out
    if asked.as_json:
        from sweep.cli.display.as_json import as_json

        budget = budget_totals(spec.policy.budget_gpu_hours, history)
        totals = {"gpu_hours_at_most": hours, "walltime_min": walltime_min, **budget, "run_dir": run_dir.path}
        totals["order_seed"] = whole.order_seed
        print_json(as_json(content, listed, totals, walltime_min=walltime_min))
    else:
        print_cells(console, content, listed, walltime_min=walltime_min)
        print_rejections(console, content)
    print_notes(
        err,
        [
            *problems,
            *sbatch_notes(spec.cluster, os.environ),
            *baseline_notes(content),
            *budget_notes(spec.policy.budget_gpu_hours, history),
        ],
    )
    console.print(
        f"\n{totals_line(listed)}; at most {hours:,.1f} GPU-hours (walltime {walltime_min} min x GPUs). "
        f"Grid {content.grid}, scale {content.scale}, cluster {content.cluster}, run directory {spec.run_dir}. "
        f"{order_text(whole.order_seed)} Nothing was submitted.",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    return OK
