"""What the checks of records cost: two trees of the project, side by side, in CPU time of processes in turn.

``python benchmarks/trust_cost.py OTHER_TREE`` compares this tree with another one: reading and folding a ledger,
``plan`` of a grid and ``status`` of a recorded run. Pairs are measured one after the other in turn, so that other work
on the machine meets both alike; a run before them writes the compiled modules.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

LIMIT = 1.03
HERE = Path(__file__).parents[1]
LEDGER = """
import sys
from pathlib import Path
from sweep.adapters.files.ledger_file import LedgerFile
from sweep.core.attempts.history import fold
fold(LedgerFile(Path(sys.argv[1])).read()[0])
"""


def main() -> int:
    """Print each case's median ratio of this tree to the other; 1 where one is above the limit."""
    other, pairs = Path(sys.argv[1]).resolve(), int(sys.argv[2]) if len(sys.argv) > 2 else 9
    sys.path.insert(0, str(HERE))
    from benchmarks.ledger_fold import _events
    from sweep.core.attempts.ledger import render_event

    is_slow = False
    with tempfile.TemporaryDirectory() as folder:
        ledger, run_dir = Path(folder) / "ledger.jsonl", Path(folder) / "run"
        shutil.copytree(HERE / "tests" / "golden" / "runs" / "ends", run_dir)
        with ledger.open("w") as file:
            for number in range(250_000):
                file.writelines(render_event(event) + "\n" for event in _events(number))
        cases = {
            "a ledger of 1,000,000 events": ["-c", LEDGER, str(ledger)],
            "plan": ["-m", "sweep", "plan", "+grid=weak_scaling", "cluster=local", f"run_dir={folder}/none"],
            "status": ["-m", "sweep", "status", f"run_dir={run_dir}"],
        }
        for name, words in cases.items():
            for tree in (HERE, other):
                _cpu_s(tree, words, folder)
            ratios = [_cpu_s(HERE, words, folder) / _cpu_s(other, words, folder) for _ in range(pairs)]
            ratio = statistics.median(ratios)
            is_slow |= ratio > LIMIT
            print(f"{name}: {ratio:.3f} of the other tree's CPU time (median of {pairs} pairs)", flush=True)
    return int(is_slow)


def _cpu_s(tree: Path, words: list[str], folder: str) -> float:
    """CPU seconds of one process that runs the tree's code."""
    before = os.times()
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONSAFEPATH": "1", "PYTHONPYCACHEPREFIX": f"{folder}/pyc"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    subprocess.run([sys.executable, *words], env=environment, cwd=folder, check=True, capture_output=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


if __name__ == "__main__":
    sys.exit(main())
