"""A rank's place on its node: the cores beside its GPU, and whether the GPU is its own."""

from __future__ import annotations

import contextlib
import importlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.process.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_SYSFS = Path("/sys")
# A CUDA context alone, such as that of a rank that is a moment ahead, takes a few hundred MiB.
EMPTY_BELOW_BYTES = 1 << 30
_GIB = 1 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Binding:
    """Where a rank's threads may run.

    Attributes:
        cores: As Linux writes a list: ``0-15,32-47``.
        numa_node: Node of the machine's memory that they are beside; None where it is not known.
        is_bound: Whether the trainer limited them to it.
        reason: Why it did not; empty where it did.
    """

    cores: str
    numa_node: int | None = None
    is_bound: bool = False
    reason: str = ""


def bind(
    setting: str,
    pci_bus_id: str | None,
    *,
    sysfs: Path = _SYSFS,
    available: Callable[[], set[int]] = lambda: os.sched_getaffinity(0),
    limit: Callable[[set[int]], None] | None = None,
) -> Binding:
    """Limit this rank to the cores beside its GPU; threads that are made from now on inherit it.

    By then torch and the driver have made some, since CUDA must be asked which GPU this is.

    Args:
        setting: ``auto`` or ``none``.
        pci_bus_id: Of its GPU, as sysfs spells it (``0000:1b:00.0``); None on a CPU.
        sysfs: Where Linux tells of devices.
        available: Cores that the job may use.
        limit: Limits all threads of this process.
    """
    allowed = available()

    def not_bound(reason: str) -> Binding:
        return Binding(cores=as_list(allowed), reason=reason)

    if setting == "none":
        return not_bound("trainer.bind=none")
    if pci_bus_id is None:
        return not_bound("no GPU to be near to")
    device = sysfs / "bus" / "pci" / "devices" / pci_bus_id
    try:
        beside = from_list((device / "local_cpulist").read_text())
        numa_node = int((device / "numa_node").read_text())
    except (OSError, ValueError) as error:
        return not_bound(f"sysfs does not tell: {error}")
    if not beside & allowed:
        # The scheduler gave the job other cores; leaving them would be worse than their distance.
        return not_bound(f"none of the job's cores is beside the GPU ({as_list(beside)})")
    try:
        (limit or limit_all_threads)(beside & allowed)
    except OSError as error:
        # Some threads may be limited already.
        return Binding(cores=as_list(available()), reason=f"the kernel refuses: {error}")
    return Binding(cores=as_list(beside & allowed), numa_node=numa_node if numa_node >= 0 else None, is_bound=True)


def limit_all_threads(cores: set[int]) -> None:
    """Limit every thread of this process to some cores; Linux limits one at a time.

    Raises:
        OSError: If the kernel refuses.
    """
    limited: set[int] = set()
    # Again until there is no other: one that is not limited yet may make another meanwhile.
    while new := {int(task.name) for task in Path("/proc/self/task").iterdir()} - limited:
        for thread in new:
            # It may have ended since.
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(thread, cores)
        limited |= new


def pci_bus_id(nvml: Any, uuid: str) -> str | None:
    """Domain, bus and slot of a GPU, as sysfs spells them; None where NVML does not know it (MIG)."""
    try:
        found = nvml.nvmlDeviceGetPciInfo(nvml.nvmlDeviceGetHandleByUUID(uuid))
    except nvml.NVMLError:
        return None
    return f"{found.domain:04x}:{found.bus:02x}:{found.device:02x}.0"


def from_list(text: str) -> set[int]:
    """Numbers of a list as Linux writes it: ``0-3,8``."""
    numbers: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return numbers


def as_list(numbers: Iterable[int]) -> str:
    """The inverse of :func:`from_list`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def check_empty(nvml: Any, uuids: Iterable[str]) -> None:
    """See that nobody else uses the memory of the GPUs of this node's ranks.

    The ranks of a node ask alike, before any of them holds more than a context.

    Args:
        nvml: The pynvml module, initialised.
        uuids: The GPUs.

    Raises:
        Refusal: If one is in use: running out of what another holds would be taken for a finding about the cell.
    """
    for uuid in uuids:
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
            used = int(nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2).used)
        except nvml.NVMLError:
            continue  # MIG, or an old driver: unknown is no reason to refuse
        if used > EMPTY_BELOW_BYTES:
            raise Refusal(
                f"{uuid} of this node is not empty: {used / _GIB:.1f} GiB are in use{_holders(nvml, handle)}. A cell "
                "that runs out of memory there would look too large. End what holds it, or run on another node."
            )


def _holders(nvml: Any, handle: Any) -> str:
    try:
        found = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except nvml.NVMLError:
        return ""
    shown = [_holder(nvml, process) for process in found]
    return f" by {', '.join(shown)}" if shown else ""


def _holder(nvml: Any, process: Any) -> str:
    held = "" if process.usedGpuMemory is None else f" ({process.usedGpuMemory / _GIB:.1f} GiB)"
    try:
        name = nvml.nvmlSystemGetProcessName(process.pid)
    except nvml.NVMLError:
        return f"process {process.pid}{held}"
    name = name.decode(errors="replace") if isinstance(name, bytes) else str(name)
    return f"process {process.pid} {name}{held}"


def open_nvml() -> Any | None:
    """The pynvml module, initialised; None where there is no binding or no driver."""
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    return nvml
