"""Dataclasses as plain values, which JSON can say, and as the canonical text on which identities rest."""

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

_Convert = Callable[[Any], Any]


def plain(part: Any) -> dict[str, Any]:
    """Every field of a dataclass as plain values; :func:`sweep.core.encoding.codec.build` is the inverse."""
    reader, names, nested = _plain_fields(part.__class__)
    data = dict(zip(names, reader(part), strict=True))
    for name, convert in nested:
        data[name] = convert(data[name])
    return data


@functools.cache
def _plain_fields(cls: Any) -> tuple[Callable[[Any], tuple[Any, ...]], list[str], list[tuple[str, _Convert]]]:
    names = [item.name for item in dataclasses.fields(cls)]
    found = ((name, _plain_converter(type_hints(cls)[name])) for name in names)
    return attribute_reader(names), names, [(name, convert) for name, convert in found if convert is not None]


def _plain_converter(hint: Any) -> _Convert | None:
    """Makes a value of this type plain; None where it is so already."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        found = next(filter(None, map(_plain_converter, arguments)), None)
        return None if found is None else for_optional(found)
    if origin is tuple:
        item = _plain_converter(arguments[0])
        return None if item is None else lambda value: tuple(map(item, value))
    if origin is Mapping:
        found = _plain_converter(arguments[1])
        if found is None:
            return lambda value: {str(name): item for name, item in value.items()}
        return lambda value: {str(name): found(item) for name, item in value.items()}
    return plain if dataclasses.is_dataclass(hint) else None


def attribute_reader(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    """A function that reads several attributes at once; attrgetter alone gives no tuple for a single one."""
    read_all = operator.attrgetter(*names)
    return read_all if len(names) > 1 else lambda part: (read_all(part),)


@functools.cache
def type_hints(cls: type) -> dict[str, Any]:
    """The types of a dataclass's fields."""
    # Modules that name Mapping in annotations only import it for the type checker.
    return typing.get_type_hints(cls, localns={"Mapping": Mapping}, include_extras=True)


def for_optional(convert: _Convert) -> _Convert:
    """The conversion for a value that may be None."""
    return lambda value: None if value is None else convert(value)


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
        pieces.append(_Pieces(item.name, _writer(type_hints(cls)[item.name]), made))
    return attribute_reader([item.name for item in found]), tuple(pieces)


def _writer(hint: Any) -> Callable[[Any], str]:
    """The function that turns a value of this type into canonical JSON."""
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
