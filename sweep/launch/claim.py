"""Claims a submission: a file made exactly once, by the job that begins it or by the process that withdraws it."""

from __future__ import annotations

import time
from pathlib import Path

from sweep.core.jobs.submission import Claim
from sweep.files import create_atomically, read_text

_TRIES, _PAUSE_S = 10, 0.2


def take(path: Path, claim: Claim) -> Claim:
    """Claim a submission unless it is claimed; returns the claim that holds, this one or an earlier one.

    The file is written beside its place and then linked there. So it is whole from the first moment, and exactly one of
    several processes succeeds, on NFS too, where an exclusive create may not be exclusive.

    Raises:
        OSError: If it can be neither written nor read.
        RecordError: If the earlier claim is damaged.
    """
    for _ in range(_TRIES):
        held = read(path)
        if held is not None:
            return held
        if create_atomically(path, claim.render()):
            return claim
        # A client that remembers that there was no such file forgets it in a moment.
        time.sleep(_PAUSE_S)
    raise FileNotFoundError(f"{path} is there, and cannot be read")


def read(path: Path) -> Claim | None:
    """The claim on a submission; None where there is none.

    Raises:
        OSError: If it cannot be read.
        RecordError: If it is damaged.
    """
    try:
        return Claim.parse(read_text(path))
    except FileNotFoundError:
        return None
