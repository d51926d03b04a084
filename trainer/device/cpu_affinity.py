"""Binds a rank to the CPU cores beside its GPU."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

_SYSFS = Path("/sys")


@dataclass(frozen=True, kw_only=True, slots=True)
class Binding:
    """Cores on which a rank's threads may run."""

    cores: str
    """In Linux's list format: ``0-15,32-47``."""
    numa_node: int | None = None
    """NUMA node of these cores; None if unknown."""
    is_bound: bool = False
    """True if the trainer limited the threads to these cores."""
    reason: str = ""
    """Reason for not binding; empty if bound."""


def bind(
    setting: str,
    pci_bus_id: str | None,
    *,
    sysfs: Path = _SYSFS,
    available: Callable[[], set[int]] = lambda: os.sched_getaffinity(0),
    limit: Callable[[set[int]], None] | None = None,
) -> Binding:
    """Limit this rank to the cores beside its GPU; threads that start later inherit the limit.

    Torch and the driver have started some threads before, since CUDA must be asked first which GPU this is.

    Args:
        setting: ``auto`` or ``none``.
        pci_bus_id: PCI address of the GPU as sysfs spells it (``0000:1b:00.0``); None on a CPU.
        sysfs: Mount point of sysfs.
        available: Returns the cores that the job may use.
        limit: Limits all threads of this process.
    """
    allowed = available()

    def not_bound(reason: str) -> Binding:
        return Binding(cores=format_cpu_list(allowed), reason=reason)

    if setting == "none":
        return not_bound("trainer.bind=none")
    if pci_bus_id is None:
        return not_bound("no GPU on this rank")
    device = sysfs / "bus" / "pci" / "devices" / pci_bus_id
    try:
        beside = parse_cpu_list((device / "local_cpulist").read_text())
        numa_node = int((device / "numa_node").read_text())
    except (OSError, ValueError) as error:
        return not_bound(f"cannot read sysfs: {error}")
    if not beside & allowed:
        # The scheduler gave the job other cores, and the rank must stay on the job's cores.
        return not_bound(f"none of the job's cores is beside the GPU ({format_cpu_list(beside)})")
    try:
        (limit or limit_all_threads)(beside & allowed)
    except OSError as error:
        # Some threads may already be limited.
        return Binding(cores=format_cpu_list(available()), reason=f"the kernel refused: {error}")
    return Binding(
        cores=format_cpu_list(beside & allowed), numa_node=numa_node if numa_node >= 0 else None, is_bound=True
    )


def limit_all_threads(cores: set[int]) -> None:
    """Limit every thread of this process to some cores; Linux limits one thread at a time.

    Raises:
        OSError: If the kernel refuses.
    """
    limited: set[int] = set()
    # Repeat until there is no new thread: a thread that is not limited yet may start another one meanwhile.
    while new := {int(task.name) for task in Path("/proc/self/task").iterdir()} - limited:
        for thread in new:
            # The thread may have ended meanwhile.
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(thread, cores)
        limited |= new


def parse_cpu_list(text: str) -> set[int]:
    """Parse Linux's list format, for example ``0-3,8``."""
    numbers: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return numbers


def format_cpu_list(numbers: Iterable[int]) -> str:
    """Write Linux's list format; the inverse of :func:`parse_cpu_list`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
