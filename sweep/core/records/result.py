"""``result.json``: what a trainer measured."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field

from sweep.core.attempts.attempt import AttemptKey
from sweep.core.cells.cell import Cell
from sweep.core.encoding.frozen import dataclass
from sweep.core.encoding.names import NodeName
from sweep.core.encoding.record import RecordError
from sweep.core.records.attempt_record import AttemptRecord
from sweep.core.records.layout import RESULT_FILE

SOURCES = ("measured", "simulated", "imported")
"""Where a result can come from; one series never mixes them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Result(AttemptRecord):
    """The measurement of a trainer (``result.json``, renamed last): raw quantities, nothing derived.

    Attributes:
        key: The attempt.
        restart: The run of the job id that wrote it.
        started_at: Unix time at which rank 0 began.
        ended_at: Unix time at which rank 0 wrote this file.
        world_size: Ranks that took part.
        hosts: Host name of each node, by node rank.
        device_type: ``cuda`` or ``cpu``.
        device_name: As the driver reports it (on a CPU: the processor's name).
        n_params: Parameters of the model as it was built.
        steps: Steps run in all.
        warmup_steps: Leading steps outside the window.
        window_steps: Steps of the measured window.
        window_tokens: Tokens of the window over all ranks.
        window_time_s: Seconds of the window from edge to edge; the maximum over ranks.
        window_energy_j: Joules of all GPUs in the window; None where no counter could be read.
        power_source: The counter that was read; empty where none was.
        peak_memory_bytes: Largest device memory allocated in any rank (on a CPU: resident set); None where unknown.
        peak_reserved_bytes: The allocator's reserve at its largest; None on a CPU.
        throttled: True if a device reported in the window that it slowed down; None where unknown.
        throttle_reasons: The reasons that devices reported.
        oversubscribed: True if a node had more ranks than devices (on a CPU: than cores).
        final_loss: Loss of the last step.
        fingerprint: Hash of ``fingerprint_fields``.
        fingerprint_fields: What changes a number without being part of the cell: versions, driver, device, sources.
        versions: Versions of packages and libraries.
        environment: Environment variables that matter, secrets redacted.
        extra: Anything further a trainer records (profiles, memory by kind); read by name, never required.
        source: One of :data:`SOURCES`.
    """

    KIND = "result"
    FILE = RESULT_FILE

    key: AttemptKey
    restart: int
    started_at: float
    ended_at: float
    world_size: int
    hosts: tuple[NodeName, ...]
    device_type: str
    device_name: str
    n_params: int
    steps: int
    warmup_steps: int
    window_steps: int
    window_tokens: int
    window_time_s: float
    window_energy_j: float | None
    power_source: str
    peak_memory_bytes: int | None
    peak_reserved_bytes: int | None
    throttled: bool | None
    throttle_reasons: tuple[str, ...]
    oversubscribed: bool
    final_loss: float | None
    fingerprint: str
    fingerprint_fields: Mapping[str, str | None]
    versions: Mapping[str, str | None] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, object] = field(default_factory=dict)
    source: str = "measured"

    def check_against(self, cell: Cell) -> None:
        """Refuse a result of another experiment than the cell's.

        Raises:
            RecordError: If ranks, tokens or parameters are not the cell's.
        """
        wanted = {
            "world_size": cell.gpus,
            "window_tokens": self.window_steps * cell.tokens_per_step,
            "n_params": cell.model.n_params,
        }
        for name, value in wanted.items():
            if getattr(self, name) != value:
                raise RecordError(f"result.json has {name}={getattr(self, name)}; the cell makes it {value}")

    def check(self) -> None:
        """Refuse numbers that no run can have.

        Raises:
            RecordError: If the window is empty, a quantity is negative or not finite, or the source is not known.
        """
        for name in ("window_steps", "window_tokens", "world_size", "n_params", "steps"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise RecordError(f"result.json has {name}={value!r}, not a positive whole number")
        for name in ("window_energy_j", "peak_memory_bytes", "peak_reserved_bytes", "warmup_steps", "restart"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise RecordError(f"result.json has {name}={value!r}, not a number from 0")
        if not 0 < self.window_time_s < math.inf:
            raise RecordError(f"result.json has window_time_s={self.window_time_s!r}, not a positive number")
        if self.warmup_steps + self.window_steps > self.steps:
            shown = f"warmup_steps={self.warmup_steps} and window_steps={self.window_steps}"
            raise RecordError(f"result.json has {shown}, more than its steps={self.steps}")
        if self.source not in SOURCES:
            raise RecordError(f"result.json has source={self.source!r}, not one of {', '.join(SOURCES)}")


def results_by_precedence(
    key: AttemptKey, cell: Cell, files: Mapping[int, str | OSError]
) -> tuple[dict[int, Result], dict[int, RecordError | OSError]]:
    """The valid results of an attempt by restart, the one that counts first, and the problems of the others.

    The result of the latest restart counts: a job that ran again after a result had not ended well before.

    Args:
        key: The attempt.
        cell: The cell that it ran.
        files: Its result files by restart: each a text, or the reason why the file cannot be read.
    """
    results: dict[int, Result] = {}
    problems: dict[int, RecordError | OSError] = {}
    for restart in sorted(files, reverse=True):
        try:
            results[restart] = _valid(key, cell, restart, files[restart])
        except (OSError, RecordError) as error:
            problems[restart] = error
    return results, problems


def _valid(key: AttemptKey, cell: Cell, restart: int, file: str | OSError) -> Result:
    if isinstance(file, OSError):
        raise file
    result = Result.parse(file, expected=key)
    if result.restart != restart:
        raise RecordError(f"result.json is that of restart {result.restart}, not of {restart}")
    result.check_against(cell)
    return result
