"""Types for the fields of records that name a file, a folder, a job or a machine, or a time; the codec checks them.

A run directory may come from a stranger, and what its records name is opened, written or ended.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Annotated

LATEST_TIME = 253402300800.0
"""Unix time of the year 10000, which no calendar shows."""


class Pattern:
    """Text that fits a regular expression, and what that is in words."""

    def __init__(self, pattern: str, meaning: str) -> None:
        self.pattern = pattern
        self.meaning = meaning

    @functools.cached_property
    def match(self) -> Callable[[str], object]:
        """Matches the whole text; compiled where it is first used, which a plan need not wait for."""
        return re.compile(self.pattern).fullmatch

    def holds(self, value: str) -> bool:
        """True if the whole text fits."""
        return self.match(value) is not None


class TimeRange:
    """Times that a calendar can show."""

    meaning = "a Unix time before the year 10000"

    def holds(self, value: float) -> bool:
        """True if it is one."""
        return 0.0 <= value < LATEST_TIME


TIME_RANGE = TimeRange()
CELL_ID = Pattern(r"[A-Za-z0-9_-]{1,64}", "a cell id")
JOB_NAME = Pattern(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}", "a name of letters, digits, '_', '.' and '-'")
FILE_NAME = Pattern(r"[^\x00-\x1f\x7f/\\.][^\x00-\x1f\x7f/\\]{0,199}", "a name that a file can have")

CellId = Annotated[str, CELL_ID]
CellIdIfKnown = Annotated[str, Pattern(rf"(?:{CELL_ID.pattern})?", "a cell id, or empty")]
FileName = Annotated[str, FILE_NAME]
SubmissionName = Annotated[str, JOB_NAME]
JobId = Annotated[str, Pattern(r"(?:[A-Za-z0-9_][A-Za-z0-9_.+-]{0,159})?", "a job id")]
NodeName = Annotated[str, Pattern(r"[A-Za-z0-9_][A-Za-z0-9_.:%-]{0,254}", "the name of a node")]
Marker = Annotated[str, Pattern(r"[0-9a-f]{16}", "a mark of 16 hexadecimal digits")]
RelativePath = Annotated[
    str, Pattern(r"(?!.*(?:^|/)\.\.(?:/|$))[^/\x00-\x1f\x7f][^\x00-\x1f\x7f]{0,1023}", "a path below the run directory")
]
UnixTime = Annotated[float, TIME_RANGE]
