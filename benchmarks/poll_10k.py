"""How long one look at 10,000 jobs takes, and what a watcher costs while nothing happens.

The look: squeue's and sacct's answers, in the form recorded from the real ones (``tests/golden/slurm``), are read, and
taken in by the reconciler over a run directory of 10,000 attempts: 8,000 run, 1,000 wait, 1,000 are known to accounting
only. The commands themselves are stand-ins that print a file. The yardstick is the least that could be done: the
same text split into fields.

The idle watcher: ``python -m sweep`` over 10,000 cells, of which 500 are jobs that wait on a real private Slurm and the
others wait for a place in the queue, with the poll interval that ``cluster=slurm`` has, for 60 s (two looks); its
processor time, that of squeue and sacct under it included. SWEEP_TEST_SLURM_DIR names a Slurm that is up already;
without it one is brought up and taken down (as root).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from sweep.adapters.clock import SystemClock
from sweep.adapters.files.ledger_file import LedgerFile
from sweep.adapters.files.run_directory import RunDir
from sweep.adapters.slurm.commands import SlurmCommands
from sweep.adapters.slurm.scheduler import SlurmScheduler
from sweep.core.attempts.attempt import AttemptKey, Phase
from sweep.core.attempts.ledger import Reserved, Submitted
from sweep.core.records.layout import attempt_dir
from sweep.core.settings.policy import Policy
from sweep.core.settings.spec import SlurmSpec
from sweep.core.settlement.case import SettlementPolicy
from sweep.ports import ClusterView
from sweep.usecases.executor import Executor
from sweep.usecases.session import RunPorts
from tests.fakes import ListReporter, MemoryBlameBook
from tools.private_slurm import CannotRunHereError, Cluster

JOBS, ARRAY = 10_000, 1000
LIMIT_S = 1.0
IDLE_CELLS_A_SIDE, IDLE_JOBS, IDLE_S = 100, 500, 60.0
LIMIT_SHARE = 0.02
POLL_INTERVAL_S = 30.0


def _executor(folder: Path) -> Executor:
    """10 arrays of 1,000 tasks in flight, their folders made."""
    run_dir = RunDir(folder / "run")
    run_dir.create()
    slurm = SlurmScheduler(SlurmSpec(), Path(folder), commands=SlurmCommands({"PATH": f"{folder}/bin:/usr/bin:/bin"}))
    ports = RunPorts(
        scheduler=slurm,
        view=ClusterView(reports=slurm, accounting=slurm, facts=slurm, diagnosis=slurm),
        ledger=LedgerFile(folder / "ledger.jsonl"),
        run_dir=run_dir,
        clock=SystemClock(),
        reporter=ListReporter(),
        blame=MemoryBlameBook(),
        check_lease=lambda: None,
    )
    policy = SettlementPolicy(
        policy=Policy(), repeats=1, result_grace_s=120.0, lost_after_s=300.0, hang_grace_s=60.0, arrival_grace_s=60.0
    )
    executor = Executor(ports, policy, "bench")
    now = time.time()
    for base in range(JOBS // ARRAY):
        keys = [AttemptKey(cell_id=f"{base * ARRAY + task:016x}", repeat=1, attempt=1) for task in range(ARRAY)]
        for key in keys:
            (Path(run_dir.path) / attempt_dir(key)).mkdir(parents=True)
        name = f"bench-{base}"
        executor.history.apply(Reserved(time=now, submission=name, tasks=tuple(keys), gpu_hours=1.0, gpus=8))
        jobs = tuple(f"{100 + base}_{task}" for task in range(ARRAY))
        executor.history.apply(Submitted(time=now, submission=name, jobs=jobs))
    return executor


def _stand_ins(folder: Path) -> str:
    """Commands that print rows as the real ones do; gives all rows."""
    now, squeue, sacct = int(time.time()), [], []
    for number in range(JOBS):
        job, node = f"{100 + number // ARRAY}_{number % ARRAY}", f"node[{number % 97 + 1}-{number % 97 + 4}]"
        name = f"bench-{number // ARRAY}"
        if number < 8000:
            squeue.append(f"{job}|{name}|RUNNING|{node}|{now - 900}|{now + 900}|None")
        elif number < 9000:
            squeue.append(f"{job}|{name}|PENDING||N/A|N/A|Priority")
        else:
            sacct.append(f"{job}|{name}|RUNNING|{node}|{now - 900}|Unknown|0:0|None")
    (folder / "bin").mkdir()
    for name, lines in (("squeue", squeue), ("sacct", sacct), ("sbatch", []), ("scancel", [])):
        (folder / name).write_text("\n".join(lines) + "\n")
        (folder / "bin" / name).write_text(f"#!/bin/sh\nexec cat {folder / name}\n")
        (folder / "bin" / name).chmod(0o755)
    return "\n".join([*squeue, *sacct])


def _look(folder: Path) -> tuple[float, float, float]:
    """Seconds of a process's first look, of a later one (the best of three) and of the yardstick."""
    text, executor = _stand_ins(folder), _executor(folder)
    took, yardstick = [], []
    for _ in range(4):
        began = time.perf_counter()
        executor.settle()
        took.append(time.perf_counter() - began)
        assert len(executor.reports) == JOBS
        # Those that accounting alone says are alive are absent.
        phases = Counter(report.phase for report in executor.reports.values())
        assert phases == {Phase.RUNNING: 8000, Phase.PENDING: 1000, Phase.ABSENT: 1000}, phases
        began = time.perf_counter()
        assert sum(len(line.split("|")) for line in text.splitlines()) > JOBS
        yardstick.append(time.perf_counter() - began)
    return took[0], min(took[1:]), min(yardstick)


def _idle_share(cluster: Cluster, folder: Path) -> float:
    """Processor time over clock time of a watcher and its children, once everything is queued."""
    site = {
        **{"description": "a private Slurm", "name": "bench", "scheduler": "slurm", "scale": "laptop", "device": "cpu"},
        **{"gpus_per_node": 1, "poll_interval_s": POLL_INTERVAL_S, "slurm": {"gpu_flag": "gres", "cpus_per_task": 1}},
    }
    (folder / "conf" / "cluster").mkdir(parents=True)
    (folder / "conf" / "cluster" / "bench.yaml").write_text(json.dumps(site))  # JSON is YAML
    side = range(1, IDLE_CELLS_A_SIDE + 1)
    lengths, batches = (",".join(str(unit * number) for number in side) for unit in (32, 1))
    cells = ["nodes=1", f"seq_len=[{lengths}]", f"sequences_per_gpu=[{batches}]"]
    words = ["+grid=weak_scaling", "cluster=bench", *cells, "policy.canary=false"]
    words.append(f"policy.max_concurrent_jobs={IDLE_JOBS}")
    command = [sys.executable, "-m", "sweep", "--config-dir", str(folder / "conf"), *words]
    env = {**os.environ, **cluster.env()}
    queue = ["squeue", "--array", "-h", "-o", "%i"]
    started = subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        watcher = psutil.Process(started.pid)
        while len(subprocess.run(queue, env=env, capture_output=True, check=True).stdout.split()) < IDLE_JOBS:
            assert started.poll() is None, "the watcher ended"
            time.sleep(0.5)
        time.sleep(2)
        before = watcher.cpu_times()
        time.sleep(IDLE_S)
        after = watcher.cpu_times()
    finally:
        started.terminate()
        started.wait()
        subprocess.run(["scancel", "--state=PENDING", f"--user={os.getuid()}"], env=env, check=True)
    return sum(now - then for now, then in zip(after[:4], before[:4], strict=True)) / IDLE_S


def _idle(folder: Path) -> float | None:
    given = os.environ.get("SWEEP_TEST_SLURM_DIR")
    cluster = Cluster(Path(given) if given else folder / "slurm")
    was_up = cluster.status().up
    try:
        cluster.up()
    except CannotRunHereError as error:
        print(f"no Slurm: {error}", file=sys.stderr)
        return None
    partition, env = ["scontrol", "update", "partitionname=debug"], {**os.environ, **cluster.env()}
    try:
        subprocess.run([*partition, "state=down"], env=env, check=True)
        return _idle_share(cluster, folder)
    finally:
        subprocess.run([*partition, "state=up"], env=env, check=True)
        if not was_up:
            cluster.down(purge=not given)


def main() -> int:
    """Print both measurements beside their limits; 1 where one is not kept."""
    with tempfile.TemporaryDirectory() as name:
        first_s, look_s, yardstick_s = _look(Path(name))
        ratio = look_s / yardstick_s
        print(f"one look at {JOBS:,} jobs, read and applied: {look_s:.2f} s (limit {LIMIT_S:g} s)")
        print(f"  the first one of a process, which reads every attempt's folder: {first_s:.2f} s")
        print(f"  the same text only split into fields: {yardstick_s:.3f} s, {ratio:.0f} times less")
        idle = Path(name) / "idle"
        idle.mkdir()
        share = _idle(idle)
    if share is not None:
        print(
            f"a watcher over {IDLE_CELLS_A_SIDE**2:,} cells and {IDLE_JOBS} waiting jobs, a look each "
            f"{POLL_INTERVAL_S:g} s: {share:.2%} of a core over {IDLE_S:g} s (limit {LIMIT_SHARE:.0%})"
        )
    return 0 if look_s <= LIMIT_S and (share is None or share <= LIMIT_SHARE) else 1


if __name__ == "__main__":
    sys.exit(main())
