"""A trainer without torch: reads cell.json, pretends to train, writes the records that the real one writes.

STUB_MODE (set through the cluster's launch.environment) chooses what it does; only node 0 writes. STUB_PLAN, a JSON
object, sets modes by sequence length: ``{"64": "hang", "96": "hang@1"}``, where ``@1`` means the first attempt only.
STUB_TALLY names a file that gets one line for every measurement, so a repeat that ran twice is in it twice. STUB_GATE
names a file that the stub waits for before it does anything; with STUB_GATED only cells of that sequence length wait.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

from sweep.core.attempts.attempt import ErrorClass, RankError
from sweep.core.records.attempt_record import CellFile, render_error
from sweep.core.records.layout import PROGRESS_FILE, RESULT_FILE, STEPS_FILE, rank_error
from sweep.core.records.progress import Progress, Step
from sweep.core.records.result import Result
from sweep.files import write_atomically

STEPS_OF = {"slow": 600, "ten_steps": 10}
"""Modes that make this many steps of a second each, and report them."""
LATE_FILE = ".late-result"
"""File to which mode ``late`` writes its result, until a test renames it."""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cell", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    asked = CellFile.parse(arguments.cell.read_text())
    mode = _mode(asked)
    print(f"stub trainer: {asked.key} in mode {mode} on node {os.environ.get('NODE_RANK')}", flush=True)
    time.sleep(float(os.environ.get("STUB_SECONDS", "0")))
    _wait_at_gate(str(asked.cell.seq_len))
    if os.environ.get("NODE_RANK", "0") != "0":
        return 0
    if mode == "error":
        error = RankError(
            rank=0,
            node_rank=0,
            time=time.time(),
            error_class=ErrorClass.EXCEPTION,
            message="ValueError: as asked",
            step=3,
        )
        (arguments.out / rank_error(0)).write_text(render_error(error))
        return 1
    if mode == "no_result":
        return 0
    if mode == "hang" or (mode == "hang_at_first" and os.environ.get("SLURM_RESTART_COUNT", "0") == "0"):
        time.sleep(600)
    _make_steps(arguments.out, STEPS_OF.get(mode, 0))
    if mode == "eat_memory":
        eaten = bytearray(os.urandom(4096) * (512 * 256))  # 512 MiB, every page of it touched
        time.sleep(600)
        return len(eaten)
    text = _result(asked).render()
    if mode == "truncated":
        text = text[: len(text) // 2]
    step_time_s = 0.1 / asked.cell.gpus
    steps = [
        Step(
            step=step,
            step_time_s=step_time_s,
            tokens=asked.cell.tokens_per_step,
            loss=5.0,
            grad_norm=1.0,
            is_warmup=step < asked.cell.trainer.warmup_steps,
        )
        for step in range(asked.cell.trainer.steps)
    ]
    (arguments.out / STEPS_FILE).write_text("".join(step.render() for step in steps))
    write_atomically(arguments.out / (LATE_FILE if mode == "late" else RESULT_FILE), text)
    if mode != "truncated":
        _count(asked)
    if mode == "hang_after_result":
        time.sleep(600)
    return 0


def _wait_at_gate(length: str) -> None:
    gate, gated = os.environ.get("STUB_GATE"), os.environ.get("STUB_GATED", length)
    while gate and gated == length and not Path(gate).exists():
        time.sleep(0.05)


def _mode(asked: CellFile) -> str:
    plan: dict[str, str] = json.loads(os.environ.get("STUB_PLAN", "{}"))
    usual = os.environ.get("STUB_MODE", "ok")
    mode, _, only_attempt = plan.get(str(asked.cell.seq_len), usual).partition("@")
    return mode if only_attempt in ("", str(asked.key.attempt)) else usual


def _make_steps(out: Path, steps: int) -> None:
    for step in range(steps):
        draft = out / f".{PROGRESS_FILE}"
        draft.write_text(Progress(step=step, steps=steps, time=time.time(), tokens_per_s=1.0).render())
        draft.rename(out / PROGRESS_FILE)
        time.sleep(1)


def _count(asked: CellFile) -> None:
    if tally := os.environ.get("STUB_TALLY"):
        with Path(tally).open("a") as file:
            file.write(f"{asked.key.cell_id}/{asked.key.repeat}\n")


def _result(asked: CellFile) -> Result:
    cell = asked.cell
    window_steps = cell.trainer.steps - cell.trainer.warmup_steps
    return Result(
        key=asked.key,
        restart=int(os.environ.get("SLURM_RESTART_COUNT", "0")),
        started_at=time.time(),
        ended_at=time.time(),
        world_size=cell.gpus,
        hosts=tuple(f"host{node}" for node in range(cell.nodes)),
        device_type="cpu",
        device_name="stub",
        n_params=cell.model.n_params,
        steps=cell.trainer.steps,
        warmup_steps=cell.trainer.warmup_steps,
        window_steps=window_steps,
        window_tokens=window_steps * cell.tokens_per_step,
        window_time_s=window_steps * 0.1 / cell.gpus,
        window_energy_j=None,
        power_source="",
        peak_memory_bytes=None,
        peak_reserved_bytes=None,
        throttled=None,
        throttle_reasons=(),
        oversubscribed=False,
        final_loss=5.0,
        fingerprint="0123456789ab",
        fingerprint_fields={"torch": None},
    )


if __name__ == "__main__":
    sys.exit(main())
