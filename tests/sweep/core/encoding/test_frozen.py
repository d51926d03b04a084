"""The project's ``dataclass`` does what the standard one does, in less time."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from typing import TYPE_CHECKING, Any

import pytest

from sweep.core.encoding import frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class _Plain:
    """A class as it is written down, before any decorator."""

    name: str
    count: int = 1
    sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    note: str = dataclasses.field(default="", compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError("count is negative")


def _decorated(decorator: Callable[..., Any]) -> Any:
    plain = type("Example", (), {**_Plain.__dict__, "__qualname__": "Example"})
    return decorator(frozen=True, kw_only=True, slots=True)(plain)


OURS, STANDARD = _decorated(frozen.dataclass), _decorated(dataclasses.dataclass)


@frozen.dataclass(frozen=True, kw_only=True, slots=True)
class Pickled:
    """At the top of a module, where pickle finds it."""

    name: str
    sizes: tuple[int, ...] = ()


def _outcome(act: Callable[[], object]) -> object:
    """The result of an act, or the error that it raises, as text without the class's address."""
    try:
        return repr(act())
    except Exception as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize(
    "act",
    [
        lambda cls: cls(name="a"),
        lambda cls: cls(name="a", count=2, sizes={"x": 1}, note="b"),
        lambda cls: cls(),
        lambda cls: cls("a"),
        lambda cls: cls(name="a", nmae="b"),
        lambda cls: cls(name="a", count=-1),
        lambda cls: setattr(cls(name="a"), "name", "b"),
        lambda cls: delattr(cls(name="a"), "name"),
        lambda cls: dataclasses.replace(cls(name="a"), count=3),
        lambda cls: dataclasses.replace(cls(name="a"), count=-3),
        lambda cls: dataclasses.asdict(cls(name="a", sizes={"x": 1})),
        lambda cls: cls(name="a") == cls(name="a", note="is not compared"),
        lambda cls: cls(name="a") == cls(name="b"),
        lambda cls: cls(name="a") == "a",
        lambda cls: hash(cls(name="a", sizes=())) == hash(cls(name="a", sizes=())),
        lambda cls: hash(cls(name="a", sizes={})),
        lambda cls: cls(name="a").sizes is cls(name="b").sizes,
        lambda cls: copy.deepcopy(cls(name="a", sizes={"x": 1})),
        lambda cls: vars(cls(name="a")),
        lambda cls: (cls.__slots__, cls.__match_args__, cls.__doc__),
        lambda cls: [(item.name, item.default, item.kw_only) for item in dataclasses.fields(cls)],
        lambda cls: list(inspect.signature(cls).parameters)[:2],
        lambda cls: dataclasses.is_dataclass(cls),
    ],
)
def test_it_does_what_the_standard_decorator_does(act: Callable[[Any], object]) -> None:
    assert _outcome(lambda: act(OURS)) == _outcome(lambda: act(STANDARD))


def test_without_eq_an_instance_equals_only_itself() -> None:
    @frozen.dataclass(frozen=True, kw_only=True, slots=True, eq=False)
    class Example:
        name: str

    one = Example(name="a")
    assert one == one
    assert one != Example(name="a")
    assert len({one, Example(name="a")}) == 2


def test_an_instance_is_pickled_and_comes_back_equal() -> None:
    before = Pickled(name="a", sizes=(1, 2))
    assert pickle.loads(pickle.dumps(before)) == before


def test_a_class_that_could_be_changed_is_refused() -> None:
    with pytest.raises(TypeError, match=r"use dataclasses\.dataclass"):
        frozen.dataclass(frozen=False, kw_only=True, slots=True)
