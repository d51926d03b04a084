"""Error files of ranks and of launchers."""

from __future__ import annotations

from dataclasses import asdict

from sweep.core.attempts.attempt import RankError
from sweep.core.encoding.record import parse_object, read_fields, render


def render_error(error: RankError, *, exception: str = "", traceback: str = "") -> str:
    """Text of an error file; ``exception`` is the class's qualified name."""
    return render("error", {**asdict(error), "exception": exception, "traceback": traceback})


def parse_error(text: str) -> RankError:
    """Read an error file back.

    Raises:
        RecordError: If it is damaged.
    """
    data = parse_object(text, "error")
    return RankError(**read_fields(RankError, {**data, "message": str(data.get("message", ""))}, "an error file"))
