"""Chooses what goes into a job: its code's files, and the environment variables that are kept or scrubbed."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from pathlib import PurePath

from sweep.core.jobs.secrets import REDACTED, SOUNDS_SECRET, SecretFinder, is_secret

_RELEVANT = re.compile(
    r"^(NCCL|RCCL|GLOO|CUDA|TORCH|PYTORCH|TORCHINDUCTOR|OMP|MKL|KMP|GOMP|OPENBLAS|SLURM|UCX|FI|NVTE|HSA|HIP|ROCR|SWEEP)_"
    r"|^(MASTER_ADDR|MASTER_PORT|WORLD_SIZE|RANK|LOCAL_RANK|LD_PRELOAD|PYTHONSAFEPATH|PYTHONPATH)$"
)
# A job started inside another job inherits its binding: SLURM_CPU_BIND alone has made runs three times slower.
_INHERITED = re.compile(
    r"^(SLURM|SLURMD|SBATCH|SRUN|SALLOC|PMIX|PMI|OMPI|TORCHELASTIC)_|^(MASTER_ADDR|MASTER_PORT|RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE"
    r"|GROUP_RANK|ROLE_RANK|ROLE_WORLD_SIZE|NODE_RANK)$"
)
_KEPT_OF_INHERITED = ("SLURM_CONF",)


def relevant(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that can change a number, sorted by name; what is named like a secret, or is one, is redacted."""
    secrets = SecretFinder(environ)
    return {
        name: REDACTED if SOUNDS_SECRET.search(name) or is_secret(name) else secrets.redacted(value)
        for name, value in sorted(environ.items())
        if _RELEVANT.search(name)
    }


def scrubbed(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without what an enclosing job or torchrun left in it; ``SLURM_CONF`` stays."""
    return {name: value for name, value in environ.items() if not _INHERITED.search(name) or name in _KEPT_OF_INHERITED}


SOURCE_PACKAGES = ("sweep", "trainer", "analysis")
_SUFFIXES = (".py", ".yaml")


def is_source(path: PurePath) -> bool:
    """True if a file of one of the packages is part of the code: modules and configuration, nothing compiled."""
    return path.suffix in _SUFFIXES and "__pycache__" not in path.parts


def hash_sources(files: Iterable[tuple[str, bytes]]) -> str:
    """First 16 hex digits of SHA-256 over names and contents, whatever the order in which they come.

    Args:
        files: Path relative to the folder that holds the packages, with ``/``, and content of every source.
    """
    total = hashlib.sha256()
    for name, content in sorted(files):
        total.update(f"{name}\0{len(content)}\0".encode())
        total.update(content)
    return total.hexdigest()[:16]
