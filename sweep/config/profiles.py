"""Clusters, models and devices: one file each, read strictly into its dataclass."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from sweep.config.errors import ConfigError, explained
from sweep.config.keys import check_fields, fit
from sweep.config.secrets import refuse_named_secrets
from sweep.core.attempts.attempt import Outcome
from sweep.core.attempts.outcome_rules import OUTCOME_RULES, OutcomeRule
from sweep.core.cells.cell import Precision
from sweep.core.cells.device import Device
from sweep.core.cells.model_shape import ModelShape
from sweep.core.encoding.codec import build, convert_value
from sweep.core.settings.policy import Policy
from sweep.core.settings.spec import ClusterSpec

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from sweep.config.library import Library

_Profile = TypeVar("_Profile", ModelShape, Device, ClusterSpec)


def model(library: Library, name: str) -> ModelShape:
    """The model of that name.

    Raises:
        ConfigError: If there is none, or its file is not as it has to be.
    """
    path = library.path("model", name)
    with explained(path):
        return _profile(ModelShape, name, library.read("model", name), "model")


def device(library: Library, name: str) -> Device:
    """The device profile of that name.

    Raises:
        ConfigError: If there is none, or its file is not as it has to be.
    """
    path = library.path("hardware", name)
    with explained(path):
        found = _profile(Device, name, library.read("hardware", name), "device")
        check_fields(found.peak_tflops, [item.value for item in Precision], "peak_tflops")
        return found


def cluster(library: Library, name: str, data: Mapping[str, Any], *, is_overridden: bool) -> ClusterSpec:
    """The cluster of that name, the command line's values put over its file's.

    Raises:
        ConfigError: If it is not as it has to be.
    """
    path = library.path("cluster", name)
    with explained(f"{path} with the command line's values" if is_overridden else path):
        found = _profile(ClusterSpec, name, data, "cluster")
        _check_cluster(found)
        return found


_RULE_KEYS = ("max_retries", "backoff_s", "walltime_factor", "avoid_nodes")


def policy(path: Path, data: Mapping[str, Any], *, budget_gpu_hours: object) -> Policy:
    """The policy of a file with the command line's values put over it.

    Raises:
        ConfigError: If it is not as it has to be.
    """
    with explained():
        budget = convert_value(Policy, "budget_gpu_hours", budget_gpu_hours, "budget.gpu_hours")
        if isinstance(budget, float) and budget <= 0:
            raise ValueError(f"budget.gpu_hours={budget:g} would let nothing run. Give more, or null for no limit.")
    with explained(f"{path} with the command line's values"):
        plain = {key: value for key, value in data.items() if key not in ("description", "outcomes")}
        known = [item.name for item in fields(Policy) if item.name not in ("outcomes", "budget_gpu_hours")]
        check_fields(plain, known, "policy")
        values = {name: convert_value(Policy, name, value, f"policy.{name}") for name, value in plain.items()}
        values["budget_gpu_hours"] = budget
        return Policy(outcomes=_outcome_rules(data.get("outcomes") or {}), **values)  # type: ignore[arg-type]  # converted


def _outcome_rules(given: Mapping[str, Any]) -> dict[Outcome, OutcomeRule]:
    check_fields(given, [item.value for item in Outcome], "policy.outcomes")
    rules = dict(OUTCOME_RULES)
    for name, changes in given.items():
        where = f"policy.outcomes.{name}"
        if not isinstance(changes, dict):
            raise ConfigError(f"{where}={changes!r} is not a mapping such as {{max_retries: 1}}.")
        check_fields(changes, _RULE_KEYS, where)
        values = {key: convert_value(OutcomeRule, key, value, f"{where}.{key}") for key, value in changes.items()}
        rules[Outcome(name)] = replace(rules[Outcome(name)], **values)  # type: ignore[arg-type]  # converted
    return rules


def _profile(cls: type[_Profile], name: str, data: Mapping[str, Any], where: str) -> _Profile:
    plain = {"name": name, **data}
    plain.pop("description", None)
    if plain["name"] != name:
        raise ConfigError(f"name is {plain['name']!r}, but the file is called {name}. Make them the same.")
    return build(cls, fit(cls, plain, where), where)


def _check_cluster(found: ClusterSpec) -> None:
    for key in ("gpus_per_node", "walltime_min", "poll_interval_s"):
        if getattr(found, key) <= 0:
            raise ConfigError(f"cluster.{key}={getattr(found, key)} is not positive. Give a number above 0.")
    for key in ("result_grace_s", "lost_after_s", "hang_grace_s"):
        if getattr(found, key) < 0:
            raise ConfigError(f"cluster.{key}={getattr(found, key)} is negative. Give 0 or more.")
    refuse_named_secrets(found)
    first, last = found.launch.port_range
    if not 1024 <= first <= last <= 65535:
        raise ConfigError(f"cluster.launch.port_range=[{first},{last}] is not a range of ports within 1024 to 65535.")
