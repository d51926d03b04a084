"""What NVML says of a node's GPUs, by a fake NVML: no test machine has one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from sweep.launch.gpus import gpus
from tests.trainer.fake_nvml import FakeNvml


class EightLinks(FakeNvml):
    """A GPU with eight NVLinks of which some are down; other facts by name of the call."""

    def __init__(self, down: int = 0, **answers: Any) -> None:
        super().__init__()
        self.down = down
        self.answers = {
            "nvmlDeviceGetCount": 1,
            "nvmlDeviceGetHandleByIndex": "handle",
            "nvmlDeviceGetName": b"NVIDIA H100 80GB HBM3",
            "nvmlDeviceGetRemappedRows": (0, 0, 0, 0),
            "nvmlDeviceGetCurrPcieLinkWidth": 16,
            "nvmlDeviceGetMaxPcieLinkWidth": 16,
            "nvmlDeviceGetCurrPcieLinkGeneration": 5,
            "nvmlDeviceGetMaxPcieLinkGeneration": 5,
            "nvmlDeviceGetPerformanceState": 0,
            "nvmlDeviceGetApplicationsClock": 1980,
            "nvmlDeviceGetDefaultApplicationsClock": 1980,
            "nvmlDeviceGetPersistenceMode": 1,
            **answers,
        }

    def __getattr__(self, name: str) -> Any:
        if name not in self.__dict__.get("answers", {}):
            raise AttributeError(name)
        answer = self.answers[name]
        if answer is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return lambda *_: answer

    def nvmlDeviceGetNvLinkState(self, handle: str, link: int) -> int:
        if link >= 8:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return int(link >= self.down)


def test_a_sound_gpu_is_described() -> None:
    assert gpus(EightLinks()) == {
        "gpus": [
            {
                "name": "NVIDIA H100 80GB HBM3",
                "remap_pending": False,
                "remap_failed": False,
                "pcie_width": 16,
                "pcie_width_max": 16,
                "pcie_speed": 5,
                "pcie_speed_max": 5,
                "performance_state": 0,
                "nvlinks_up": 8,
                "nvlinks_down": 0,
                "clock_mhz": 1980,
                "clock_default_mhz": 1980,
                "power_limit_w": 700.0,
                "power_default_w": 700.0,
                "is_slowed": False,
                "persistence": True,
            }
        ]
    }


def test_what_a_gpu_does_not_support_is_unknown_and_hides_nothing_else() -> None:
    (gpu,) = gpus(EightLinks(down=2, nvmlDeviceGetRemappedRows=None, nvmlDeviceGetPersistenceMode=None))["gpus"]
    assert (gpu["remap_pending"], gpu["persistence"], gpu["nvlinks_down"]) == (None, None, 2)


@pytest.mark.parametrize(
    ("events", "is_slowed"),
    [("nvmlClocksEventReasonGpuIdle", False), ("nvmlClocksThrottleReasonHwThermalSlowdown", True)],
)
def test_an_idle_clock_is_not_slowed_and_a_hot_one_is(events: str, is_slowed: bool) -> None:
    fake = EightLinks()
    fake.events = getattr(pynvml, events)
    assert gpus(fake)["gpus"][0]["is_slowed"] is is_slowed


def test_a_driver_that_does_not_answer_is_a_sentence_not_an_error() -> None:
    fake = EightLinks()
    fake.unsupported = {"nvmlInit"}
    assert gpus(fake) == {"nvml_error": "NVMLError_NotSupported: Not Supported"}
    assert gpus(SimpleNamespace())["nvml_error"].startswith("AttributeError")
