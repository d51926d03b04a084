"""Error files of ranks and of launchers."""

from __future__ import annotations

from sweep.core.attempts.attempt import RankError
from sweep.core.encoding.plain import plain
from sweep.core.encoding.record import parse_object, read_record, render

_KIND = "error"


def render_error(error: RankError, *, exception: str = "", traceback: str = "") -> str:
    """Text of an error file; ``exception`` is the class's qualified name."""
    return render(_KIND, {**plain(error), "exception": exception, "traceback": traceback})


def parse_error(text: str) -> RankError:
    """Read an error file.

    Raises:
        RecordError: If it is damaged.
    """
    return read_record(RankError, parse_object(text, _KIND), "an error file")
