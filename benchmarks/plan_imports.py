"""What one ``plan`` of weak_scaling imports, next to what Hydra costs anyone who composes a configuration with it.

Both are the sum of the times of all imports, as ``python -X importtime`` reports them from the end of the start of the
interpreter on. The two commands take turns, so that a busy machine slows both, and the medians are compared. They are
measured twice: as installed, with the bytecode of every module cached, and with none of our own modules cached, as
after an update or where ``PYTHONDONTWRITEBYTECODE`` is set: then ours are compiled, which the libraries never are.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 2.0
RUNS = 10
HYDRA = ("-c", "import hydra, omegaconf, hydra.compose")
PLAN = ("-m", "sweep", "plan", "+grid=weak_scaling", "cluster=local")
_LINE = re.compile(r"^import time:\s+(?P<self_us>\d+) \|\s+\d+ \|\s+(?P<module>\S+)$", re.MULTILINE)


def imported(command: tuple[str, ...], folder: Path, bytecode: Path, *, writes: bool) -> dict[str, int]:
    """Microseconds of each module that a command imports.

    Args:
        command: Arguments of the interpreter.
        folder: Where it runs; nothing is written there.
        bytecode: The folder of the bytecode cache.
        writes: False: modules that are not cached stay so.
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": str(bytecode)}
    environment["PYTHONDONTWRITEBYTECODE"] = "" if writes else "1"
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *command],
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=True,
    )
    lines = [(match["module"], int(match["self_us"])) for match in _LINE.finditer(done.stderr)]
    start = [name for name, _ in lines].index("site") + 1
    return dict(lines[start:])


def ratio(title: str, folder: Path, bytecode: Path) -> float:
    """Print what the two commands import and how long it takes; the ratio of the medians."""
    pairs = [
        (imported(PLAN, folder, bytecode, writes=False), imported(HYDRA, folder, bytecode, writes=False))
        for _ in range(RUNS)
    ]
    plan_ms = median(sum(plan.values()) for plan, _ in pairs) / 1e3
    hydra_ms = median(sum(hydra.values()) for _, hydra in pairs) / 1e3
    ours = [{name: us for name, us in plan.items() if name.partition(".")[0] == "sweep"} for plan, _ in pairs]
    ours_ms = median(sum(plan.values()) for plan in ours) / 1e3
    print(
        f"{title}: plan {plan_ms:.0f} ms for {len(pairs[0][0])} modules ({ours_ms:.0f} ms for {len(ours[0])} of ours), "
        f"Hydra {hydra_ms:.0f} ms for {len(pairs[0][1])}: {plan_ms / hydra_ms:.2f} x, of at most {LIMIT:g} x"
    )
    return plan_ms / hydra_ms


def main() -> int:
    """Print one line for each state of the cache; exit status 1 where the limit is broken."""
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        folder, bytecode = Path(first), Path(second)
        for command in (PLAN, HYDRA):
            imported(command, folder, bytecode, writes=True)
        cached = ratio("bytecode cached", folder, bytecode)
        shutil.rmtree(bytecode / ROOT.relative_to("/") / "sweep")
        compiled = ratio("ours compiled", folder, bytecode)
    return int(max(cached, compiled) > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
