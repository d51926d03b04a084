"""Who has a submission: exactly one job runs it, or none once it was given back."""

from __future__ import annotations

import re

from sweep.core.encoding.frozen import dataclass
from sweep.core.encoding.names import JobId, UnixTime
from sweep.core.encoding.record import Record
from sweep.core.records.layout import SUBMISSIONS_DIR


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim(Record):
    """The first word on a submission, which stands (``submissions/<name>.claim``, see :mod:`sweep.launch.claim`).

    Attributes:
        job_id: The job that runs it, of an array the id that its tasks share; empty: it was given back before any job
            had begun, and none may begin.
        time: Unix time.
        host: Where it was written.
    """

    KIND = "claim"
    FILE = "the claim"

    job_id: JobId
    time: UnixTime
    host: str


def shared_id(job_id: str) -> str:
    """The id that all tasks of a submission share: 42 of 42_7, and of the local cluster's NAME.7 the name."""
    return re.sub(r"[_.]\d+$", "", job_id)


def claim_file(name: str) -> str:
    """Path of a submission's claim, relative to the run directory."""
    return f"{SUBMISSIONS_DIR}/{name}.claim"
