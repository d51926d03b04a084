"""Writes the records of a training process: its progress, then the steps of all ranks, and the result last."""

from __future__ import annotations

import contextlib
import statistics
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from sweep.core.cells.cell import Cell
from sweep.core.records.attempt_record import CellFile
from sweep.core.records.layout import PROGRESS_FILE, RESULT_FILE, STEPS_FILE
from sweep.core.records.progress import Progress, Step
from sweep.core.records.result import Result
from sweep.files import write_atomically
from trainer.device.cpu_affinity import Binding
from trainer.device.devices import is_oversubscribed
from trainer.device.telemetry import ENERGY_SOURCE, WindowTelemetry
from trainer.device.versions import fingerprint
from trainer.training.loop import Measurements


@dataclass(frozen=True, kw_only=True, slots=True)
class RankFacts:
    """One rank's share of the records; rank 0 gathers it once, after the last step."""

    host: str
    node_rank: int
    """Rank of its torchrun agent."""
    places: tuple[str, ...]
    """Devices that it may use (:meth:`trainer.device.devices.Compute.places`)."""
    device_name: str
    """Name of its device, from the driver."""
    measurements: Measurements
    telemetry: WindowTelemetry
    """Readings of its device in the window."""
    peak_memory_bytes: int | None
    """Largest memory allocated; None if unknown."""
    peak_reserved_bytes: int | None
    """Largest memory reserved by the allocator; None on a CPU."""
    binding: Binding | None = None
    """Cores of its threads."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFacts:
    """Facts about the whole run that rank 0 adds to the ranks' facts."""

    file: CellFile
    restart: int
    started_at: float
    ended_at: float
    n_params: int
    versions: Mapping[str, str | None]
    fingerprint_fields: Mapping[str, str | None]
    environment: Mapping[str, str]
    extra: Mapping[str, object]


def merge_steps(file: CellFile, facts: Sequence[RankFacts]) -> list[Step]:
    """Merge each step: the time of the slowest rank, and the mean of the losses over the ranks that have one."""
    cell = file.cell
    times = zip(*(fact.measurements.step_times_s for fact in facts), strict=True)
    losses = zip(*(fact.measurements.losses for fact in facts if fact.measurements.losses is not None), strict=True)
    norms = facts[0].measurements.grad_norms
    return [
        Step(
            step=index,
            step_time_s=max(step_times),
            tokens=cell.tokens_per_step,
            loss=sum(step_losses) / len(step_losses),
            grad_norm=norm,
            is_warmup=index < cell.trainer.warmup_steps,
        )
        for index, (step_times, step_losses, norm) in enumerate(zip(times, losses, norms, strict=True))
    ]


def build_result(run: RunFacts, facts: Sequence[RankFacts], steps: Sequence[Step]) -> Result:
    """Build the result of the whole run."""
    cell = run.file.cell
    window_steps = cell.trainer.steps - cell.trainer.warmup_steps
    energies = [fact.telemetry.energy_j for fact in facts]
    energy_j = None if None in energies else sum(energy for energy in energies if energy is not None)
    reasons = {reason for fact in facts for reason in fact.telemetry.throttle_reasons or ()}
    final_loss = steps[-1].loss
    return Result(
        key=run.file.key,
        restart=run.restart,
        started_at=run.started_at,
        ended_at=run.ended_at,
        world_size=len(facts),
        hosts=_hosts(facts),
        device_type=run.file.device.type,
        device_name=device_name(facts),
        n_params=run.n_params,
        steps=cell.trainer.steps,
        warmup_steps=cell.trainer.warmup_steps,
        window_steps=window_steps,
        window_tokens=window_steps * cell.tokens_per_step,
        window_time_s=max(fact.measurements.window_time_s for fact in facts),
        window_energy_j=energy_j,
        power_source="" if energy_j is None else ENERGY_SOURCE,
        peak_memory_bytes=_largest([fact.peak_memory_bytes for fact in facts]),
        peak_reserved_bytes=_largest([fact.peak_reserved_bytes for fact in facts]),
        throttled=_any_known([fact.telemetry.throttled for fact in facts]),
        throttle_reasons=tuple(sorted(reasons)),
        oversubscribed=is_oversubscribed([fact.places for fact in facts], [fact.host for fact in facts]),
        final_loss=final_loss if final_loss is not None and _is_finite(final_loss) else None,
        fingerprint=fingerprint(run.fingerprint_fields),
        fingerprint_fields=run.fingerprint_fields,
        versions=run.versions,
        environment=run.environment,
        extra=run.extra,
    )


def write_records(folder: Path, steps: Sequence[Step], result: Result) -> None:
    """Write both files, the result last: where it exists, all records do."""
    write_atomically(folder / STEPS_FILE, "".join(step.render() for step in steps))
    write_atomically(folder / RESULT_FILE, result.render())


def _hosts(facts: Sequence[RankFacts]) -> tuple[str, ...]:
    by_node = {fact.node_rank: fact.host for fact in facts}
    return tuple(by_node[node] for node in sorted(by_node))


def device_name(facts: Sequence[RankFacts]) -> str:
    """Name of the devices; if they differ (the profile may allow it), all names."""
    return " + ".join(sorted({fact.device_name for fact in facts}))


def readings(facts: Sequence[RankFacts]) -> dict[str, dict[str, object]]:
    """NVML's readings of each rank's device, by rank; empty on CPUs."""
    found = {str(rank): fact.telemetry.readings() for rank, fact in enumerate(facts)}
    return {rank: values for rank, values in found.items() if values}


def bindings(facts: Sequence[RankFacts]) -> dict[str, dict[str, object]]:
    """Core binding of each rank, by rank."""
    return {str(rank): asdict(fact.binding) for rank, fact in enumerate(facts) if fact.binding is not None}


def node_order(facts: Sequence[RankFacts]) -> list[int]:
    """Nodes in rank order; torchrun sorts them by their addresses as text (``n10`` before ``n2``)."""
    return list(dict.fromkeys(fact.node_rank for fact in facts))


def _largest(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return max(known) if len(known) == len(values) else None


def _any_known(values: Sequence[bool | None]) -> bool | None:
    """True if one value is True; False only if all are False; otherwise None."""
    if any(values):
        return True
    return None if None in values else False


def _is_finite(value: float) -> bool:
    return value - value == 0.0


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
