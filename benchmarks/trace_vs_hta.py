"""``analysis trace`` beside Holistic Trace Analysis 0.5.0: the same numbers, how much faster, in how much less memory.

HTA gets an environment of its own, made in the temporary folder at the first run. Both read and compute the overlap of
communication and computation, twice in one process of their own, of which the second counts; imports do not. Memory is
the peak above that of the process after its imports.

    python benchmarks/trace_vs_hta.py                made traces of 100,000 and of 2,000,000 events
    python benchmarks/trace_vs_hta.py FILE...        these traces
    python benchmarks/trace_vs_hta.py --record       write tests/golden/hta_0_5_0.json anew
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import trace_reduction  # noqa: E402  # it lies beside this script

from tests.analysis.trace.synthetic import random_trace  # noqa: E402

HTA = ("HolisticTraceAnalysis==0.5.0", "pandas==2.2.3", "numpy==1.26.4")
GOLDEN = ROOT / "tests" / "golden" / "hta_0_5_0.json"
SEEDS = range(8)
LEAST_SPEED, MOST_MEMORY = 10.0, 0.2
_MEASURE = """
import contextlib, json, os, resource, sys, time
path, before = sys.argv[1], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for _ in range(2):
    start, cpu = time.perf_counter(), time.process_time()
    with contextlib.redirect_stdout(sys.stderr):
        found = measure(path)
    wall_s, cpu_s = time.perf_counter() - start, time.process_time() - cpu
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
print(json.dumps({"wall_s": wall_s, "cpu_s": cpu_s, "peak_mib": max(peak, children - before) / 1024, **found}))
"""
_BY_HTA = """
import logging, warnings
warnings.filterwarnings("ignore")
from hta.trace_analysis import TraceAnalysis
logging.disable(logging.CRITICAL)
def measure(path):
    analysis = TraceAnalysis(trace_files={0: path}, trace_dir="/", include_last_profiler_step=True)
    times = analysis.get_temporal_breakdown(visualize=False).iloc[0]
    overlap = analysis.get_comm_comp_overlap(visualize=False).iloc[0]
    return {
        "overlap_pct": float(overlap["comp_comm_overlap_pctg"]),
        "span_us": float(times["kernel_time(us)"]),
        "idle_us": float(times["idle_time(us)"]),
        "compute_us": float(times["compute_time(us)"]),
    }
"""
_BY_US = """
from pathlib import Path
from analysis.trace.reduce import reduce_trace
def measure(path):
    totals = reduce_trace(Path(path)).totals
    return {
        "overlap_pct": 100 * totals.overlap_ns / max(totals.comm_merged_ns, 1),
        "span_us": totals.span_ns / 1000,
        "idle_us": (totals.span_ns - totals.busy_ns) / 1000,
        "compute_us": totals.compute_merged_ns / 1000,
    }
"""


def environment() -> Path:
    """The interpreter of an environment with HTA, which is made if there is none."""
    folder = Path(tempfile.gettempdir()) / "scaling-sweep-hta-0.5.0"
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        print("making an environment for Holistic Trace Analysis", file=sys.stderr)
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *HTA], check=True)
        (folder / "complete").touch()
    return python


def measured(python: Path | str, program: str, path: Path) -> dict[str, Any]:
    """A program's numbers of a trace, and the time and memory that it took."""
    done = subprocess.run(
        [python, "-c", program + _MEASURE, str(path.resolve())], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{path.name}: {done.stderr.strip().splitlines()[-1]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(path: Path) -> bool:
    """Print both on a trace; whether the aims are met."""
    hta, ours = measured(environment(), _BY_HTA, path), measured(sys.executable, _BY_US, path)
    faster, memory = hta["cpu_s"] / ours["cpu_s"], ours["peak_mib"] / hta["peak_mib"]
    print(
        f"{path.name}: {ours['cpu_s']:.2f} s CPU beside {hta['cpu_s']:.2f} s: {faster:.1f} times as fast (on the clock "
        f"{hta['wall_s'] / ours['wall_s']:.1f} times); {ours['peak_mib']:.0f} MiB beside {hta['peak_mib']:.0f} MiB: "
        f"{memory:.3f}"
    )
    for name in ("overlap_pct", "span_us", "idle_us", "compute_us"):
        print(f"  {name:12} {ours[name]:16.3f} beside {hta[name]:16.3f}")
    return bool(faster >= LEAST_SPEED and memory <= MOST_MEMORY)


def record() -> None:
    """Write what HTA says of random traces, for the tests."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for seed in SEEDS:
            stated = measured(environment(), _BY_HTA, random_trace(seed).write(Path(folder), f"rank0-{seed}.json.gz"))
            found[str(seed)] = {name: stated[name] for name in ("overlap_pct", "span_us", "idle_us", "compute_us")}
    GOLDEN.write_text(json.dumps(found, indent=1) + "\n")


def main(argv: list[str]) -> int:
    """Compare, or record; 1 where an aim is missed."""
    if argv == ["--record"]:
        record()
        return 0
    if argv:
        return 0 if all([compare(Path(name)) for name in argv]) else 1
    with tempfile.TemporaryDirectory() as folder:
        met = []
        for n_events in trace_reduction.SIZES:
            path = Path(folder) / f"rank0-{n_events}.json.gz"
            trace_reduction.make(path, n_events)
            met.append(compare(path))
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
