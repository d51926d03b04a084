"""Compute devices and their step clocks: the one place where the trainer distinguishes a GPU from a CPU."""

from __future__ import annotations

import os
import platform
import resource
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from trainer.device import nccl, nvml


class HostClock:
    """Clock of a device on which a call returns when its work is done."""

    def __init__(self) -> None:
        self._begun: list[int] = []
        self._ended: list[int] = []

    def begin(self) -> None:
        """A step begins."""
        self._begun.append(time.perf_counter_ns())

    def end(self) -> None:
        """The step ends."""
        self._ended.append(time.perf_counter_ns())

    def n_ended(self) -> int:
        """Number of steps that have ended."""
        return len(self._ended)

    def durations_s(self) -> list[float]:
        """Seconds of each step."""
        return [(end - begin) * 1e-9 for begin, end in zip(self._begun, self._ended, strict=True)]


class CudaClock:
    """Clock of events in the device's queue: recording one neither waits for the device nor delays it."""

    def __init__(self) -> None:
        self._begun: list[torch.cuda.Event] = []
        self._ended: list[torch.cuda.Event] = []
        self._n_seen = 0

    def begin(self) -> None:
        """A step begins."""
        self._begun.append(_recorded())

    def end(self) -> None:
        """The step ends."""
        self._ended.append(_recorded())

    def n_ended(self) -> int:
        """Number of steps whose end the device has reached (``query`` does not wait)."""
        # A local counter: two threads call this, and neither may count a step twice.
        n_seen = self._n_seen
        while n_seen < len(self._ended) and self._ended[n_seen].query():  # type: ignore[no-untyped-call]  # torch does not annotate it
            n_seen += 1
        self._n_seen = n_seen
        return n_seen

    def durations_s(self) -> list[float]:
        """Seconds of each step; call it after the device was synchronised."""
        return [begin.elapsed_time(end) * 1e-3 for begin, end in zip(self._begun, self._ended, strict=True)]


def _recorded() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch does not annotate it
    event.record()
    return event


StepClock = HostClock | CudaClock


class CpuCompute:
    """A share of the host's cores; collectives through gloo."""

    backend = "gloo"
    raises_timeouts = True
    """True if a collective that hangs raises an exception by itself."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")

    def communication_error(self) -> str:
        """Empty: gloo raises its errors."""
        return ""

    def name(self) -> str:
        """Name of the processor."""
        return cpu_name()

    def places(self) -> tuple[str, ...]:
        """Cores that this process may run on."""
        return tuple(f"cpu{core}" for core in sorted(available_cores()))

    def pci_bus_id(self) -> None:
        """None: a CPU has no PCI address."""

    def clock(self) -> StepClock:
        """The host's clock: a call returns when its work is done."""
        return HostClock()

    def synchronize(self) -> None:
        """Do nothing: a CPU has no queue."""

    def reset_peak(self) -> None:
        """Do nothing: resetting the kernel's high-water mark needs privileges."""

    def peak_bytes(self) -> tuple[int | None, int | None]:
        """Largest resident set of the process so far (the kernel counts in KiB), and None: a CPU reserves nothing."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, None


class CudaCompute:
    """One GPU; collectives through NCCL."""

    backend = "nccl"
    raises_timeouts = False

    def __init__(self, local_rank: int) -> None:
        nccl.set_error_handling(os.environ)
        self.device = torch.device("cuda", local_rank)
        torch.cuda.set_device(self.device)

    def communication_error(self) -> str:
        """Error that NCCL's watchdog has noted; empty without one. Does not wait."""
        return nccl.first_error(nccl.backends())

    def name(self) -> str:
        """Name of the device, from the driver."""
        return torch.cuda.get_device_name(self.device)

    def places(self) -> tuple[str, ...]:
        """The GPU's UUID."""
        return (self.uuid(),)

    def uuid(self) -> str:
        """UUID of the device, which CUDA_VISIBLE_DEVICES does not renumber and NVML knows."""
        return _uuid(self.device.index)

    def pci_bus_id(self) -> str | None:
        """PCI address, from NVML; torch does not have it."""
        library = nvml.open_nvml()
        return None if library is None else nvml.pci_bus_id(library, self.uuid())

    def clock(self) -> StepClock:
        """A clock of events in the device's queue."""
        return CudaClock()

    def synchronize(self) -> None:
        """Wait for the device."""
        torch.cuda.synchronize(self.device)

    def reset_peak(self) -> None:
        """Reset the allocator's high-water marks."""
        torch.cuda.reset_peak_memory_stats(self.device)

    def peak_bytes(self) -> tuple[int | None, int | None]:
        """Largest memory allocated and reserved by the caching allocator."""
        return torch.cuda.max_memory_allocated(self.device), torch.cuda.max_memory_reserved(self.device)


Compute = CpuCompute | CudaCompute


def open_compute(device_type: str, local_rank: int) -> Compute:
    """Open the device of this rank."""
    return CudaCompute(local_rank) if device_type == "cuda" else CpuCompute()


def names_on_node(device_type: str) -> tuple[str, ...]:
    """Names of all devices of a type that this process can see; empty if there is none."""
    if device_type == "cpu":
        return (cpu_name(),)
    return tuple(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))


def capabilities_on_node(device_type: str) -> tuple[tuple[str, tuple[int, int]], ...]:
    """Name and compute capability of each GPU of this node; empty on a CPU."""
    if device_type == "cpu":
        return ()
    found = range(torch.cuda.device_count())
    return tuple((torch.cuda.get_device_name(i), torch.cuda.get_device_capability(i)) for i in found)


def uuids_on_node(device_type: str, n_ranks: int) -> tuple[str, ...]:
    """UUIDs of the GPUs that the node's ranks will use; empty on a CPU."""
    return tuple(map(_uuid, range(n_ranks))) if device_type == "cuda" else ()


def _uuid(index: int) -> str:
    return f"GPU-{torch.cuda.get_device_properties(index).uuid}"


def available_cores() -> set[int]:
    """Cores that this process may run on: the job's share of the machine."""
    return os.sched_getaffinity(0)


def threads_for(asked: int, device_type: str, ranks_on_host: int) -> int:
    """CPU threads of one rank: the number asked for; else one with a GPU, an equal share of the cores without."""
    if asked > 0:
        return asked
    return 1 if device_type == "cuda" else max(1, len(available_cores()) // ranks_on_host)


def is_oversubscribed(places_by_rank: Sequence[tuple[str, ...]], hosts_by_rank: Sequence[str]) -> bool:
    """True if a host runs more ranks than it has devices for them (on a CPU: cores)."""
    ranks: dict[str, int] = {}
    places: dict[str, set[str]] = {}
    for host, offered in zip(hosts_by_rank, places_by_rank, strict=True):
        ranks[host] = ranks.get(host, 0) + 1
        places.setdefault(host, set()).update(offered)
    return any(count > len(places[host]) for host, count in ranks.items())


def cpu_name() -> str:
    """Name of the processor; the architecture where Linux has no name (as on many ARM machines)."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name" and value.strip():
            return value.strip()
    return platform.machine() or "unknown"
