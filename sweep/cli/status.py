"""``status``: where every cell of a run stands; only reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from sweep.adapters.lease import current_holder
from sweep.cli import views
from sweep.cli.common import OK, consoles, find_run_dir, print_notes, sweep_file_of
from sweep.cli.wiring import read_history
from sweep.usecases.status import gpu_hours_spent, statuses

if TYPE_CHECKING:
    from sweep.cli.args import Arguments


def main(asked: Arguments) -> int:
    """Print where a run stands."""
    run_dir = find_run_dir(asked)
    content = sweep_file_of(run_dir)
    history, problems = read_history(run_dir)
    listed = statuses(content, history, run_dir)
    holder = current_holder(Path(run_dir.path))
    out, err = consoles()
    console = err if asked.as_json else out
    if asked.as_json:
        held = None if holder is None else str(holder)
        totals = {"gpu_hours_spent": gpu_hours_spent(history), "run_dir": run_dir.path, "watched_by": held}
        print(json.dumps(views.as_json(content, listed, totals)))
    else:
        views.print_cells(console, content, listed)
        views.print_rejections(console, content)
    print_notes(err, problems)
    watched = "nobody watches it" if holder is None else f"watched by {holder}"
    console.print(
        f"\n{run_dir.path}: {views.totals_line(listed)}; {gpu_hours_spent(history):,.2f} GPU-hours spent; {watched}.",
        highlight=False,
        soft_wrap=True,
    )
    return OK
