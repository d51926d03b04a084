"""NVML, NVIDIA's management library: opens it, finds a GPU's PCI address, checks that GPUs are unused."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

from trainer.process.refusal import Refusal

# A CUDA context alone, such as that of a rank that is a moment ahead, takes a few hundred MiB.
EMPTY_BELOW_BYTES = 1 << 30
_GIB = 1 << 30


def open_nvml() -> Any | None:
    """Import and initialise pynvml; None without the Python binding or a driver."""
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    return nvml


def pci_bus_id(nvml: Any, uuid: str) -> str | None:
    """PCI address of a GPU as sysfs spells it (``0000:1b:00.0``); None if NVML does not know the GPU (MIG)."""
    try:
        found = nvml.nvmlDeviceGetPciInfo(nvml.nvmlDeviceGetHandleByUUID(uuid))
    except nvml.NVMLError:
        return None
    return f"{found.domain:04x}:{found.bus:02x}:{found.device:02x}.0"


def check_empty(nvml: Any, uuids: Iterable[str]) -> None:
    """Check that no other process uses the memory of the GPUs of this node's ranks.

    Every rank of the node checks all of them, before any rank holds more than a context.

    Args:
        nvml: The pynvml module, initialised.
        uuids: UUIDs of the GPUs.

    Raises:
        Refusal: If a GPU is in use: out of memory would then look like a property of the cell.
    """
    for uuid in uuids:
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
            used = int(nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2).used)
        except nvml.NVMLError:
            continue  # MIG or an old driver: the memory in use is unknown
        if used > EMPTY_BELOW_BYTES:
            raise Refusal(
                f"{uuid} of this node is not empty: {used / _GIB:.1f} GiB are in use{_holders(nvml, handle)}. A cell "
                "that runs out of memory there would look too large. End its process, or run on another node."
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
