"""Energy, power and throttling of one GPU through NVML; a value that cannot be read is None.

Tested with a fake of the pynvml module. Not yet run on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from trainer.device.nvml import open_nvml

ENERGY_SOURCE = "nvmlDeviceGetTotalEnergyConsumption"
# The counter moves about ten times a second: over two seconds that is an error of up to 5 %, over less it is noise.
MIN_ENERGY_WINDOW_S = 2.0

# Reasons for lowered clocks: the name of NVML's bit, and its name in a record. The other bits (idle, clocks set by an
# application, by a display, by sync boost) do not slow a run down.
_EVENT_BITS = {
    "nvmlClocksEventReasonSwPowerCap": "sw_power_cap",
    "nvmlClocksEventReasonHwSlowdown": "hw_slowdown",
    "nvmlClocksEventReasonSwThermalSlowdown": "sw_thermal_slowdown",
    "nvmlClocksEventReasonHwThermalSlowdown": "hw_thermal_slowdown",
    "nvmlClocksEventReasonHwPowerBrakeSlowdown": "hw_power_brake",
}
# Counters of the time that a reason lasted. They catch events between the edges of the window.
_EVENT_COUNTERS = {
    "NVML_FI_DEV_PERF_POLICY_POWER": "sw_power_cap",
    "NVML_FI_DEV_PERF_POLICY_THERMAL": "thermal_slowdown",
    "NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT": "board_limit",
    "NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN": "sw_thermal_slowdown",
    "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN": "hw_thermal_slowdown",
    "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN": "hw_power_brake",
}
# Large models usually run a GPU at its power limit; that is throttling only if the limit was lowered.
_POWER_CAP = "sw_power_cap"

_VALUE_FIELDS = {
    "NVML_VALUE_TYPE_DOUBLE": "dVal",
    "NVML_VALUE_TYPE_UNSIGNED_INT": "uiVal",
    "NVML_VALUE_TYPE_UNSIGNED_LONG": "ulVal",
    "NVML_VALUE_TYPE_UNSIGNED_LONG_LONG": "ullVal",
    "NVML_VALUE_TYPE_SIGNED_LONG_LONG": "sllVal",
    "NVML_VALUE_TYPE_SIGNED_INT": "siVal",
    "NVML_VALUE_TYPE_UNSIGNED_SHORT": "usVal",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class WindowTelemetry:
    """Readings of one device over the measured window; None for what could not be read."""

    energy_j: float | None = None
    """Joules; None without a counter, or if the window was too short for it."""
    throttle_reasons: tuple[str, ...] | None = None
    throttled: bool | None = None
    """True if a reason is more than running at the ordinary power limit."""
    power_average_w: float | None = None
    """NVML's one-second average just before the window closed."""
    power_instant_w: float | None = None
    power_limit_w: float | None = None
    """Power limit in force."""
    sm_clock_mhz: int | None = None
    """Clock just before the window closed."""

    def readings(self) -> dict[str, object]:
        """The values that are known, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}


class NvmlProbe:
    """Reads one device at the edges of the measured window.

    Args:
        nvml: The pynvml module, initialised.
        uuid: The device's UUID: CUDA_VISIBLE_DEVICES renumbers devices, so an index would name another one.
    """

    def __init__(self, nvml: Any, uuid: str) -> None:
        self._nvml = nvml
        self._handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        self._energy_before_mj: int | None = None
        self._counters_before: Mapping[str, float] = {}
        self._late: dict[str, Any] = {}

    def driver_version(self) -> str | None:
        """Version of the driver; None if unknown."""
        version = self._ask(self._nvml.nvmlSystemGetDriverVersion)
        return None if version is None else str(version)

    def window_opens(self) -> None:
        """Read the counters; the device is idle."""
        self._counters_before = self._fields(_EVENT_COUNTERS)
        self._energy_before_mj = self._energy_mj()

    def window_closes(self) -> None:
        """Read power, clock and events while the device is busy: the last steps are queued and still run."""
        nvml, handle = self._nvml, self._handle
        self._late = {
            "power": self._fields(("NVML_FI_DEV_POWER_AVERAGE", "NVML_FI_DEV_POWER_INSTANT")),
            "events": self._ask(lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)),
            "clock": self._ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
        }

    def window_closed(self, window_s: float) -> WindowTelemetry:
        """Read the counters again; the device is idle."""
        energy_mj = self._energy_mj()
        limit_mw = self._limit("nvmlDeviceGetEnforcedPowerLimit")
        default_mw = self._limit("nvmlDeviceGetPowerManagementDefaultLimit")
        reasons = self._reasons()
        power = self._late.get("power", {})
        return WindowTelemetry(
            energy_j=_energy_j(self._energy_before_mj, energy_mj, window_s),
            throttle_reasons=reasons,
            throttled=None if reasons is None else _is_throttled(reasons, limit_mw, default_mw),
            power_average_w=_thousandth(power.get("NVML_FI_DEV_POWER_AVERAGE")),
            power_instant_w=_thousandth(power.get("NVML_FI_DEV_POWER_INSTANT")),
            power_limit_w=_thousandth(limit_mw),
            sm_clock_mhz=self._late.get("clock"),
        )

    def _ask(self, question: Callable[[], Any]) -> Any:
        try:
            answer = question()
        except (self._nvml.NVMLError, AttributeError):
            # Not supported by the device, the driver, or this version of the binding.
            return None
        return answer.decode() if isinstance(answer, bytes) else answer

    def _energy_mj(self) -> int | None:
        # Some devices answer 0 instead of an error: that is unknown too.
        return self._ask(lambda: self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)) or None

    def _limit(self, function: str) -> float | None:
        return self._ask(lambda: getattr(self._nvml, function)(self._handle)) or None

    def _fields(self, names: Iterable[str]) -> dict[str, float]:
        """Values of the fields that this device has, by name."""
        known = [name for name in names if hasattr(self._nvml, name)]
        ids = [getattr(self._nvml, name) for name in known]
        answers = self._ask(lambda: self._nvml.nvmlDeviceGetFieldValues(self._handle, ids))
        found: dict[str, float] = {}
        for name, answer in zip(known, answers or (), strict=False):
            if answer.nvmlReturn == self._nvml.NVML_SUCCESS:
                found[name] = self._value(answer)
        return found

    def _value(self, answer: Any) -> float:
        for type_name, member in _VALUE_FIELDS.items():
            if answer.valueType == getattr(self._nvml, type_name, None):
                return float(getattr(answer.value, member))
        return float(answer.value.ullVal)

    def _reasons(self) -> tuple[str, ...] | None:
        events, after = self._late.get("events"), self._fields(_EVENT_COUNTERS)
        if events is None and not after:
            return None
        bits = {reason for name, reason in _EVENT_BITS.items() if (events or 0) & getattr(self._nvml, name, 0)}
        before = self._counters_before
        grown = {_EVENT_COUNTERS[name] for name in after if after[name] > before.get(name, after[name])}
        return tuple(sorted(bits | grown))


def _energy_j(before_mj: int | None, after_mj: int | None, window_s: float) -> float | None:
    if before_mj is None or after_mj is None or window_s < MIN_ENERGY_WINDOW_S or after_mj <= before_mj:
        return None
    return (after_mj - before_mj) / 1000.0


def _is_throttled(reasons: tuple[str, ...], limit_mw: float | None, default_mw: float | None) -> bool:
    if set(reasons) - {_POWER_CAP}:
        return True
    is_lowered = limit_mw is not None and default_mw is not None and limit_mw < default_mw
    return _POWER_CAP in reasons and is_lowered


def _thousandth(value: float | None) -> float | None:
    return None if value is None else value / 1000.0


def open_probe(uuid: str) -> NvmlProbe | None:
    """Open a probe of a device; None without pynvml or a driver, or if NVML does not know the device (MIG)."""
    nvml = open_nvml()
    if nvml is None:
        return None
    try:
        return NvmlProbe(nvml, uuid)
    except nvml.NVMLError:
        return None
