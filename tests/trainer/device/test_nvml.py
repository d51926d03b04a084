"""GPUs that are in use are refused, over a fake of NVML. Not yet run on a GPU."""

from __future__ import annotations

import pytest

from tests.trainer.fake_nvml import UUID, FakeNvml
from trainer.device.nvml import EMPTY_BELOW_BYTES, check_empty, pci_bus_id
from trainer.process.refusal import Refusal


def test_nvml_knows_where_sysfs_has_a_gpu() -> None:
    assert pci_bus_id(FakeNvml(), UUID) == "0000:1b:00.0"
    assert pci_bus_id(FakeNvml(), "MIG-1") is None


def test_an_empty_gpu_and_one_with_a_mere_context_will_do() -> None:
    nvml = FakeNvml()
    check_empty(nvml, [UUID])
    nvml.memory_used = EMPTY_BELOW_BYTES
    check_empty(nvml, [UUID])


def test_a_gpu_in_use_is_refused_with_its_name_and_who_holds_it() -> None:
    nvml = FakeNvml()
    nvml.memory_used = 21 << 30
    nvml.processes = {4711: 20 << 30}
    with pytest.raises(Refusal) as refused:
        check_empty(nvml, [UUID])
    for word in (UUID, "21.0 GiB", "process 4711 /usr/bin/other (20.0 GiB)"):
        assert word in str(refused.value)
    assert "\n" not in str(refused.value)


def test_memory_that_no_visible_process_holds_is_refused_too() -> None:
    nvml = FakeNvml()
    nvml.memory_used = 21 << 30
    nvml.unsupported = {"nvmlDeviceGetComputeRunningProcesses"}
    with pytest.raises(Refusal, match=r"21\.0 GiB are in use\. A cell"):
        check_empty(nvml, [UUID])


def test_what_nvml_does_not_know_is_no_reason_to_refuse() -> None:
    nvml = FakeNvml()
    nvml.memory_used = 21 << 30
    check_empty(nvml, ["MIG-1"])
    nvml.unsupported = {"nvmlDeviceGetMemoryInfo"}
    check_empty(nvml, [UUID])
