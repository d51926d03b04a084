"""The events of a trace as the profiler writes them, and its decimal times as whole nanoseconds."""

from __future__ import annotations

from decimal import Decimal

import msgspec

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


class Arguments(msgspec.Struct, gc=False, frozen=True):
    """What an event says of a kernel, of its launch, or of a collective."""

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


_NO_ARGUMENTS = Arguments()
# Not strict: some versions write numbers as text.
_decode = msgspec.json.Decoder(Arguments, strict=False).decode


def arguments(event: Event) -> Arguments:
    """The arguments of an event.

    Raises:
        msgspec.MsgspecError: If one is of another type than the profiler writes.
    """
    return _decode(event.args) if event.args else _NO_ARGUMENTS


def nanoseconds(number: bytes) -> int:
    """A time in microseconds, as its decimal digits stand in the file, in whole nanoseconds.

    A float would lose digits: of 2**42 µs and more, which is 51 days, it holds no single nanosecond.

    Raises:
        ValueError: If it is no number.
    """
    text = bytes(number)
    try:
        # The two ways in which it writes them; digits of any other number end in the second attempt.
        return int(text[:-4] + text[-3:]) if text[-4:-3] == b"." else int(text) * 1000
    except ValueError:
        pass
    try:
        return int((Decimal(text.decode("ascii")) * 1000).to_integral_value())
    except (ArithmeticError, ValueError) as error:
        raise ValueError(f"{text.decode(errors='replace') or 'nothing'} is no time") from error
