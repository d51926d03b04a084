"""Facts that change a number without being in the cell (versions, driver, device, sources), and their fingerprint."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path

import torch

import sweep.core
import trainer


def versions(driver: str | None) -> dict[str, str | None]:
    """Versions of the libraries that compute; None for one that is missing."""
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": _package("numpy"),
        "cuda": torch.version.cuda,
        "cudnn": _cudnn(),
        "nccl": _nccl(),
        "driver": driver,
        "torchao": _package("torchao"),
        "nvidia-ml-py": _package("nvidia-ml-py"),
    }


def _package(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _cudnn() -> str | None:
    found = torch.backends.cudnn.version() if torch.cuda.is_available() else None  # type: ignore[no-untyped-call]  # torch does not annotate it
    return None if found is None else str(found)


def _nccl() -> str | None:
    if not torch.cuda.is_available():
        return None
    return ".".join(str(part) for part in torch.cuda.nccl.version())  # type: ignore[no-untyped-call]  # torch does not annotate it


def source_hash() -> str:
    """Hash of the sources of the trainer and of ``sweep.core``, by content and relative name."""
    return hash_sources(Path(str(module.__file__)).parent for module in (trainer, sweep.core))


def hash_sources(folders: Iterable[Path]) -> str:
    """First 16 hex digits of SHA-256 over all Python files of the folders."""
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            digest.update(f"{folder.name}/{path.relative_to(folder).as_posix()}\0".encode())
            digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def fingerprint_fields(
    found: Mapping[str, str | None], *, device_name: str, sources: str, data: str | None, uses_torchao: bool
) -> dict[str, str | None]:
    """Collect the facts that a fingerprint covers.

    Args:
        found: Versions, by name.
        device_name: Name of the devices.
        sources: Hash of the trainer's sources.
        data: Hash of the token file (the cell has only its path); None for synthetic tokens.
        uses_torchao: True if torchao computes matrix products; else its version changes no number.
    """
    return {
        **{name: found.get(name) for name in ("torch", "cuda", "nccl", "driver")},
        "device_name": device_name,
        "trainer_source_hash": sources,
        "data": data,
        "torchao": found.get("torchao") if uses_torchao else None,
    }


def fingerprint(covered: Mapping[str, str | None]) -> str:
    """First 12 hex digits of SHA-256 over the sorted JSON of the covered facts."""
    return hashlib.sha256(json.dumps(covered, sort_keys=True).encode()).hexdigest()[:12]
