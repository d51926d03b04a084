"""Reports of two healthy nodes, as the probe writes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

GPU = "NVIDIA H100"
NODE: Mapping[str, Any] = {
    "host": "gpu1",
    "node_rank": 0,
    "time": 1001.0,
    "token": "t",
    "python": "3.11.9",
    "executable": "/env/bin/python",
    "safe_path": True,
    "cores": 64,
    "memory_bytes": 2**38,
    "memlock_bytes": None,
    "open_files": 4096,
    "file_system": "",
    "trainer": "/run/sources/trainer/__init__.py",
    "torch": "2.9.0",
    "devices": [GPU, GPU],
    "port": 20001,
    "port_free": True,
}
PEER = {
    **{key: value for key, value in NODE.items() if not key.startswith("port")},
    "host": "gpu2",
    "node_rank": 1,
    "head": "gpu1",
    "resolved": ["10.0.0.1"],
    "connected": True,
    "clock_offset_s": 0.001,
}
