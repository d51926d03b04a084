"""The device: clocks, placement, NCCL, telemetry and versions."""
