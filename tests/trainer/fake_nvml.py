"""A small fake of the pynvml module: one GPU whose counters a test moves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pynvml

UUID = "GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77"


class FakeNvml:
    """Has the attributes of pynvml that the trainer uses; what is in ``unsupported`` raises as the real one does."""

    NVMLError = pynvml.NVMLError

    def __init__(self) -> None:
        for name in dir(pynvml):
            value = getattr(pynvml, name)
            if isinstance(value, int):
                setattr(self, name, value)
        self.unsupported: set[str] = set()
        self.energy_mj = 1_000_000
        self.events = 0
        self.fields: dict[int, tuple[int, str, float]] = {}
        self.enforced_limit_mw = 700_000
        self.default_limit_mw = 700_000
        self.memory_used = 0
        self.processes: dict[int, int] = {}

    def set_field(self, name: str, value: float, member: str = "ullVal") -> None:
        types = {"ullVal": self.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, "uiVal": self.NVML_VALUE_TYPE_UNSIGNED_INT}
        self.fields[getattr(self, name)] = (types[member], member, value)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def _require(self, name: str) -> None:
        if name in self.unsupported:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    def nvmlInit(self) -> None:
        self._require("nvmlInit")

    def nvmlSystemGetDriverVersion(self) -> str:
        self._require("nvmlSystemGetDriverVersion")
        return "570.86.15"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid != UUID:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return "handle"

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:
        self._require("nvmlDeviceGetTotalEnergyConsumption")
        return self.energy_mj

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: str) -> int:
        self._require("nvmlDeviceGetCurrentClocksEventReasons")
        return self.events

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: str) -> int:
        self._require("nvmlDeviceGetEnforcedPowerLimit")
        return self.enforced_limit_mw

    def nvmlDeviceGetPowerManagementDefaultLimit(self, handle: str) -> int:
        return self.default_limit_mw

    def nvmlDeviceGetClockInfo(self, handle: str, kind: int) -> int:
        return 1755 if kind == self.NVML_CLOCK_SM else 0

    def nvmlDeviceGetPciInfo(self, handle: str) -> Any:
        return SimpleNamespace(domain=0, bus=0x1B, device=0)

    def nvmlDeviceGetMemoryInfo(self, handle: str, version: int) -> Any:
        assert version == self.nvmlMemory_v2
        self._require("nvmlDeviceGetMemoryInfo")
        return SimpleNamespace(used=self.memory_used)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[Any]:
        self._require("nvmlDeviceGetComputeRunningProcesses")
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in self.processes.items()]

    def nvmlSystemGetProcessName(self, pid: int) -> bytes:
        return b"/usr/bin/other"

    def nvmlDeviceGetFieldValues(self, handle: str, ids: list[int]) -> list[Any]:
        self._require("nvmlDeviceGetFieldValues")
        return [self._field(wanted) for wanted in ids]

    def _field(self, wanted: int) -> Any:
        if wanted not in self.fields:
            return SimpleNamespace(nvmlReturn=pynvml.NVML_ERROR_NOT_SUPPORTED, valueType=0, value=None)
        value_type, member, value = self.fields[wanted]
        return SimpleNamespace(
            nvmlReturn=pynvml.NVML_SUCCESS, valueType=value_type, value=SimpleNamespace(**{member: value})
        )
