"""``dataclass`` for frozen classes: the standard decorator, made in a third of its time.

The standard one compiles seven functions for each such class, one after the other, and that was most of the time that
``plan`` took to import our modules (docs/adr/0021). This one compiles three of them at once, and all classes share the
rest. Type checkers see the standard decorator; ``dataclasses.fields``, ``replace`` and ``asdict`` work as ever.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import dataclass as dataclass
else:

    def dataclass(*, frozen: bool, kw_only: bool, slots: bool, eq: bool = True) -> Callable[[type], type]:
        """As :func:`dataclasses.dataclass`; ``frozen``, ``kw_only`` and ``slots`` must be true."""
        if not (frozen and kw_only and slots):
            raise TypeError("this decorator is for frozen=True, kw_only=True, slots=True; use dataclasses.dataclass.")
        return partial(_dataclass, eq=eq)


def _dataclass(plain: type, *, eq: bool) -> Any:
    cls: Any = dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=True, slots=True)(plain)
    names: dict[str, Any] = {"_set": object.__setattr__, "_MISSING": dataclasses.MISSING}
    made: dict[str, Any] = {}
    source = [_init_source(cls, names), *(_comparison_sources(cls) if eq else ())]
    exec("\n".join(source), names, made)
    made["__init__"].__annotations__ = {item.name: item.type for item in dataclasses.fields(cls)}
    for name, method in made.items():
        method.__qualname__ = f"{plain.__qualname__}.{name}"
    for name, method in {**made, **_SHARED}.items():
        setattr(cls, name, method)
    cls.__dataclass_params__.frozen, cls.__dataclass_params__.eq = True, eq
    return cls


def _init_source(cls: Any, names: dict[str, Any]) -> str:
    """The source of ``__init__``; the defaults and factories that it refers to are added to ``names``."""
    parameters, lines = [], []
    for item in dataclasses.fields(cls):
        default, value = "", item.name
        if item.default is not dataclasses.MISSING:
            names[f"_default_{item.name}"] = item.default
            default = f"=_default_{item.name}"
        elif item.default_factory is not dataclasses.MISSING:
            names[f"_make_{item.name}"] = item.default_factory
            default, value = "=_MISSING", f"_make_{item.name}() if {item.name} is _MISSING else {item.name}"
        parameters.append(f"{item.name}{default}")
        lines.append(f" _set(self, {item.name!r}, {value})")
    if hasattr(cls, "__post_init__"):
        lines.append(" self.__post_init__()")
    return "\n".join([f"def __init__(self, *, {', '.join(parameters)}):", *lines])


def _comparison_sources(cls: Any) -> tuple[str, str]:
    compared = [item.name for item in dataclasses.fields(cls) if item.compare]
    own, other = ("".join(f"{owner}.{name}," for name in compared) for owner in ("self", "other"))
    return (
        "def __eq__(self, other):\n"
        f" return ({own}) == ({other}) if self.__class__ is other.__class__ else NotImplemented",
        f"def __hash__(self):\n return hash(({own}))",
    )


def _repr(self: Any) -> str:
    shown = ", ".join(f"{item.name}={getattr(self, item.name)!r}" for item in dataclasses.fields(self) if item.repr)
    return f"{self.__class__.__qualname__}({shown})"


def _refuse_to_set(self: object, name: str, value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(self: object, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _getstate(self: Any) -> list[object]:
    return [getattr(self, item.name) for item in dataclasses.fields(self)]


def _setstate(self: Any, state: list[object]) -> None:
    for item, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, item.name, value)


_SHARED: dict[str, Callable[..., Any]] = {
    "__repr__": _repr,
    "__setattr__": _refuse_to_set,
    "__delattr__": _refuse_to_delete,
    # Pickled and copied by their fields: the usual way assigns to them.
    "__getstate__": _getstate,
    "__setstate__": _setstate,
}
