"""How long 500 one-node cells take to be submitted to a real Slurm, beside the ways in which it is usually done.

- this tool: ``python -m sweep ... watch=false``, the whole command, with its records, ledger and copy of the sources;
- hydra-submitit-launcher: ``--multirun`` of a task that does nothing, until its sbatch has answered (it would go on to
  wait for the results); its package is installed into a temporary folder, and left out where that cannot be;
- one sbatch for each cell, with nothing around it.

The jobs never start: the partition is down meanwhile. SWEEP_TEST_SLURM_DIR names a private Slurm that is up already;
without it one is brought up and taken down (as root).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tools.private_slurm import CannotRunHereError, Cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

CELLS = 500
GROUPS = 1
AIM_S = 15.0
LAUNCHER = "hydra-submitit-launcher==1.2.0"
_APP = """
import hydra
@hydra.main(version_base=None, config_path=None)
def main(cfg): pass
if __name__ == "__main__": main()
"""


def _environment(cluster: Cluster, folder: Path) -> dict[str, str]:
    """With an sbatch in the way that counts its calls, and notes when each has answered."""
    real = shutil.which("sbatch")
    script = folder / "bin" / "sbatch"
    script.parent.mkdir()
    script.write_text(f'#!/bin/bash\n{real} "$@"; code=$?; echo $code >> {folder}/answers; exit $code\n')
    script.chmod(0o755)
    return {**os.environ, **cluster.env(), "PATH": f"{script.parent}:{os.environ['PATH']}"}


def _answers(folder: Path) -> int:
    """How often sbatch has answered since this was last asked."""
    log = folder / "answers"
    lines = log.read_text().splitlines() if log.exists() else []
    log.unlink(missing_ok=True)
    assert set(lines) <= {"0"}, "an sbatch failed"
    return len(lines)


def _ours(folder: Path, env: Mapping[str, str]) -> float:
    site = {
        **{"description": "a private Slurm", "name": "bench", "scheduler": "slurm", "scale": "laptop", "device": "cpu"},
        **{"gpus_per_node": 1, "slurm": {"gpu_flag": "gres", "cpus_per_task": 1}},
    }
    (folder / "conf" / "cluster").mkdir(parents=True)
    (folder / "conf" / "cluster" / "bench.yaml").write_text(json.dumps(site))  # JSON is YAML
    lengths = ",".join(str(32 * number) for number in range(1, CELLS + 1))
    words = [
        "+grid=weak_scaling",
        "cluster=bench",
        "nodes=1",
        f"seq_len=[{lengths}]",
        "watch=false",
        "policy.canary=false",
    ]
    command = [sys.executable, "-m", "sweep", "--config-dir", str(folder / "conf"), *words]
    began = time.perf_counter()
    done = subprocess.run(command, cwd=folder, env=dict(env), capture_output=True, text=True, check=False)
    took = time.perf_counter() - began
    assert done.returncode == 3, done.stderr
    return took


def _hydras(folder: Path, env: Mapping[str, str]) -> float | None:
    target = folder / "launcher"
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(target), LAUNCHER]
    if subprocess.run(install, capture_output=True, check=False).returncode != 0:
        return None
    (folder / "app.py").write_text(_APP)
    words = ["-m", f"+x=range({CELLS})", "hydra/launcher=submitit_slurm", "hydra.launcher.gres=gpu:1"]
    words += [f"hydra.sweep.dir={folder}/multirun", "hydra.launcher.timeout_min=5", "hydra.launcher.mem_gb=null"]
    path = {"PYTHONPATH": str(target)}
    began = time.perf_counter()
    log = (folder / "hydra.log").open("w")
    process = subprocess.Popen(
        [sys.executable, "app.py", *words], cwd=folder, env={**env, **path}, stdout=log, stderr=subprocess.STDOUT
    )
    while not (folder / "answers").exists():
        assert process.poll() is None, (folder / "hydra.log").read_text()
        time.sleep(0.02)
    took = time.perf_counter() - began
    process.kill()
    process.wait()
    return took


def _one_by_one(env: Mapping[str, str]) -> float:
    command = ["sbatch", "--parsable", "--gres=gpu:1", "--time=5", "--output=/dev/null", "--wrap=true"]
    began = time.perf_counter()
    for _ in range(CELLS):
        subprocess.run(command, env=dict(env), check=True, capture_output=True)
    return time.perf_counter() - began


def _queued(env: Mapping[str, str]) -> int:
    command = ["squeue", "--array", "-h", "-t", "PENDING", "-o", "%i"]
    return len(subprocess.run(command, env=dict(env), capture_output=True, text=True, check=True).stdout.splitlines())


def _clear(env: Mapping[str, str]) -> None:
    subprocess.run(["scancel", "--state=PENDING", f"--user={os.getuid()}"], env=dict(env), check=True)
    while _queued(env):
        time.sleep(0.2)


def _measure(cluster: Cluster, folder: Path) -> list[tuple[str, float, int]]:
    """Way, seconds and sbatch calls."""
    env, found = _environment(cluster, folder), []
    assert _queued(env) == 0, "the queue is not empty"
    ways: dict[str, Callable[[], float | None]] = {
        "this tool": lambda: _ours(folder, env),
        "hydra-submitit-launcher": lambda: _hydras(folder, env),
        "one sbatch a cell": lambda: _one_by_one(env),
    }
    for name, way in ways.items():
        seconds = way()
        if seconds is None:
            print(f"{LAUNCHER} cannot be installed here: left out", file=sys.stderr)
            continue
        found.append((name, seconds, _answers(folder)))
        assert _queued(env) == CELLS, f"{name}: {_queued(env)} jobs in the queue"
        _clear(env)
    return found


def main() -> int:
    """Print seconds, sbatch calls and ratios; 1 where this tool takes longer or more calls than it may."""
    with tempfile.TemporaryDirectory() as name:
        given = os.environ.get("SWEEP_TEST_SLURM_DIR")
        cluster = Cluster(Path(given) if given else Path(name) / "slurm")
        was_up = cluster.status().up
        try:
            cluster.up()
        except CannotRunHereError as error:
            print(f"no Slurm: {error}", file=sys.stderr)
            return 0
        partition = ["scontrol", "update", "partitionname=debug"]
        env = {**os.environ, **cluster.env()}
        try:
            subprocess.run([*partition, "state=down"], env=env, check=True)
            folder = Path(name) / "work"
            folder.mkdir()
            found = _measure(cluster, folder)
        finally:
            subprocess.run([*partition, "state=up"], env=env, check=True)
            if not was_up:
                cluster.down(purge=not given)
    table = Table(box=None, header_style="bold")
    for column in (f"{CELLS} cells by", "seconds", "sbatch calls", "time of this tool's"):
        table.add_column(column, justify="left" if column.endswith("by") else "right")
    ours_s, ours_calls = found[0][1:]
    for way, seconds, calls in found:
        table.add_row(way, f"{seconds:.1f}", str(calls), f"{seconds / ours_s:.2f} x")
    Console(width=100).print(table)
    print(f"limits: at most {AIM_S:g} s and {GROUPS} sbatch (one resource group)")
    return 0 if ours_s <= AIM_S and ours_calls <= GROUPS else 1


if __name__ == "__main__":
    sys.exit(main())
