"""The keys that exist: on the command line, and in the files that become dataclasses."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from sweep.config.errors import ConfigError, listed
from sweep.core.cells.axes import ALL_AXES
from sweep.core.cells.model_shape import FlopConvention
from sweep.core.encoding.codec import has_no_default
from sweep.core.encoding.message import did_you_mean, nearest
from sweep.core.settings.policy import Policy
from sweep.core.settings.spec import ClusterSpec, RunOrder

CHOICES = ("grid", "cluster", "trainer", "policy")
SERIES = ("kind", "baseline", "envelope", "by")
_FREE = ("series.baseline", "policy.outcomes")
BUDGET = "budget.gpu_hours"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RootKeys:
    """The root's own keys; conf/config.yaml explains them."""

    scale: str | None = None
    repeats: int | None = None
    run_dir: str | None = None
    watch: bool = True
    tables: bool = True
    retry: tuple[str, ...] = ()
    mix_fingerprints: bool = False
    flop_convention: FlopConvention = FlopConvention.PALM_FULL
    exclude: tuple[str, ...] = ()
    require: tuple[str, ...] = ()
    notify: tuple[str, ...] = ()
    preflight: bool = False
    order: RunOrder = RunOrder.SHUFFLED
    max_combinations: int = 100_000


ROOT_KEYS = tuple(item.name for item in dataclasses.fields(RootKeys))


def field_types(cls: type) -> dict[str, Any]:
    """Field names of a dataclass with their types, None options taken off."""
    hints = typing.get_type_hints(cls, localns={"Mapping": Mapping})
    return {item.name: _without_none(hints[item.name]) for item in dataclasses.fields(cls)}


def _without_none(hint: Any) -> Any:
    if isinstance(hint, types.UnionType):
        options = [option for option in typing.get_args(hint) if option is not type(None)]
        return options[0] if len(options) == 1 else hint
    return hint


def _keys_of(cls: type, prefix: str) -> Iterator[tuple[str, Any]]:
    """Every key below the prefix with its type; a dataclass comes before its own fields."""
    for name, hint in field_types(cls).items():
        yield f"{prefix}.{name}", hint
        if dataclasses.is_dataclass(hint):
            yield from _keys_of(typing.cast("type", hint), f"{prefix}.{name}")


def check_key(key: str) -> None:
    """Refuse a key that cannot be set on the command line.

    Raises:
        ConfigError: Naming the nearest keys.
    """
    cluster = dict(_keys_of(ClusterSpec, "cluster"))
    branches = {name for name, hint in cluster.items() if dataclasses.is_dataclass(hint)}
    series = (f"series.{name}" for name in SERIES)
    known = {*ALL_AXES, *ROOT_KEYS, *series, *(cluster.keys() - branches - {"cluster.name"}), *policy_keys(), BUDGET}
    free = (*(name for name, hint in cluster.items() if typing.get_origin(hint) is Mapping), *_FREE)
    if key in known or key in branches or any(key.startswith(f"{name}.") for name in free):
        return
    if key.startswith("grid."):
        raise ConfigError(
            f"{key}: a grid is changed by its axes (nodes=[1,2]), series.*, exclude, require and repeats. "
            "For anything else write a grid of your own and name its folder with --config-dir."
        )
    if key.startswith("hydra."):
        raise ConfigError(f"{key}: Hydra's own settings have no meaning here. For files of your own use --config-dir.")
    near = _nearest(key, known).strip() or _hint(key, known)
    raise ConfigError(f"There is no key {key!r}. {near}")


def _nearest(key: str, known: set[str]) -> str:
    # Long common prefixes make all keys of a group look alike: below a known parent only the last word is compared.
    parent, dot, word = key.rpartition(".")
    siblings = [name.removeprefix(f"{parent}.") for name in known if name.rpartition(".")[0] == parent]
    if not dot or not siblings:
        return did_you_mean(key, known)
    near = nearest(word, siblings)
    return f"Did you mean {' or '.join(f'{parent}.{name}' for name in near)}? " if near else ""


def _hint(key: str, known: set[str]) -> str:
    head = key.partition(".")[0]
    below = [name for name in known if name.startswith(f"{head}.")]
    if "." in key and below:
        return f"Known are: {listed(below)}."
    plain = [name for name in known if "." not in name]
    return f"Known are: {listed(plain)}, and series.*, trainer.*, cluster.*, policy.*, {BUDGET}."


def policy_keys() -> tuple[str, ...]:
    """The policy's settings by their dotted names; the budget has a key of its own."""
    names = (item.name for item in dataclasses.fields(Policy))
    return tuple(f"policy.{name}" for name in names if name not in ("outcomes", "budget_gpu_hours"))


def check_fields(data: Mapping[str, Any], known: Collection[str], where: str) -> None:
    """Refuse a mapping with a key that nothing reads.

    Raises:
        ConfigError: Naming the nearest keys.
    """
    for key in map(str, data):
        if key not in known:
            raise ConfigError(f"{where} has the unknown key {key!r}. {did_you_mean(key, known)}Known: {listed(known)}.")


def fit(cls: type, data: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The data with every key checked against the dataclass, and whole numbers as text where text is wanted.

    YAML and the command line read ``mem: 0`` or ``account: 1234`` as a number; sbatch takes text.

    Raises:
        ConfigError: If a key is unknown, or one without a default is missing.
    """
    hints = field_types(cls)
    check_fields(data, hints, where)
    missing = [item.name for item in dataclasses.fields(cls) if has_no_default(item) and item.name not in data]
    if missing:
        raise ConfigError(f"{where} does not say its {', '.join(missing)}. Add `{missing[0]}: ...`.")
    fitted: dict[str, Any] = {}
    for name, value in data.items():
        hint = hints[name]
        if dataclasses.is_dataclass(hint) and isinstance(value, Mapping):
            fitted[name] = fit(typing.cast("type", hint), value, f"{where}.{name}")
        elif hint is str and type(value) is int:
            fitted[name] = str(value)
        else:
            fitted[name] = value
    return fitted
