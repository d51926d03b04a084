"""Dataclasses as plain values, which JSON can say."""

from __future__ import annotations

import dataclasses
import functools
import operator
import types
import typing
from collections.abc import Callable, Mapping, Sequence
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
