"""``tables``: runs the analysis as a child process, or says where to run it if its packages are missing."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from sweep.adapters.files.lease import current_holder
from sweep.adapters.files.sources_snapshot import packages_root
from sweep.cli.common import OK, consoles, find_run_dir, print_notes, read_history, sweep_file_of
from sweep.cli.wiring import observe_run
from sweep.core.jobs.environment import scrubbed

if TYPE_CHECKING:
    from rich.console import Console

    from sweep.adapters.files.run_directory import RunDir
    from sweep.cli.args import Arguments

_NEEDED = ("pandas", "numpy", "scipy", "matplotlib")


def main(asked: Arguments) -> int:
    """Make the tables and figures of a run."""
    mix = any(word.replace(" ", "").lower() == "mix_fingerprints=true" for word in asked.overrides)
    _, err = consoles()
    run_dir = find_run_dir(asked)
    if current_holder(Path(run_dir.path)) is None:
        history, _ = read_history(run_dir)
        print_notes(err, observe_run(history, sweep_file_of(run_dir), run_dir).notes())
    return make_tables(run_dir, mix_fingerprints=mix, err=err)


def make_tables(run_dir: RunDir, *, mix_fingerprints: bool, err: Console) -> int:
    """Run ``python -m analysis`` on a run directory; return its exit code, or 0 where it is not installed."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        err.print(
            f"no tables here: {', '.join(missing)} not installed. Install the extra 'analysis', or copy {run_dir.path} "
            "to a machine that has it and run there: python -m analysis RUN_DIR --out DIR",
            highlight=False,
            soft_wrap=True,
        )
        return OK
    command = [sys.executable, "-m", "analysis", run_dir.path, "--out", run_dir.path]
    if mix_fingerprints:
        command.append("--mix-fingerprints")
    path = os.pathsep.join(filter(None, [str(packages_root()), os.environ.get("PYTHONPATH", "")]))
    sys.stdout.flush()
    environment = {**scrubbed(os.environ), "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
    return subprocess.run(command, env=environment, check=False).returncode
