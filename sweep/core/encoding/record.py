"""Records: dataclasses as text, with their kind and their schema version.

A file states its ``kind`` and the version of its ``schema``; a line of a file states its version as ``v``. Any other
version than ours is refused. Some records were first written without kind and version: they may lack both
(:attr:`Record.MAY_BE_BARE`) and then count as version 1. :mod:`sweep.core.encoding.codec` treats wrong types and
missing or unknown fields.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, ClassVar, NoReturn, Self, TypeVar

from sweep.core.encoding.codec import read
from sweep.core.encoding.plain import plain

SCHEMA_VERSION = 1
_BLANKS = " \t\n\r"
"""White space that JSON allows around a value."""
_Read = TypeVar("_Read")


class RecordError(ValueError):
    """A record cannot be used: unreadable, of another schema version, incomplete, or of another attempt."""


class Record:
    """Base of a frozen dataclass that is a file of its own.

    Subclasses state their kind, the file's name for messages, and what their fields must hold together.
    """

    __slots__ = ()
    KIND: ClassVar[str]
    FILE: ClassVar[str]
    MAY_BE_BARE: ClassVar[bool] = False
    """True if versions before wrote the file without kind and schema version."""

    def render(self) -> str:
        """Text of the file."""
        return render(self.KIND, plain(self))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the file back.

        Raises:
            RecordError: If it is damaged, of another kind or schema version, or contradicts itself.
        """
        data = parse_object(text, cls.KIND, may_be_bare=cls.MAY_BE_BARE)
        record = read_record(cls, cls.upgraded(data), cls.FILE)
        record.check()
        return record

    @classmethod
    def upgraded(cls, data: dict[str, Any]) -> dict[str, Any]:
        """The object of the file in the form of the dataclass: files of earlier versions may differ from it."""
        return data

    def check(self) -> None:
        """Refuse values that contradict each other.

        Raises:
            RecordError: If they do.
        """


def render(kind: str, body: Mapping[str, object]) -> str:
    """A record as the text of its file: kind and schema version first, numbers finite."""
    return json.dumps({"schema": SCHEMA_VERSION, "kind": kind, **body}, indent=1, allow_nan=False) + "\n"


def parse_object(text: str, kind: str, *, may_be_bare: bool = False) -> dict[str, Any]:
    """A record's JSON object, its kind and schema version checked.

    Raises:
        RecordError: If it is no JSON object, or of another kind or version.
    """
    data = parse_json(text, kind)
    if may_be_bare and not data.keys() & {"schema", "kind"}:
        return data
    if data.get("kind") != kind:
        raise RecordError(f"expected a record of kind {kind!r}, found {data.get('kind')!r}")
    if data.get("schema") != SCHEMA_VERSION:
        raise RecordError(
            f"{kind} has schema version {data.get('schema')!r}; this version reads {SCHEMA_VERSION}. "
            "Read it with the version that wrote it."
        )
    return data


def parse_json(text: str, name: str) -> dict[str, Any]:
    """One JSON object, of which ``name`` is what messages call it.

    Raises:
        RecordError: If it is none.
    """
    text = text.lstrip(_BLANKS)
    try:
        # raw_decode: json.loads looks at every line three more times, and a ledger may have a million of them.
        data, end = _DECODER.raw_decode(text)
        if end != len(text) and text[end:].strip(_BLANKS):
            raise json.JSONDecodeError("Extra data", text, end)
        if _SURROGATE.search(text):
            _refuse_lone_surrogates(data)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{name} is not whole JSON ({error})") from error
    if type(data) is not dict:
        raise RecordError(f"{name} is not a JSON object")
    return data


_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def _refuse_lone_surrogates(data: object) -> None:
    """Refuse text with half a letter (a lone surrogate): it can be neither printed nor written."""
    json.dumps(data, ensure_ascii=False).encode()


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a JSON number")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def read_record(cls: type[_Read], data: Mapping[str, object], name: str) -> _Read:
    """A dataclass from a record's object, of which ``name`` is what messages call it.

    Raises:
        RecordError: If a field is missing, of the wrong type, or has a value that the class refuses.
    """
    try:
        return read(cls, data)
    except (ValueError, ArithmeticError, RecursionError) as error:
        raise RecordError(f"{name} is damaged: {str(error).lstrip('.: ')}") from error


def render_line(body: Mapping[str, object], *, version: int | None = SCHEMA_VERSION) -> str:
    """A record as one line of JSON, without its end; ``version`` None leaves the version out."""
    return json.dumps(body if version is None else {"v": version, **body}, allow_nan=False)


def parse_line(text: str, name: str, *, may_be_bare: bool = True) -> dict[str, Any]:
    """The JSON object of a line, its version checked.

    Raises:
        RecordError: If it is no JSON object, or of another version.
    """
    data = parse_json(text, name)
    version = data.get("v", SCHEMA_VERSION if may_be_bare else None)
    if version != SCHEMA_VERSION:
        raise RecordError(f"{name} has version {version!r}; this version reads {SCHEMA_VERSION}.")
    return data
