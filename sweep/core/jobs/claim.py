"""Who has a submission: exactly one job runs it, or none once it was given back."""

from __future__ import annotations

import re
from dataclasses import asdict

from sweep.core.encoding.frozen import dataclass
from sweep.core.encoding.record import RecordError, parse_object, render
from sweep.core.records.layout import SUBMISSIONS_DIR

_KIND = "claim"


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """The first word on a submission, which stands (``submissions/<name>.claim``, see :mod:`sweep.launch.claim`).

    Attributes:
        job_id: The job that runs it, of an array the id that its tasks share; empty: it was given back before any job
            had begun, and none may begin.
        time: Unix time.
        host: Where it was written.
    """

    job_id: str
    time: float
    host: str

    def render(self) -> str:
        """Text of the file."""
        return render(_KIND, asdict(self))

    @classmethod
    def parse(cls, text: str) -> Claim:
        """Read the file back.

        Raises:
            RecordError: If it is damaged.
        """
        data = parse_object(text, _KIND)
        job_id, time, host = data.get("job_id"), data.get("time"), data.get("host")
        if not isinstance(job_id, str) or not isinstance(time, int | float) or not isinstance(host, str):
            raise RecordError("the claim is damaged")
        return cls(job_id=job_id, time=float(time), host=host)


def shared_id(job_id: str) -> str:
    """The id that all tasks of a submission share: 42 of 42_7, and of the local cluster's NAME.7 the name."""
    return re.sub(r"[_.]\d+$", "", job_id)


def claim_file(name: str) -> str:
    """Path of a submission's claim, relative to the run directory."""
    return f"{SUBMISSIONS_DIR}/{name}.claim"
