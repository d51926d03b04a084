"""Dataclasses from plain values, every value checked against the type of its field.

One policy, whoever reads:

- A value of another type is refused: text is never split into a list, and a number is never read out of text. Only
  numbers are brought to the type of their field (``4`` for a float, ``4.0`` for a whole number). NaN and infinity are
  refused.
- A missing field is refused unless it has a default.
- An unknown field of a configuration is refused (:func:`build`): somebody mistyped it. An unknown field of a record is
  left aside (:func:`read`): a later version may have added it.

:mod:`sweep.core.encoding.record` adds what a record is as text: its kind and its schema version.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

from sweep.core.encoding.plain import for_optional, type_hints

_Built = typing.TypeVar("_Built")
_Convert = Callable[[Any], Any]
"""Checks a plain value and brings it to a type."""


class _RefusedError(ValueError):
    """A value is refused; the text begins with its place in the whole, as ``.pair[0]=1.5 is not a whole number``."""


def build(cls: type[_Built], data: Mapping[str, object], where: str) -> _Built:
    """A dataclass from a configuration, nested dataclasses, tuples and mappings included.

    Raises:
        ValueError: If a field is unknown, missing or of the wrong type; ``where`` opens the message.
    """
    return typing.cast("_Built", _convert(_reader_of(cls, True), data, where))


def read(cls: type[_Built], data: Mapping[str, object], where: str = "") -> _Built:
    """A dataclass from a record; as :func:`build`, but unknown fields are left aside.

    Raises:
        ValueError: If a field is missing or of the wrong type; ``where`` opens the message.
    """
    return typing.cast("_Built", _convert(_reader_of(cls, False), data, where))


def convert_value(owner: type, name: str, value: object, where: str) -> object:
    """A value from a configuration, brought to the type of a dataclass field.

    Raises:
        ValueError: If it is of another type; the message names the type, or the values that are allowed.
    """
    return _convert(_converters(owner, True)[name], value, where)


def _reader_of(cls: Any, is_strict: bool) -> _Convert:
    return _fields_reader(cls, is_strict)


def _convert(convert: _Convert, value: object, where: str) -> Any:
    try:
        return convert(value)
    except _RefusedError as refused:
        raise ValueError(f"{where}{refused}") from None


@functools.cache
def _converters(cls: Any, is_strict: bool) -> dict[str, _Convert]:
    return {item.name: _converter(type_hints(cls)[item.name], is_strict) for item in dataclasses.fields(cls)}


@functools.cache
def _fields_reader(cls: Any, is_strict: bool) -> _Convert:
    """Reads a mapping of plain values into the dataclass; made once for each class."""
    converters = _converters(cls, is_strict)
    required = [item.name for item in dataclasses.fields(cls) if has_no_default(item)]

    def read_fields(data: Any) -> Any:
        if type(data) is not dict and not isinstance(data, Mapping):
            raise _RefusedError(f"={_shown(data)} is not a mapping.")
        if is_strict and not converters.keys() >= data.keys():
            unknown = sorted(map(str, data.keys() - converters.keys()))
            raise _RefusedError(f" has the unknown field(s) {unknown}; known are {sorted(converters)}.")
        values = {}
        name = ""
        try:
            for name, convert in converters.items():
                if name in data:
                    values[name] = convert(data[name])
        except _RefusedError as refused:
            raise _RefusedError(f".{name}{refused}") from None
        for name in required:
            if name not in values:
                raise _RefusedError(f": lacks {name!r}.")
        return cls(**values)

    return read_fields


def has_no_default(item: dataclasses.Field[Any]) -> bool:
    """True if a value must be given."""
    return item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING


def _converter(hint: Any, is_strict: bool) -> _Convert:
    """Checks a value of this type; made once for each field."""
    if hint in (object, Any):
        return _anything
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _checked(_converter(arguments[0], is_strict), arguments[1])
    if origin in (typing.Union, types.UnionType):
        return _union(arguments, is_strict)
    if origin is tuple:
        length = None if arguments[-1] is Ellipsis else len(arguments)
        return _tuple([_converter(item, is_strict) for item in arguments if item is not Ellipsis], length)
    if origin is Mapping:
        return _mapping(*(_converter(item, is_strict) for item in arguments))
    if dataclasses.is_dataclass(hint):
        return _nested(_reader_of(hint, is_strict))
    return _enum(hint) if issubclass(hint, StrEnum) else _scalar(hint)


def _checked(convert: _Convert, check: Any) -> _Convert:
    """Converts, and refuses what a type of :mod:`sweep.core.encoding.names` does not allow."""

    def convert_and_check(value: Any) -> Any:
        found = convert(value)
        if not check.holds(found):
            raise _RefusedError(f"={_shown(value)} is not {check.meaning}.")
        return found

    return convert_and_check


_DEEPEST = 50


def _anything(value: Any, depth: int = 0) -> Any:
    """A value of any type; numbers that are not finite and values too deep to be written again are refused."""
    if depth > _DEEPEST or (type(value) is float and not math.isfinite(value)):
        raise _RefusedError(f"={_shown(value)} is not finite, or nested too deep.")
    for item in value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ():
        _anything(item, depth + 1)
    return value


def _union(arguments: tuple[Any, ...], is_strict: bool) -> _Convert:
    options = tuple(option for option in arguments if option is not type(None))
    if len(options) == 1:
        only = _converter(options[0], is_strict)
        return for_optional(only) if len(arguments) == 2 else only
    name = " or ".join(_NAMES.get(item, item.__name__) for item in options)

    def convert(value: Any) -> Any:
        is_number = type(value) in (int, float)
        if type(value) in arguments and (not is_number or -_LARGEST_INT <= value <= _LARGEST_INT):
            return value
        raise _RefusedError(f"={_shown(value)} is not {name}.")

    return convert


def _tuple(converters: list[_Convert], length: int | None) -> _Convert:
    def convert(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple):
            raise _RefusedError(f"={_shown(value)} is not a list. Write it in brackets: [...].")
        if length not in (None, len(value)):
            raise _RefusedError(f"={_shown(value)} does not have {length} values.")
        each = converters * len(value) if length is None else converters
        found: list[Any] = []
        try:
            for one, item in zip(each, value, strict=True):
                found.append(one(item))
        except _RefusedError as refused:
            raise _RefusedError(f"[{len(found)}]{refused}") from None
        return tuple(found)

    return convert


def _mapping(name_of: _Convert, value_of: _Convert) -> _Convert:
    def convert(value: Any) -> dict[Any, Any]:
        if not isinstance(value, Mapping):
            raise _RefusedError(f"={_shown(value)} is not a mapping. Write it as name: value.")
        found = {}
        name = ""
        try:
            for name, item in value.items():
                # YAML has names that are numbers: {1: x}.
                found[name_of(str(name))] = value_of(item)
        except _RefusedError as refused:
            raise _RefusedError(f".{name}{refused}") from None
        return found

    return convert


_SCALARS = frozenset({str, int, float, bool, type(None)})


def _nested(read_fields: _Convert) -> _Convert:
    """Reads a nested dataclass; parts of 100,000 cells recur, and each is made once."""

    @functools.lru_cache(maxsize=4096)
    def once(items: tuple[tuple[str, object], ...], kinds: tuple[type, ...]) -> Any:
        return read_fields(dict(items))

    def convert(value: Any) -> Any:
        if isinstance(value, Mapping):
            # The types are asked for too: 1, 1.0 and True are equal, yet not all valid.
            kinds = tuple(map(type, value.values()))
            if _SCALARS.issuperset(kinds):
                return once(tuple(value.items()), kinds)
        return read_fields(value)

    return convert


def _enum(hint: type[StrEnum]) -> _Convert:
    members: Mapping[object, StrEnum] = {member.value: member for member in hint}

    def convert(value: Any) -> StrEnum:
        try:
            return members[value]
        except (KeyError, TypeError):
            raise _RefusedError(f"={_shown(value)} is not one of {', '.join(hint)}.") from None

    return convert


_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def _scalar(hint: type) -> _Convert:
    if hint is float:
        return _float
    name, is_int = _NAMES.get(hint, hint.__name__), hint is int

    def convert(value: Any) -> Any:
        if type(value) is hint and not (is_int and abs(typing.cast("int", value)) > _LARGEST_INT):
            return value
        if is_int and type(value) is float and value.is_integer() and abs(value) < _LARGEST_INT:
            return int(value)
        raise _RefusedError(f"={_shown(value)} is not {name}.")

    return convert


def _float(value: Any) -> float:
    if type(value) is float and -math.inf < value < math.inf:
        return value
    if type(value) is int and abs(value) < _LARGEST_FLOAT:
        return float(value)
    raise _RefusedError(f"={_shown(value)} is not a {'finite ' if type(value) in (int, float) else ''}number.")


_LARGEST_FLOAT = 2**1023
_LARGEST_INT = 2**63 - 1
_LONGEST_SHOWN = 200


def _shown(value: object) -> str:
    """A value for a message, cut where it is long."""
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."
