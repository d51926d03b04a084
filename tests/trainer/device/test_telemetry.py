"""NVML readings, on a fake module that has the real one's names."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pynvml
import pytest

from tests.trainer.fake_nvml import UUID, FakeNvml
from trainer.device import nvml as trainer_nvml
from trainer.device import telemetry
from trainer.device.telemetry import NvmlProbe, WindowTelemetry, open_probe


@pytest.fixture
def nvml() -> FakeNvml:
    return FakeNvml()


def measure(nvml: FakeNvml, *, energy_mj: int = 0, window_s: float = 10.0) -> WindowTelemetry:
    probe = NvmlProbe(nvml, UUID)
    probe.window_opens()
    nvml.energy_mj += energy_mj
    probe.window_closes()
    return probe.window_closed(window_s)


def names_used() -> set[str]:
    source = "".join(Path(str(module.__file__)).read_text(encoding="utf-8") for module in (telemetry, trainer_nvml))
    return set(re.findall(r"\b(?:nvml(?!Return)[A-Z]\w+|NVML_\w+|NVMLError)\b", source))


@pytest.mark.parametrize("name", sorted(names_used()))
def test_the_real_module_has_every_name_that_is_used(name: str) -> None:
    assert hasattr(pynvml, name)
    assert hasattr(FakeNvml(), name)


def test_energy_is_the_difference_of_the_counter_in_joules(nvml: FakeNvml) -> None:
    assert measure(nvml, energy_mj=6_580_000).energy_j == 6580.0


def test_energy_of_a_window_too_short_for_the_counter_is_unknown(nvml: FakeNvml) -> None:
    assert measure(nvml, energy_mj=500_000, window_s=1.9).energy_j is None


def test_a_counter_that_answers_zero_is_unknown(nvml: FakeNvml) -> None:
    nvml.energy_mj = 0
    assert measure(nvml, energy_mj=0).energy_j is None


def test_a_counter_that_did_not_move_or_ran_backwards_is_unknown(nvml: FakeNvml) -> None:
    assert measure(nvml, energy_mj=0).energy_j is None
    assert measure(nvml, energy_mj=-5).energy_j is None


def test_what_the_device_does_not_support_is_unknown(nvml: FakeNvml) -> None:
    nvml.unsupported = {
        "nvmlDeviceGetTotalEnergyConsumption",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetEnforcedPowerLimit",
        "nvmlSystemGetDriverVersion",
    }
    assert measure(nvml, energy_mj=9) == WindowTelemetry(sm_clock_mhz=1755)
    assert NvmlProbe(nvml, UUID).driver_version() is None


def test_a_function_that_an_old_binding_lacks_is_unknown(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(FakeNvml, "nvmlDeviceGetCurrentClocksEventReasons")
    assert measure(nvml).throttle_reasons is None


def test_power_says_which_reading_it_is(nvml: FakeNvml) -> None:
    nvml.set_field("NVML_FI_DEV_POWER_AVERAGE", 658_000, "uiVal")
    nvml.set_field("NVML_FI_DEV_POWER_INSTANT", 690_500, "uiVal")
    found = measure(nvml)
    assert (found.power_average_w, found.power_instant_w, found.power_limit_w) == (658.0, 690.5, 700.0)


def test_nothing_held_the_clocks_back(nvml: FakeNvml) -> None:
    nvml.events = nvml.nvmlClocksEventReasonGpuIdle | nvml.nvmlClocksEventReasonApplicationsClocksSetting
    found = measure(nvml)
    assert (found.throttle_reasons, found.throttled) == ((), False)


def test_heat_is_throttling(nvml: FakeNvml) -> None:
    nvml.events = nvml.nvmlClocksEventReasonHwThermalSlowdown
    found = measure(nvml)
    assert (found.throttle_reasons, found.throttled) == (("hw_thermal_slowdown",), True)


def test_a_counter_that_grew_within_the_window_is_seen_though_the_edges_are_calm(nvml: FakeNvml) -> None:
    nvml.set_field("NVML_FI_DEV_PERF_POLICY_THERMAL", 5)
    probe = NvmlProbe(nvml, UUID)
    probe.window_opens()
    nvml.set_field("NVML_FI_DEV_PERF_POLICY_THERMAL", 900)
    probe.window_closes()
    found = probe.window_closed(10.0)
    assert (found.throttle_reasons, found.throttled) == (("thermal_slowdown",), True)


def test_a_counter_that_stood_still_is_no_reason(nvml: FakeNvml) -> None:
    nvml.set_field("NVML_FI_DEV_PERF_POLICY_THERMAL", 5)
    assert measure(nvml).throttle_reasons == ()


def test_running_at_the_ordinary_power_limit_is_reported_but_no_throttling(nvml: FakeNvml) -> None:
    nvml.events = nvml.nvmlClocksEventReasonSwPowerCap
    found = measure(nvml)
    assert (found.throttle_reasons, found.throttled) == (("sw_power_cap",), False)


def test_running_at_a_lowered_power_limit_is_throttling(nvml: FakeNvml) -> None:
    nvml.events = nvml.nvmlClocksEventReasonSwPowerCap
    nvml.enforced_limit_mw = 400_000
    assert measure(nvml).throttled is True


def test_a_device_that_nvml_does_not_know_has_no_probe(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert open_probe(UUID) is not None
    assert open_probe("MIG-1") is None


def test_without_a_driver_there_is_no_probe(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml.unsupported = {"nvmlInit"}
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert open_probe(UUID) is None


def test_without_the_binding_there_is_no_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert open_probe(UUID) is None


def test_only_known_readings_are_kept() -> None:
    assert WindowTelemetry(energy_j=3.0, throttled=False).readings() == {"energy_j": 3.0, "throttled": False}
