"""The events of a trace as the profiler writes them, and its decimal times as whole nanoseconds.

Events come by the million, so times and arguments are read for many at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

import msgspec
import numpy as np

from analysis.trace.reading.intervals import Times

_NOTHING = msgspec.Raw()


class Event(msgspec.Struct, gc=False):
    """The parts of an event that are read; what few events need stays text until it is asked for."""

    cat: str = ""
    ph: str = ""
    name: str = ""
    ts: msgspec.Raw = _NOTHING
    dur: msgspec.Raw = _NOTHING
    tid: int | str = 0
    args: msgspec.Raw = _NOTHING


class EventArguments(msgspec.Struct, gc=False, frozen=True):
    """The arguments of a kernel, of its launch, or of a collective."""

    correlation: int | None = None
    stream: int | str | None = None
    device: int | str | None = None
    collective: str | None = msgspec.field(default=None, name="Collective name")
    group: str | None = msgspec.field(default=None, name="Process Group Name")
    description: str | None = msgspec.field(default=None, name="Process Group Description")
    ranks: str | None = msgspec.field(default=None, name="Process Group Ranks")
    size: int | None = msgspec.field(default=None, name="Group size")
    first_rank: int | None = msgspec.field(default=None, name="Global rank start")
    stride: int | None = msgspec.field(default=None, name="Global rank stride")
    sequence: int | None = msgspec.field(default=None, name="Seq")
    source: int | None = msgspec.field(default=None, name="Src Rank")
    target: int | None = msgspec.field(default=None, name="Dst Rank")
    elements_in: int | None = msgspec.field(default=None, name="In msg nelems")
    elements_out: int | None = msgspec.field(default=None, name="Out msg nelems")
    dtype: str | None = None


# Not strict: some versions write numbers as text.
_decode = msgspec.json.Decoder(list[EventArguments], strict=False).decode


def arguments(events: Sequence[Event]) -> list[EventArguments]:
    """The arguments of each event.

    Raises:
        msgspec.MsgspecError: If one is of another type than the profiler writes.
    """
    return _decode(b"[" + b",".join([event.args or b"{}" for event in events]) + b"]")


def start_times(events: Sequence[Event]) -> Times:
    """The start of each event in ns.

    Raises:
        ValueError: If one has none.
    """
    return _times([event.ts for event in events])


def intervals(events: Sequence[Event]) -> tuple[Times, Times]:
    """The start and the end of each event in ns.

    Raises:
        ValueError: If one has no start or duration, or a negative one.
    """
    starts, durations = start_times(events), _times([event.dur for event in events])
    if durations.min(initial=0) < 0:
        raise ValueError(f"a duration is {durations.min()} ns")
    return starts, starts + durations


def nanoseconds(number: bytes) -> int:
    """A time in microseconds, as its decimal digits stand in the file, in whole nanoseconds.

    A float would lose digits: of 2**43 µs and more, which is 101 days, it holds no single nanosecond.

    Raises:
        ValueError: If it is no number, or more than 64 bits of nanoseconds hold.
    """
    text = bytes(number)
    try:
        time_ns = int((Decimal(text.decode("ascii")) * 1000).to_integral_value())
    except (ArithmeticError, ValueError) as error:
        raise ValueError(f"{text.decode(errors='replace') or 'nothing'} is no time") from error
    if abs(time_ns) > _LAST_NS:
        raise ValueError(f"{text.decode()} µs are more than 64 bits of nanoseconds hold")
    return time_ns


_LAST_NS = 1 << 62
_MOST_DIGITS = 19


def _times(numbers: Sequence[bytes | msgspec.Raw]) -> Times:
    """Times as :func:`nanoseconds` reads them; all at once where all are written alike, as the profiler does."""
    found = _alike(b",".join(numbers), len(numbers))
    if found is None or found.max(initial=0) > _LAST_NS:
        found = np.array([nanoseconds(bytes(number)) for number in numbers], dtype=np.int64)
    return found


def _alike(text: bytes, count: int) -> Times | None:
    """Times with commas between: all of them whole µs, or all with three decimals; None for other ways of writing."""
    signs = np.frombuffer(text, dtype=np.uint8)
    commas, dots = np.flatnonzero(signs == ord(",")), np.flatnonzero(signs == ord("."))
    others = text.translate(None, b"0123456789")
    starts, ends = np.append(0, commas + 1), np.append(commas, len(text))
    lengths = ends - starts
    if len(lengths) != count or not count or lengths.min() < 1 or lengths.max() > _MOST_DIGITS + 1:
        return None
    if len(others) == len(commas) and lengths.max() < _MOST_DIGITS:
        found = np.fromstring(text, dtype=np.int64, sep=",")
        return found * 1000 if found.max() <= _LAST_NS // 1000 else None
    if len(others) == len(commas) + len(dots) and len(dots) == count and (dots == ends - 4).all():
        return np.fromstring(text.replace(b".", b""), dtype=np.int64, sep=",")
    return None
