"""Reads the root's own keys (conf/config.yaml) into their types."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from sweep.config.declared import texts
from sweep.config.errors import ConfigError, explained, listed
from sweep.config.keys import RootKeys, fit
from sweep.core.attempts.attempt import Outcome
from sweep.core.encoding.codec import convert_value
from sweep.core.encoding.message import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping


def root_keys_of(root: Mapping[str, Any]) -> RootKeys:
    """The root's own keys.

    Raises:
        ConfigError: If one has a value that it cannot have.
    """
    names = [item.name for item in dataclasses.fields(RootKeys)]
    values: dict[str, Any] = {name: root[name] for name in names if root.get(name) is not None}
    for name in ("exclude", "require", "notify"):
        values[name] = texts(root.get(name), name)
    values["retry"] = _outcomes(root.get("retry"))
    if "repeats" in values:
        repeats(values["repeats"])
    with explained():
        fitted = fit(RootKeys, values, "the command line")
        typed: dict[str, Any] = {name: convert_value(RootKeys, name, value, name) for name, value in fitted.items()}
    return RootKeys(**typed)


def _outcomes(value: object) -> tuple[str, ...]:
    found = tuple(str(item).upper() for item in (value if isinstance(value, list) else [value] if value else []))
    for item in found:
        if item not in set(Outcome):
            near = did_you_mean(item, Outcome)
            raise ConfigError(f"retry={item} is not an outcome. {near}Known are: {listed(Outcome)}.")
    return found


def repeats(value: object) -> int:
    """The number of independent runs of each cell; 1 for None.

    Raises:
        ConfigError: If it is not a positive integer.
    """
    if value is None:
        return 1
    if type(value) is not int or value < 1:
        raise ConfigError(f"repeats={value!r} is not a positive integer. Give a whole number >= 1.")
    return value
