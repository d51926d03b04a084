"""Reads a command line into a SweepSpec."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sweep.config import profiles
from sweep.config.compose import Assignment, compose, parse
from sweep.config.declared import Declared, Values, check_axis, declared, override, values_of
from sweep.config.errors import ConfigError, explained, listed
from sweep.config.keys import CHOICES, SERIES, RootKeys, check_fields, check_key, fit
from sweep.config.library import Library
from sweep.config.root_keys import repeats, root_keys_of, series_of
from sweep.core.attempts.attempt import Outcome
from sweep.core.cells.axes import ALL_AXES, AXES, SETTINGS, normalise_axis
from sweep.core.cells.device import Device
from sweep.core.cells.model_shape import ModelShape
from sweep.core.cells.trainer_settings import TrainerSettings
from sweep.core.encoding.frozen import dataclass
from sweep.core.grids.grid import Grid, check
from sweep.core.grids.series import SeriesSpec
from sweep.core.settings.policy import Policy
from sweep.core.settings.spec import ClusterSpec, SweepSpec


def load(
    overrides: Sequence[str],
    *,
    config_dir: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> SweepSpec:
    """Read a command line into the sweep that it asks for.

    Args:
        overrides: Hydra overrides, ``+grid=NAME`` among them.
        config_dir: The user's own folder, searched before the shipped one.
        environ: The environment; its PATH decides what ``cluster=auto`` is. None: the process's own.

    Raises:
        ConfigError: If there is no such sweep; the message says what to change.
    """
    return _spec(_request(overrides, config_dir, environ, needs_grid=True))


def load_cluster(
    overrides: Sequence[str],
    *,
    config_dir: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> tuple[ClusterSpec, Device]:
    """Read a command line, which need not name a grid, into the cluster that it asks for and its device.

    Args:
        overrides: As for :func:`load`; those that are not about the cluster are only checked.
        config_dir: As for :func:`load`.
        environ: As for :func:`load`.

    Raises:
        ConfigError: If there is no such cluster or device; the message says what to change.
    """
    request = _request(overrides, config_dir, environ, needs_grid=False)
    found = request.cluster()
    return found, profiles.device(request.library, found.device)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Request:
    """One command line, composed."""

    library: Library
    """The folders that files are read from."""
    choices: Mapping[str, str]
    """Names of the chosen files by group."""
    root: Mapping[str, Any]
    """The composed configuration."""
    keys: frozenset[str]
    """Keys that the command line sets."""
    typed: tuple[str, ...]
    """The overrides as typed."""

    @property
    def given(self) -> Values:
        """The axes that the command line sets, with their values as composed."""
        found: Values = {}
        for name, axis in ALL_AXES.items():
            if name in self.keys:
                value = self.root["axes"][name] if name in AXES else self.root["trainer"][axis.field]
                found[name] = values_of(name, value)
        return found

    def path(self, group: str) -> Path:
        """The chosen file of a group."""
        return self.library.path(group, self.choices[group])

    @property
    def typed_series(self) -> Mapping[str, Any]:
        """The keys of the series that the command line sets."""
        return self.root.get("series") or {}

    def cluster(self) -> ClusterSpec:
        """The chosen cluster, the command line's values put over its file's."""
        is_overridden = any(key.startswith("cluster.") for key in self.keys)
        return profiles.cluster(
            self.library, self.choices["cluster"], self.root["cluster"], is_overridden=is_overridden
        )

    def policy(self) -> Policy:
        """The chosen policy, the command line's values put over its file's."""
        budget_gpu_hours = self.root["budget"]["gpu_hours"]
        return profiles.policy(self.path("policy"), self.root["policy"], budget_gpu_hours=budget_gpu_hours)


def _request(
    overrides: Sequence[str], config_dir: Path | None, environ: Mapping[str, str] | None, *, needs_grid: bool
) -> _Request:
    library = Library.at(config_dir, environ)
    assignments = parse(overrides)
    choices = _choices(library, assignments, os.environ if environ is None else environ, needs_grid=needs_grid)
    others = [item for item in assignments if item.key not in CHOICES]
    for item in others:
        check_key(item.key)
    root = compose(library, choices, others)
    keys = frozenset(item.key for item in others)
    return _Request(library=library, choices=choices, root=root, keys=keys, typed=tuple(overrides))


def _choices(
    library: Library, assignments: Sequence[Assignment], environ: Mapping[str, str], *, needs_grid: bool
) -> dict[str, str]:
    typed = [item for item in assignments if item.key in CHOICES]
    chosen: dict[str, str] = {}
    for item in typed:
        if not isinstance(item.value, str):
            raise ConfigError(f"{item.key}={item.text} is not one name. There are: {listed(library.names(item.key))}.")
        if item.key in chosen:
            raise ConfigError(f"{item.key} is given twice: {chosen[item.key]} and {item.value}. Leave one.")
        chosen[item.key] = item.value
    chosen = {"cluster": "auto", "trainer": "default", "policy": "default", **chosen}
    if chosen["cluster"] == "auto":
        chosen["cluster"] = "slurm" if shutil.which("sbatch", path=environ.get("PATH", "")) else "local"
    if needs_grid and "grid" not in chosen:
        raise ConfigError(f"No grid is named. Add +grid=NAME; there are: {listed(library.names('grid'))}.")
    for group, name in chosen.items():
        library.path(group, name)
    return chosen


def _spec(request: _Request) -> SweepSpec:
    keys = root_keys_of(request.root)
    cluster = request.cluster()
    scale = keys.scale or cluster.scale
    name = request.choices["grid"]
    with explained(request.path("grid")):
        at_scale = declared(request.root["grid"], name, scale)
    models = _models(request, at_scale)
    _check_given(request.given, at_scale, models)
    final = _with_defaults(override(at_scale, request.given), request, cluster)
    grid = _grid(request, final, models, keys)
    return SweepSpec(
        grid=grid,
        cluster=cluster,
        scale=scale,
        series=_series(request, final, models),
        repeats=repeats(final.repeats if keys.repeats is None else keys.repeats),
        flop_convention=keys.flop_convention,
        devices=grid.devices,
        run_dir=keys.run_dir or f"runs/{name}-{cluster.name}",
        watch=keys.watch,
        tables=keys.tables,
        retry=tuple(Outcome(item) for item in keys.retry),
        mix_fingerprints=keys.mix_fingerprints,
        overrides=request.typed,
        notify=keys.notify,
        preflight=keys.preflight,
        order=keys.order,
        policy=request.policy(),
    )


def _grid(request: _Request, final: Declared, models: Mapping[str, ModelShape], keys: RootKeys) -> Grid:
    """The grid, checked; a fault is blamed on the grid's file or on the command line, whichever has it."""
    grid = Grid(
        name=request.choices["grid"],
        batch_kind=final.batch_kind,
        axes=final.axes,
        zips=final.zips,
        cells=final.cells,
        exclude=final.exclude,
        require=final.require,
        models=models,
        devices={str(item): profiles.device(request.library, str(item)) for item in final.values("device")},
        max_combinations=keys.max_combinations,
    )
    with explained(request.path("grid")):
        check(grid)
    grid = replace(grid, exclude=(*grid.exclude, *keys.exclude), require=(*grid.require, *keys.require))
    with explained():
        # Only the command line's own conditions are new here.
        check(grid)
    return grid


def _models(request: _Request, grid: Declared) -> dict[str, ModelShape]:
    """The shapes that the grid, its baseline or the command line name."""
    given = request.given.get("model")
    named = [*(grid.values("model") if given is None else given)]
    baseline = {**grid.series, **request.typed_series}.get("baseline")
    if isinstance(baseline, dict) and "model" in baseline:
        named.append(baseline["model"])
    return {str(name): profiles.model(request.library, str(name)) for name in dict.fromkeys(named)}


def _check_given(given: Values, grid: Declared, models: Mapping[str, ModelShape]) -> None:
    """Refuse the command line's bad values before they are put over the grid's, so that the file is not blamed."""
    with explained():
        for name, values in given.items():
            check_axis(name, grid.batch_kind, "the command line")
            for value in values:
                normalise_axis(name, value, models)


def _with_defaults(grid: Declared, request: _Request, cluster: ClusterSpec) -> Declared:
    """The grid with the cluster's device and GPUs and the trainer file's settings, where it does not name them."""
    axes: Values = {"gpus_per_node": (cluster.gpus_per_node,), "device": (cluster.device,)}
    settings = {key: value for key, value in request.root["trainer"].items() if key != "description"}
    with explained(request.path("trainer")):
        fit(TrainerSettings, settings, "trainer")
        for name in SETTINGS:
            axis = ALL_AXES[name]
            if axis.field in settings and name not in request.given:
                value = normalise_axis(name, settings[axis.field], {})
                # One at its default would only be one more column.
                axes.update({name: (value,)} if value != axis.default else {})
    unnamed = {name: values for name, values in axes.items() if not grid.has_default(name)}
    return replace(grid, axes={**unnamed, **grid.axes})


def _series(request: _Request, grid: Declared, models: Mapping[str, ModelShape]) -> SeriesSpec:
    with explained("the command line" if request.typed_series else request.path("grid")):
        check_fields(request.typed_series, SERIES, "series")
        # A baseline that the command line names, or leaves out of its values, may have been measured before.
        open_axes = AXES if request.typed_series else tuple(request.given)
        return series_of({**grid.series, **request.typed_series}, grid, models, open_axes)
