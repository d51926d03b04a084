"""torch's flight recorder: saves the last collectives of each rank when communication fails.

Files ``flight-rank-R`` are in torch's format: ``torchfrtrace FOLDER -p flight-rank-`` names the rank that was missing.
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

# Number of collectives to record: several steps of a model of a hundred layers.
_N_ENTRIES = 2000


def enable(folder: Path, environ: MutableMapping[str, str]) -> None:
    """Switch the recorder on and send NCCL's own dumps into the folder; variables that the user has set stay.

    Call it before the process group is formed, which reads these variables.
    """
    prefix = str(folder.resolve() / FLIGHT_PREFIX)
    # Earlier versions of torch know the buffer by this other name; if the user has set it, it counts.
    if "TORCH_NCCL_TRACE_BUFFER_SIZE" not in environ:
        environ.setdefault("TORCH_FR_BUFFER_SIZE", str(_N_ENTRIES))
    # NCCL's watchdog dumps by itself if it notices first, and adds the rank to the file name.
    environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "1")
    environ.setdefault("TORCH_FR_DUMP_TEMP_FILE", prefix)


def dump(folder: Path, rank: int) -> Path | None:
    """Write this rank's record; return None if it is empty or torch was never imported."""
    if "torch" not in sys.modules:
        return None
    path = folder / f"{FLIGHT_PREFIX}{rank}"
    # An error here must not hide the error that the record explains.
    with contextlib.suppress(Exception):
        import torch.distributed

        from trainer.torch_private.training import recorded_collectives

        if torch.distributed.is_initialized() and (trace := recorded_collectives()):
            write_atomically(path, trace)
            return path
    return None
