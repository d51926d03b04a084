"""The text of a record: one JSON object with its kind and schema version, and the fields of a dataclass."""

from __future__ import annotations

import functools
import json
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any

from sweep.core.encoding.codec import convert_value

if TYPE_CHECKING:
    from collections.abc import Mapping

SCHEMA_VERSION = 1


class RecordError(ValueError):
    """A record cannot be used: unreadable, of another schema version, incomplete, or of another attempt."""


def parse_object(text: str, kind: str) -> dict[str, Any]:
    """A record's JSON object, its kind and schema version checked.

    Raises:
        RecordError: If it is no JSON object, or of another kind or version.
    """
    try:
        data = json.loads(text, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{kind} is not whole JSON ({error})") from error
    if not isinstance(data, dict):
        raise RecordError(f"{kind} is not a JSON object")
    if data.get("kind") != kind:
        raise RecordError(f"expected a record of kind {kind!r}, found {data.get('kind')!r}")
    if data.get("schema") != SCHEMA_VERSION:
        raise RecordError(
            f"{kind} has schema version {data.get('schema')!r}; this version reads {SCHEMA_VERSION}. "
            "Read it with the version that wrote it."
        )
    return data


def refuse_constant(word: str) -> None:
    """Raises ValueError: NaN and Infinity are no JSON."""
    raise ValueError(f"{word} is not a JSON number")


def read_fields(cls: type, data: Mapping[str, Any], file: str) -> dict[str, Any]:
    """The fields of a record as their types; one with a default may be missing, an unknown one is left aside.

    Raises:
        RecordError: If a field is missing or of the wrong type.
    """
    values = {}
    for item in _fields_of(cls):
        if item.name in data:
            try:
                values[item.name] = convert_value(cls, item.name, data[item.name], item.name)
            except ValueError as error:
                raise RecordError(f"{file} is damaged: {error}") from error
        elif item.default is MISSING and item.default_factory is MISSING:
            raise RecordError(f"{file} lacks {item.name!r}")
    return values


_fields_of = functools.cache(fields)


def with_key(data: Mapping[str, Any]) -> dict[str, Any]:
    """A record's fields with the key, which lies flat in its file, as one of them."""
    return {**data, "key": {name: data.get(name) for name in ("cell_id", "repeat", "attempt")}}


def render(kind: str, body: Mapping[str, object]) -> str:
    """A record as the text of its file: kind and schema version first, numbers finite."""
    return json.dumps({"schema": SCHEMA_VERSION, "kind": kind, **body}, indent=1, allow_nan=False) + "\n"
