"""A kind of device: how to recognise it, and its published peak rates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from sweep.core.encoding.frozen import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """A kind of device, as ``conf/hardware`` describes it.

    Attributes:
        name: The profile's name, the value of the ``device`` axis, for example ``h100-80gb-sxm``.
        type: ``cuda`` (NCCL) or ``cpu`` (gloo).
        match: Parts of a device name as the driver reports it; one of them must occur, or the trainer refuses to
            run: a figure from another GPU than was asked for is worse than none. Empty: any device will do.
        unlike: Parts that must not occur in it: ``NVIDIA H200`` is in ``NVIDIA H200 NVL`` too, and a MIG slice's name
            contains that of the whole GPU.
        peak_tflops: Dense peak by precision, TFLOP/s. A precision that is not in it has no MFU.
        memory_gib: Device memory, GiB; None where unknown.
        source: Where the figures come from.
        compute_capability: As CUDA (or ROCm under its name) reports it, major and minor; it tells which number formats
            the device knows. None where unknown: the run asks the device itself.
    """

    name: str
    type: str
    match: tuple[str, ...] = ()
    unlike: tuple[str, ...] = ()
    peak_tflops: Mapping[str, float] = field(default_factory=dict)
    memory_gib: float | None = None
    source: str = ""
    compute_capability: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        """Refuse a device type that no process-group backend is known for."""
        if self.type not in ("cpu", "cuda"):
            raise ValueError(f"device {self.name}: type={self.type!r} is not known. Use 'cuda' or 'cpu'.")

    def is_matched_by(self, reported_name: str) -> bool:
        """True if the driver's name for a device belongs to this kind."""
        reported = reported_name.lower()
        if any(part.lower() in reported for part in self.unlike):
            return False
        return not self.match or any(part.lower() in reported for part in self.match)

    def peak_for(self, precision: str, reported_name: str) -> float | None:
        """Dense peak of the precision in TFLOP/s, or None where the device or its peak is not known."""
        # A profile that any device matches cannot vouch for the peak of the one that ran.
        return self.peak_tflops.get(precision) if self.match and self.is_matched_by(reported_name) else None
