"""Lines that rank 0 prints for people: the cell and device, the progress, the result."""

from __future__ import annotations

import statistics
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sweep.core.cells.cell import Cell
    from sweep.core.records.result import Result
    from sweep.core.records.step import Step


def log(text: str) -> None:
    """Print one line on standard error, unbuffered."""
    print(f"trainer: {text}", file=sys.stderr, flush=True)


def first_line(cell: Cell, *, n_params: int, world_size: int, device_name: str, host: str) -> str:
    """Describe the cell, its ranks and their device."""
    ranks = "1 rank" if world_size == 1 else f"{world_size} ranks"
    return (
        f"{cell.model.name}, {n_params:,} parameters, {cell.precision}, on {ranks} ({cell.parallelism.equation()}) of "
        f"{device_name}, rank 0 on {host}; {cell.global_batch} sequences of {cell.seq_len} tokens a step, on a "
        f"data-parallel rank {cell.grad_accum} x {cell.micro_batch}; {cell.trainer.steps} steps, the first "
        f"{cell.trainer.warmup_steps} not measured"
    )


def progress(step: int, steps: int, tokens_per_s: float) -> str:
    """Number of steps done, and tokens per second since the last line."""
    return f"step {step} of {steps}, {tokens_per_s:,.0f} tokens/s"


def last_line(result: Result, steps: Sequence[Step]) -> str:
    """Summarise the measured window."""
    measured = [step.step_time_s for step in steps if not step.is_warmup]
    loss = "not finite" if result.final_loss is None else f"{result.final_loss:.4f}"
    memory = "" if result.peak_memory_bytes is None else f"; at most {result.peak_memory_bytes / 2**30:.2f} GiB a rank"
    return (
        f"measured {result.window_steps} steps: median {statistics.median(measured):.4g} s, "
        f"{result.window_tokens / result.window_time_s:,.0f} tokens/s; loss of the last {loss}{memory}"
    )
