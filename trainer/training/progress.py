"""Says how far the run is: rank 0's lines for people, and ``progress.json``, from a thread so that no step waits."""

from __future__ import annotations

import contextlib
import statistics
import sys
import threading
import time
from typing import TYPE_CHECKING, Self

from sweep.core.records.layout import PROGRESS_FILE
from sweep.core.records.progress import Progress
from sweep.files import write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from sweep.core.cells.cell import Cell
    from sweep.core.records.progress import Step
    from sweep.core.records.result import Result


def log(text: str) -> None:
    """Print one line on standard error, unbuffered."""
    print(f"trainer: {text}", file=sys.stderr, flush=True)


class ProgressWriter:
    """Writes the number of steps done, about once a second, while the context is entered.

    Args:
        folder: The attempt's folder.
        steps: Number of steps of the run.
        tokens_per_step: Tokens of one step over all ranks.
        n_done: Returns, without waiting, the number of steps that have ended.
        period_s: Seconds between two writes of the file.
        log: Prints a line.
        log_every_s: Seconds between two lines.
    """

    def __init__(
        self,
        folder: Path,
        *,
        steps: int,
        tokens_per_step: int,
        n_done: Callable[[], int],
        period_s: float = 1.0,
        log: Callable[[str], None] = log,
        log_every_s: float = 10.0,
    ) -> None:
        self._path = folder / PROGRESS_FILE
        self._steps = steps
        self._tokens_per_step = tokens_per_step
        self._n_done = n_done
        self._period_s = period_s
        self._log = log
        self._log_every_s = log_every_s
        self._logged = (time.time(), 0)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._repeat, name="progress", daemon=True)
        self._last = (time.time(), 0)

    def __enter__(self) -> Self:
        self._write()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._write()

    def _repeat(self) -> None:
        while not self._over.wait(self._period_s):
            self._write()

    def _write(self) -> None:
        now, done = time.time(), self._n_done()
        before, done_before = self._last
        rate = (done - done_before) * self._tokens_per_step / (now - before) if done > done_before else None
        self._last = (now, done)
        self._log_progress(now, done)
        note = Progress(step=done, steps=self._steps, time=now, tokens_per_s=rate)
        # A failed write of this file must not end the measurement.
        with contextlib.suppress(OSError):
            write_atomically(self._path, note.render(), durable=False)

    def _log_progress(self, now: float, done: int) -> None:
        before, done_before = self._logged
        if done == done_before or now - before < self._log_every_s:
            return
        rate = (done - done_before) * self._tokens_per_step / (now - before)
        self._log(f"step {done} of {self._steps}, {rate:,.0f} tokens/s")
        self._logged = (now, done)


def first_line(cell: Cell, *, n_params: int, world_size: int, device_name: str, host: str) -> str:
    """Describe the cell, its ranks and their device."""
    ranks = "1 rank" if world_size == 1 else f"{world_size} ranks"
    return (
        f"{cell.model.name}, {n_params:,} parameters, {cell.precision}, on {ranks} ({cell.parallelism.equation()}) of "
        f"{device_name}, rank 0 on {host}; {cell.global_batch} sequences of {cell.seq_len} tokens a step, on a "
        f"data-parallel rank {cell.grad_accum} x {cell.micro_batch}; {cell.trainer.steps} steps, the first "
        f"{cell.trainer.warmup_steps} not measured"
    )


def last_line(result: Result, steps: Sequence[Step]) -> str:
    """Summarise the measured window."""
    measured = [step.step_time_s for step in steps if not step.is_warmup]
    loss = "not finite" if result.final_loss is None else f"{result.final_loss:.4f}"
    memory = "" if result.peak_memory_bytes is None else f"; at most {result.peak_memory_bytes / 2**30:.2f} GiB a rank"
    return (
        f"measured {result.window_steps} steps: median {statistics.median(measured):.4g} s, "
        f"{result.window_tokens / result.window_time_s:,.0f} tokens/s; loss of the last {loss}{memory}"
    )
