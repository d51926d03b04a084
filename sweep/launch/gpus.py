"""Reads from NVML what can make one GPU of a node slow or unsafe, for ``doctor --all-nodes``."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

_MOST_LINKS = 18
_SLOWED_BY_HARDWARE = 0x8 | 0x40 | 0x80  # HwSlowdown, HwThermalSlowdown, HwPowerBrakeSlowdown in nvml.h


def gpus(nvml: Any = None) -> dict[str, Any]:
    """Facts about each GPU under ``gpus``, or under ``nvml_error`` why NVML gives none.

    Args:
        nvml: The module ``pynvml``, or what stands for it.
    """
    try:
        nvml = nvml or importlib.import_module("pynvml")
        nvml.nvmlInit()
        count = nvml.nvmlDeviceGetCount()
        return {"gpus": [_gpu(nvml, nvml.nvmlDeviceGetHandleByIndex(index)) for index in range(count)]}
    except Exception as error:  # NVMLError is no fixed class: a broken driver has many
        return {"nvml_error": f"{type(error).__name__}: {error}"[:300]}


def _gpu(nvml: Any, handle: Any) -> dict[str, Any]:
    """Facts about one GPU; one that NVML does not support there is None."""

    def ask(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception:  # see above; an old module lacks the function
            return None

    name = ask(lambda: nvml.nvmlDeviceGetName(handle))
    remapped = ask(lambda: nvml.nvmlDeviceGetRemappedRows(handle))
    links = [ask(partial(nvml.nvmlDeviceGetNvLinkState, handle, link)) for link in range(_MOST_LINKS)]
    return {
        "name": name.decode() if isinstance(name, bytes) else name,
        "remap_pending": None if remapped is None else bool(remapped[2]),
        "remap_failed": None if remapped is None else bool(remapped[3]),
        "pcie_width": ask(lambda: nvml.nvmlDeviceGetCurrPcieLinkWidth(handle)),
        "pcie_width_max": ask(lambda: nvml.nvmlDeviceGetMaxPcieLinkWidth(handle)),
        "pcie_speed": ask(lambda: nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle)),
        "pcie_speed_max": ask(lambda: nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)),
        # An idle GPU may let its link go slower; in state 0 it does not.
        "performance_state": ask(lambda: nvml.nvmlDeviceGetPerformanceState(handle)),
        "nvlinks_up": sum(link == 1 for link in links),
        "nvlinks_down": sum(link == 0 for link in links),
        "clock_mhz": ask(lambda: nvml.nvmlDeviceGetApplicationsClock(handle, nvml.NVML_CLOCK_SM)),
        "clock_default_mhz": ask(lambda: nvml.nvmlDeviceGetDefaultApplicationsClock(handle, nvml.NVML_CLOCK_SM)),
        "power_limit_w": ask(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000),
        "power_default_w": ask(lambda: nvml.nvmlDeviceGetPowerManagementDefaultLimit(handle) / 1000),
        "is_slowed": ask(lambda: bool(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle) & _SLOWED_BY_HARDWARE)),
        "persistence": ask(lambda: bool(nvml.nvmlDeviceGetPersistenceMode(handle))),
    }
