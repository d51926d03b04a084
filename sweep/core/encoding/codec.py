"""Frozen dataclasses as plain values and as canonical text, and back again with every value checked."""

from __future__ import annotations

import dataclasses
import functools
import json
import operator
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any

_Built = typing.TypeVar("_Built")
_Convert = Callable[[object, str], object]
"""Checks a value and brings it to a type; the text says where it stands, for the message."""


def build(cls: type[_Built], data: Mapping[str, object], where: str) -> _Built:
    """An instance of a dataclass from plain values, nested dataclasses, tuples and mappings included.

    Raises:
        ValueError: If a field is unknown, missing or of the wrong type; ``where`` opens the message.
    """
    return typing.cast("_Built", _build(cls, data, where))


def convert_value(owner: type, name: str, value: object, where: str) -> object:
    """A value from outside, checked and normalised to the type of a dataclass field.

    Raises:
        ValueError: If it is of another type; the message names the type, or the values that are allowed.
    """
    return _converters(owner)[name](value, where)


def canonical(part: Any) -> str:
    """A dataclass as sorted, compact JSON without the fields that are at their default.

    Values are written as their field's type, so that 1 and 1.0, which are equal, give one text.
    """
    read, pieces = _canonical_fields(part.__class__)
    return "{" + ",".join(filter(None, map(operator.getitem, pieces, read(part)))) + "}"


class _Pieces(dict[Any, str]):
    """A field's piece of the canonical text by its value: empty for the default.

    Values recur (a grid of 100,000 cells has few models, layouts and degrees), so each piece is made once. Values that
    are equal share one, whatever their type: they are written as the field's.
    """

    def __init__(self, name: str, write: Callable[[Any], str], default: object) -> None:
        super().__init__()
        self._start = f'"{name}":'
        self._write = write
        self._default = None if default is dataclasses.MISSING else write(default)

    def __missing__(self, value: Any) -> str:
        if len(self) >= _MOST_PIECES:
            self.clear()
        text = self._write(value)
        self[value] = piece = "" if text == self._default else self._start + text
        return piece


_MOST_PIECES = 65536


@functools.cache
def _canonical_fields(cls: Any) -> tuple[Callable[[Any], tuple[Any, ...]], tuple[_Pieces, ...]]:
    """How to read the fields of a dataclass in sorted order, and the pieces of each."""
    found = sorted(dataclasses.fields(cls), key=lambda item: item.name)
    pieces = []
    for item in found:
        made = item.default_factory() if item.default_factory is not dataclasses.MISSING else item.default
        pieces.append(_Pieces(item.name, _writer(_hints(cls)[item.name]), made))
    return _reader([item.name for item in found]), tuple(pieces)


def _writer(hint: Any) -> Callable[[Any], str]:
    """What turns a value of this type into canonical JSON."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        (option,) = [option for option in typing.get_args(hint) if option is not type(None)]
        write = _writer(option)
        return lambda value: "null" if value is None else write(value)
    if dataclasses.is_dataclass(hint):
        return canonical
    if issubclass(hint, StrEnum):
        return {member: json.dumps(member) for member in hint}.__getitem__
    return _WRITERS[hint]


_WRITERS: Mapping[type, Callable[[Any], str]] = {
    bool: lambda value: "true" if value else "false",
    int: int.__repr__,
    # + 0.0: minus zero equals zero.
    float: lambda value: float.__repr__(float(value) + 0.0),
    str: json.encoder.encode_basestring_ascii,
}


def plain(part: Any) -> dict[str, Any]:
    """Every field of a dataclass, nested ones too, as plain values; tuples and mappings as they are."""
    read, names, nested = _plain_fields(part.__class__)
    data = dict(zip(names, read(part), strict=True))
    for name in nested:
        data[name] = plain(data[name])
    return data


@functools.cache
def _plain_fields(cls: Any) -> tuple[Callable[[Any], tuple[Any, ...]], tuple[str, ...], tuple[str, ...]]:
    names = tuple(item.name for item in dataclasses.fields(cls))
    nested = tuple(name for name in names if dataclasses.is_dataclass(_hints(cls)[name]))
    return _reader(names), names, nested


def _reader(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    """What reads several attributes at once; attrgetter alone gives no tuple for a single one."""
    read = operator.attrgetter(*names)
    return read if len(names) > 1 else lambda part: (read(part),)


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    # Modules that name Mapping in annotations only import it for the type checker.
    return typing.get_type_hints(cls, localns={"Mapping": Mapping})


@functools.cache
def _converters(cls: Any) -> dict[str, _Convert]:
    return {item.name: _converter(_hints(cls)[item.name]) for item in dataclasses.fields(cls)}


def _build(cls: Any, data: object, where: str) -> object:
    if not isinstance(data, Mapping):
        raise ValueError(f"{where}={data!r} is not a mapping.")
    converters = _converters(cls)
    unknown = sorted(map(str, data.keys() - converters.keys()))
    if unknown:
        raise ValueError(f"{where} has the unknown field(s) {unknown}; known are {sorted(converters)}.")
    values = {name: converters[name](value, f"{where}.{name}") for name, value in data.items()}
    try:
        return cls(**values)
    except TypeError as error:
        raise ValueError(f"{where}: {error}") from error


def _converter(hint: Any) -> _Convert:
    """What checks a value of this type; made once for each field."""
    if hint in (object, Any):
        return lambda value, where: value
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _either([option for option in arguments if option is not type(None)], type(None) in arguments)
    if origin is tuple:
        return _tuple(arguments)
    if origin is Mapping:
        return _mapping(_converter(arguments[1]))
    if dataclasses.is_dataclass(hint):
        return _nested(hint)
    return _enum(hint) if issubclass(hint, StrEnum) else _scalar(hint)


def _either(options: list[Any], is_optional: bool) -> _Convert:
    if len(options) == 1:
        only = _converter(options[0])
        return lambda value, where: None if value is None and is_optional else only(value, where)
    words = " or ".join(_WORDS.get(item, item.__name__) for item in options)

    def convert(value: object, where: str) -> object:
        if type(value) in options or (value is None and is_optional):
            return value
        raise ValueError(f"{where}={value!r} is not {words}.")

    return convert


def _tuple(items: tuple[Any, ...]) -> _Convert:
    converters = [_converter(item) for item in items if item is not Ellipsis]
    length = None if items[-1] is Ellipsis else len(items)

    def convert(value: object, where: str) -> object:
        if not isinstance(value, list | tuple):
            raise ValueError(f"{where}={value!r} is not a list. Write it in brackets: [...].")
        if length not in (None, len(value)):
            raise ValueError(f"{where}={value!r} does not have {length} values.")
        each = converters * len(value) if length is None else converters
        return tuple(one(item, f"{where}[{at}]") for at, (one, item) in enumerate(zip(each, value, strict=True)))

    return convert


def _mapping(each: _Convert) -> _Convert:
    def convert(value: object, where: str) -> object:
        if not isinstance(value, Mapping):
            raise ValueError(f"{where}={value!r} is not a mapping. Write it as name: value.")
        return {str(name): each(item, f"{where}.{name}") for name, item in value.items()}

    return convert


def _nested(cls: Any) -> _Convert:
    @functools.lru_cache(maxsize=4096)
    def once(items: tuple[tuple[str, object], ...], kinds: tuple[type, ...], where: str) -> object:
        return _build(cls, dict(items), where)

    def convert(value: object, where: str) -> object:
        try:
            # Parts of 100,000 cells recur. Their types are asked for too: 1, 1.0 and True are equal, yet not all valid.
            items = tuple(value.items()) if isinstance(value, Mapping) else None
            return _build(cls, value, where) if items is None else once(items, tuple(type(i[1]) for i in items), where)
        except TypeError:
            return _build(cls, value, where)  # it holds a list or a mapping

    return convert


def _enum(hint: type[StrEnum]) -> _Convert:
    members: Mapping[object, StrEnum] = {member.value: member for member in hint}

    def convert(value: object, where: str) -> object:
        try:
            return members[value]
        except (KeyError, TypeError):
            raise ValueError(f"{where}={value!r} is not one of {', '.join(hint)}.") from None

    return convert


_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def _scalar(hint: type) -> _Convert:
    words = _WORDS.get(hint, hint.__name__)

    def convert(value: object, where: str) -> object:
        if type(value) is hint:
            return value
        if hint is float and type(value) is int:
            return float(value)
        if hint is int and type(value) is float and value.is_integer():
            return int(value)
        raise ValueError(f"{where}={value!r} is not {words}.")

    return convert
