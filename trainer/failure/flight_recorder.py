"""torch's flight recorder: the last collectives of each rank, kept with the attempt when communication fails.

Files ``flight-rank-R`` are in torch's own format: ``torchfrtrace FOLDER -p flight-rank-`` says which rank was missing.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from sweep.core.records.layout import FLIGHT_PREFIX
from sweep.files import write_atomically

if TYPE_CHECKING:
    from collections.abc import MutableMapping
    from pathlib import Path

# Collectives that are remembered: several steps of a model of a hundred layers.
_N_ENTRIES = 2000


def prepare(folder: Path, environ: MutableMapping[str, str]) -> None:
    """Switch the recorder on and send NCCL's own dumps into the folder; before the process group, which reads this.

    What the user has set stays.
    """
    prefix = str(folder.resolve() / FLIGHT_PREFIX)
    # Earlier versions of torch know the buffer by another name only; whoever gave that one is heard.
    if "TORCH_NCCL_TRACE_BUFFER_SIZE" not in environ:
        environ.setdefault("TORCH_FR_BUFFER_SIZE", str(_N_ENTRIES))
    # NCCL's watchdog dumps by itself where it is sooner than the trainer's, and adds the rank to the name.
    environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "1")
    environ.setdefault("TORCH_FR_DUMP_TEMP_FILE", prefix)


def dump(folder: Path, rank: int) -> Path | None:
    """Write what this rank's recorder holds; None where it holds nothing, or torch was never imported."""
    if "torch" not in sys.modules:
        return None
    path = folder / f"{FLIGHT_PREFIX}{rank}"
    # Whatever goes wrong here must not hide the error that it is to explain.
    with contextlib.suppress(Exception):
        trace = _trace()
        if trace:
            write_atomically(path, trace)
            return path
    return None


def _trace() -> bytes | None:
    import torch.distributed

    from trainer.torch_private.training import recorded_collectives

    return recorded_collectives() if torch.distributed.is_initialized() else None
