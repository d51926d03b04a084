"""Reduces the measurements of one cell to the figures of its row, over all its repeats."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from analysis.attempt_files import Measurement
from analysis.bootstrap import Draws, FloatArray, Interval, draw, interval
from sweep.core.cells.cell import Cell
from sweep.core.cells.device import Device

PROFILE_FIELDS = ("compute_s", "comm_s", "comm_merged_s", "exposed_comm_s", "idle_s", "profiled_step_time_s")
"""Columns that a row takes from ``Result.extra["profile"]``, under the same names, where a profile was made."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Reduced:
    """The figures of one cell over its measured repeats.

    Attributes:
        step_time_s: Median over the window steps of all repeats; None where no step could be read.
        step_time_ci: Its interval; None for too few steps.
        tokens_per_s: Tokens of all windows over their time, so stragglers count.
        tokens_per_j: Tokens over GPU joules of the windows whose energy is known.
        power_w_per_gpu: Joules over time and GPUs of the same windows.
        peak_memory_gib: Largest of any rank and repeat.
        peak_tflops: The device's peak where it is known and every run reports a device of that kind.
        throttled: True if a device slowed down in any repeat; None if no repeat could tell.
        oversubscribed: True if any repeat had more ranks than devices or cores.
        sources: Kinds of source, sorted.
        fingerprints: Fields by fingerprint, in the order of the repeats.
        device_names: As reported, in the order of the repeats.
        is_mismatched: True if a run reports a device that is not of the cell's kind.
        profile: Median over the repeats that have a profile, by column.
        newest: Unix time of the newest result.
        draws: Bootstrap draws; None for too few steps.
    """

    cell: Cell
    repeats: int
    step_time_s: float | None
    step_time_ci: Interval | None
    tokens_per_s: float
    tokens_per_j: float | None
    power_w_per_gpu: float | None
    peak_memory_gib: float | None
    peak_tflops: float | None
    throttled: bool | None
    oversubscribed: bool
    sources: tuple[str, ...]
    fingerprints: Mapping[str, Mapping[str, str | None]]
    device_names: tuple[str, ...]
    is_mismatched: bool
    profile: Mapping[str, float | None]
    newest: float
    folders: tuple[str, ...]
    draws: Draws | None

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Throughput of one GPU."""
        return self.tokens_per_s / self.cell.gpus

    def rates(self, draws: Draws) -> FloatArray:
        """Draws of :attr:`tokens_per_s`: the windows' figure, varied as the mean step varies from draw to draw."""
        return self.tokens_per_s / draws.relative_means

    @property
    def rate_ci(self) -> Interval | None:
        """Interval of :attr:`tokens_per_s`; None for too few steps."""
        return None if self.draws is None else interval(self.rates(self.draws), self.draws.n_blocks)


def reduce_cell(cell: Cell, measurements: Sequence[Measurement], *, cell_id: str, device: Device | None) -> Reduced:
    """The figures of a cell with at least one measurement; the bootstrap is seeded by the cell's id."""
    results = [item.result for item in measurements]
    times = [item.step_times_s for item in measurements]
    steps = np.concatenate(times)
    draws = draw(times, seed=int(cell_id, 16))
    # A counter that read 0 was not supported, however it says so.
    metered = [result for result in results if result.window_energy_j]
    energy_j = sum(result.window_energy_j or 0.0 for result in metered)
    metered_time_s = sum(result.window_time_s for result in metered)
    memory = [result.peak_memory_bytes for result in results if result.peak_memory_bytes]
    flags = [result.throttled for result in results if result.throttled is not None]
    names = tuple(dict.fromkeys(result.device_name for result in results))
    is_matched = device is not None and all(
        result.device_type == device.type and device.is_matched_by(result.device_name) for result in results
    )
    peaks = set() if device is None else {device.peak_for(cell.precision, name) for name in names}
    return Reduced(
        cell=cell,
        repeats=len(results),
        step_time_s=float(np.median(steps)) if len(steps) else None,
        step_time_ci=None if draws is None else interval(draws.medians, draws.n_blocks),
        tokens_per_s=sum(r.window_tokens for r in results) / sum(r.window_time_s for r in results),
        tokens_per_j=sum(r.window_tokens for r in metered) / energy_j if metered else None,
        power_w_per_gpu=energy_j / metered_time_s / cell.gpus if metered else None,
        peak_memory_gib=max(memory) / 2**30 if memory else None,
        peak_tflops=peaks.pop() if is_matched and len(peaks) == 1 else None,
        throttled=any(flags) if flags else None,
        oversubscribed=any(result.oversubscribed for result in results),
        sources=tuple(sorted({result.source for result in results})),
        fingerprints={result.fingerprint: result.fingerprint_fields for result in results},
        device_names=names,
        is_mismatched=not is_matched,
        profile=_profile([result.extra.get("profile") for result in results]),
        newest=max(result.ended_at for result in results),
        folders=tuple(item.folder for item in measurements),
        draws=draws,
    )


def _profile(profiles: Sequence[object]) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for name in PROFILE_FIELDS:
        values = [profile.get(name) for profile in profiles if isinstance(profile, dict)]
        numbers = [float(value) for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
        found[name] = statistics.median(numbers) if numbers else None
    return found
