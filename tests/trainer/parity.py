"""Compares a layout with one process: tolerances, and the run that gathers losses, norms and weights."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path

from sweep.core.cells.cell import Cell
from sweep.core.encoding.plain import plain
from tests.trainer.processes import ROOT, script
from tests.trainer.programs.layouts import weights_hash
from trainer.device import devices
from trainer.failure.error_report import RankProgress
from trainer.process.ranks import Ranks
from trainer.training import session
from trainer.training.loop import Measurements

DRIVER = ROOT / "tests" / "trainer" / "programs" / "layouts.py"
# All relative, over five steps. fp32 differs by the order of sums only (seen with data parallelism 1e-6, with tp 6e-6
# in the fifth step's norm).
FP32_TOLERANCE = 5e-6
FP32_TP_TOLERANCE = 2e-5
# bf16 rounds each activation to 8 bits (seen against fp32: losses 2e-4, norms 1e-2).
BF16_LOSS_TOLERANCE = 1e-3
BF16_NORM_TOLERANCE = 3e-2


@dataclass(frozen=True)
class Shown:
    start: str
    losses: list[float]
    grad_norms: list[float]
    calls: dict[str, int]
    formats: list[str]
    n_params: int
    context: dict[str, str] | None
    time_s: float


def run_layouts(folder: Path, n_ranks: int, cells: dict[str, Cell], timeout_s: float = 800) -> dict[str, Shown]:
    """Train all cells in one launch."""
    given, found = folder / f"cells-{n_ranks}.json", folder / f"shown-{n_ranks}.json"
    given.write_text(json.dumps({name: plain(made) for name, made in cells.items()}))
    done = script(str(DRIVER), str(n_ranks), str(given), str(found), timeout_s=timeout_s)
    assert done.returncode == 0, done.stderr[-4000:]
    return {name: Shown(**shown) for name, shown in json.loads(found.read_text()).items()}


@functools.cache
def alone(made: Cell) -> Measurements:
    """The same training on one process."""
    compute = devices.CpuCompute()
    model = session.build(made, compute, Ranks())
    return session.fit(made, Ranks(), compute, model, session.DeviceMonitor(compute, RankProgress()), None)


@functools.cache
def start_alone(made: Cell) -> str:
    """The hash of the weights that one process starts from."""
    return weights_hash(session.build(made, devices.CpuCompute(), Ranks()))
