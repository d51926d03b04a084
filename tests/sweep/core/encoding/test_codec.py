from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import pytest

from sweep.core.encoding.codec import build, convert_value
from sweep.core.encoding.plain import plain


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Inner:
    size: int
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outer:
    inner: Inner
    pair: tuple[int, float] = (1, 2.0)
    colour: Colour | None = None
    limits: Mapping[str, float] = field(default_factory=dict)
    value: str | int | None = None
    required: str | int = "x"
    anything: object = None


def test_plain_values_become_nested_dataclasses() -> None:
    data = {
        "inner": {"size": 3, "names": ["a", "b"]},
        "pair": [1, 2],
        "colour": "blue",
        "limits": {"x": 1},
        "value": 7,
        "anything": [1, {"a": 2}],
    }
    built = build(Outer, data, "outer")
    assert built == Outer(
        inner=Inner(3, ("a", "b")),
        pair=(1, 2.0),
        colour=Colour.BLUE,
        limits={"x": 1.0},
        value=7,
        anything=[1, {"a": 2}],
    )
    assert plain(built)["inner"] == {"size": 3, "names": ("a", "b")}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"inner": 5}, "outer.inner=5 is not a mapping"),
        ({"inner": {"size": 3, "names": "ab"}}, "outer.inner.names='ab' is not a list. Write it in brackets"),
        ({"inner": {"size": 3, "names": [1]}}, "outer.inner.names[0]=1 is not text"),
        ({"inner": {}}, "outer.inner: "),
        ({"pair": [1]}, "outer.pair=[1] does not have 2 values"),
        ({"pair": [1.5, 2]}, "outer.pair[0]=1.5 is not a whole number"),
        ({"colour": "green"}, "outer.colour='green' is not one of red, blue"),
        ({"limits": [1]}, "outer.limits=[1] is not a mapping. Write it as name: value"),
        ({"limits": {"x": "y"}}, "outer.limits.x='y' is not a number"),
        ({"value": 1.5}, "outer.value=1.5 is not text or a whole number"),
        ({"required": None}, "outer.required=None is not text or a whole number"),
        ({"size": 3}, "outer has the unknown field(s) ['size']"),
        ({5: 3}, "outer has the unknown field(s) ['5']"),
    ],
)
def test_a_wrong_value_is_named_with_its_place(change: dict[object, object], message: str) -> None:
    data = {"inner": {"size": 3}, **change}
    with pytest.raises(ValueError, match=re.escape(message)):
        build(Outer, data, "outer")  # type: ignore[arg-type]  # wrong values are the point


def test_one_value_can_be_converted_alone() -> None:
    assert convert_value(Outer, "colour", "red", "colour") is Colour.RED
    assert convert_value(Outer, "colour", None, "colour") is None
    assert convert_value(Inner, "size", 4.0, "size") == 4
