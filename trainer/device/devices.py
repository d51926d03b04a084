"""What is different between a GPU and a CPU: the one place where the trainer asks which it has."""

from __future__ import annotations

import os
import platform
import resource
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch

from trainer.device import nccl, nvml
from trainer.device.clock import CudaClock, HostClock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainer.device.clock import StepClock


class Compute(Protocol):
    """The device that this rank computes on."""

    device: torch.device
    backend: str
    raises_timeouts: bool
    """Whether a collective that does not end becomes an exception by itself."""

    def communication_error(self) -> str:
        """What went wrong in the background; empty where nothing has. Does not wait."""
        ...

    def name(self) -> str:
        """What the driver calls it (on a CPU: the processor's name)."""
        ...

    def places(self) -> tuple[str, ...]:
        """Devices of this node that this rank may use (on a CPU: cores), by names that all its ranks share."""
        ...

    def pci_bus_id(self) -> str | None:
        """Where sysfs has the device; None on a CPU."""
        ...

    def clock(self) -> StepClock:
        """A clock for steps."""
        ...

    def synchronize(self) -> None:
        """Wait until the device has done all that it was given."""
        ...

    def reset_peak(self) -> None:
        """Begin to watch for the largest memory use."""
        ...

    def peak_bytes(self) -> tuple[int | None, int | None]:
        """Largest memory allocated, and reserved, so far."""
        ...


class CpuCompute:
    """A share of the host's cores; collectives through gloo."""

    backend = "gloo"
    raises_timeouts = True

    def __init__(self) -> None:
        self.device = torch.device("cpu")

    def communication_error(self) -> str:
        """Gloo raises what it meets."""
        return ""

    def name(self) -> str:
        """The processor's name, as Linux gives it."""
        return cpu_name()

    def places(self) -> tuple[str, ...]:
        """Cores that this process may run on."""
        return tuple(f"cpu{core}" for core in sorted(available_cores()))

    def pci_bus_id(self) -> None:
        """A CPU is beside itself."""

    def clock(self) -> StepClock:
        """The host's clock: a call returns when its work is done."""
        return HostClock()

    def synchronize(self) -> None:
        """Nothing is ever outstanding."""

    def reset_peak(self) -> None:
        """The kernel's high-water mark cannot be reset without privileges."""

    def peak_bytes(self) -> tuple[int | None, int | None]:
        """Largest resident set of the process's life (the kernel counts in KiB); nothing is reserved."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, None


class CudaCompute:
    """One GPU; collectives through NCCL."""

    backend = "nccl"
    raises_timeouts = False

    def __init__(self, local_rank: int) -> None:
        nccl.prepare(os.environ)
        self.device = torch.device("cuda", local_rank)
        torch.cuda.set_device(self.device)

    def communication_error(self) -> str:
        """What NCCL's watchdog has noted."""
        return nccl.error(nccl.backends())

    def name(self) -> str:
        """The driver's name for the device."""
        return torch.cuda.get_device_name(self.device)

    def places(self) -> tuple[str, ...]:
        """The GPU's UUID."""
        return (self.uuid(),)

    def uuid(self) -> str:
        """The identity that NVML knows it by too, whatever CUDA_VISIBLE_DEVICES renumbers."""
        return _uuid(self.device.index)

    def pci_bus_id(self) -> str | None:
        """As NVML knows it; torch does not tell."""
        library = nvml.open_nvml()
        return None if library is None else nvml.pci_bus_id(library, self.uuid())

    def clock(self) -> StepClock:
        """Events in the device's queue."""
        return CudaClock()

    def synchronize(self) -> None:
        """Wait for the device."""
        torch.cuda.synchronize(self.device)

    def reset_peak(self) -> None:
        """Begin anew."""
        torch.cuda.reset_peak_memory_stats(self.device)

    def peak_bytes(self) -> tuple[int | None, int | None]:
        """The caching allocator's high-water marks."""
        return torch.cuda.max_memory_allocated(self.device), torch.cuda.max_memory_reserved(self.device)


def open_compute(device_type: str, local_rank: int) -> Compute:
    """The device of this rank."""
    return CudaCompute(local_rank) if device_type == "cuda" else CpuCompute()


def names_on_node(device_type: str) -> tuple[str, ...]:
    """Names of all devices of that type that processes of this node can see; none where there is none."""
    if device_type == "cpu":
        return (cpu_name(),)
    return tuple(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))


def capabilities_on_node(device_type: str) -> tuple[tuple[str, tuple[int, int]], ...]:
    """Name and compute capability of each GPU of this node; none on a CPU."""
    if device_type == "cpu":
        return ()
    found = range(torch.cuda.device_count())
    return tuple((torch.cuda.get_device_name(i), torch.cuda.get_device_capability(i)) for i in found)


def uuids_on_node(device_type: str, n_ranks: int) -> tuple[str, ...]:
    """Identities of the GPUs that the node's ranks will claim; none on a CPU."""
    return tuple(map(_uuid, range(n_ranks))) if device_type == "cuda" else ()


def _uuid(index: int) -> str:
    return f"GPU-{torch.cuda.get_device_properties(index).uuid}"


def available_cores() -> set[int]:
    """Cores that this process may run on: a job's share, not the machine's number."""
    return os.sched_getaffinity(0)


def threads_for(asked: int, device_type: str, ranks_on_host: int) -> int:
    """CPU threads of one rank: as asked; else one beside a GPU, and on a CPU an equal share of the cores."""
    if asked > 0:
        return asked
    return 1 if device_type == "cuda" else max(1, len(available_cores()) // ranks_on_host)


def is_oversubscribed(places_by_rank: Sequence[tuple[str, ...]], hosts_by_rank: Sequence[str]) -> bool:
    """Whether some host runs more ranks than it gave them devices (on a CPU: cores)."""
    ranks: dict[str, int] = {}
    places: dict[str, set[str]] = {}
    for host, offered in zip(hosts_by_rank, places_by_rank, strict=True):
        ranks[host] = ranks.get(host, 0) + 1
        places.setdefault(host, set()).update(offered)
    return any(count > len(places[host]) for host, count in ranks.items())


def cpu_name() -> str:
    """The processor's name; the architecture where Linux does not tell (as on many ARM machines)."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name" and value.strip():
            return value.strip()
    return platform.machine() or "unknown"
