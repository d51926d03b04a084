"""Records of one attempt: the attempt's key lies flat among the fields of the file."""

from __future__ import annotations

from typing import Any, Self

from sweep.core.attempts.attempt import AttemptKey
from sweep.core.encoding.plain import plain
from sweep.core.encoding.record import Record, RecordError, render


class AttemptRecord(Record):
    """Base of the files that name their attempt by ``cell_id``, ``repeat`` and ``attempt``."""

    __slots__ = ()
    key: AttemptKey

    def render(self) -> str:
        """Text of the file."""
        body = plain(self)
        return render(self.KIND, {**body.pop("key"), **body})

    @classmethod
    def parse(cls, text: str, *, expected: AttemptKey | None = None) -> Self:
        """Read the file back.

        Args:
            text: The file.
            expected: The attempt that it must be of; None: whichever it says.

        Raises:
            RecordError: If it is damaged, contradicts itself, or is of another attempt.
        """
        record = super().parse(text)
        if expected is not None and record.key != expected:
            raise RecordError(f"{cls.FILE} is that of attempt {record.key}, not of {expected}")
        return record

    @classmethod
    def upgraded(cls, data: dict[str, Any]) -> dict[str, Any]:
        """The object of the file with the key as one field."""
        return {**data, "key": {name: data.get(name) for name in ("cell_id", "repeat", "attempt")}}
