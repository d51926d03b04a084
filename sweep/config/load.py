"""From the words of a command line to a SweepSpec."""

from __future__ import annotations

import os
import shutil
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from sweep.config import profiles
from sweep.config.compose import Assignment, compose, parse
from sweep.config.declared import Declared, Values, check_axis, declared, override, values_of
from sweep.config.errors import ConfigError, explained, listed
from sweep.config.keys import CHOICES, SERIES, check_fields, check_key, fit, trainer_keys
from sweep.config.library import Library
from sweep.config.series import series_of
from sweep.config.settings import repeats, settings_of
from sweep.core.attempts.attempt import Outcome
from sweep.core.cells.axes import AXES, normalise_axis
from sweep.core.cells.trainer_settings import TrainerSettings
from sweep.core.encoding.frozen import dataclass
from sweep.core.grids.grid import Grid, check
from sweep.core.settings.spec import SweepSpec

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from sweep.core.cells.device import Device
    from sweep.core.cells.model_shape import ModelShape
    from sweep.core.grids.series import SeriesSpec
    from sweep.core.settings.spec import ClusterSpec


def load(
    overrides: Sequence[str],
    *,
    config_dir: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> SweepSpec:
    """The requests of the command line.

    Args:
        overrides: Hydra overrides, ``+grid=NAME`` among them.
        config_dir: The user's own folder, searched before the shipped one.
        environ: The environment; its PATH decides what ``cluster=auto`` is. None: the process's own.

    Raises:
        ConfigError: If it cannot be had; the message says what to change.
    """
    library = Library.at(config_dir)
    assignments = parse(overrides)
    choices = _choices(library, assignments, os.environ if environ is None else environ)
    settings = [item for item in assignments if item.key not in CHOICES]
    for item in settings:
        check_key(item.key)
    root = compose(library, choices, settings)
    keys = frozenset(item.key for item in settings)
    request = _Request(
        library=library,
        choices=choices,
        root=root,
        keys=keys,
        given=_given(root, keys),
        typed=tuple(overrides),
    )
    return _spec(request)


def load_cluster(
    overrides: Sequence[str],
    *,
    config_dir: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> tuple[ClusterSpec, Device]:
    """The cluster and its device that a command line without a grid asks for.

    Args:
        overrides: As for :func:`load`; what is not about the cluster is only read.
        config_dir: As for :func:`load`.
        environ: As for :func:`load`.

    Raises:
        ConfigError: If they cannot be had; the message says what to change.
    """
    library = Library.at(config_dir)
    assignments = parse(overrides)
    choices = _choices(library, assignments, os.environ if environ is None else environ, needs_grid=False)
    settings = [item for item in assignments if item.key not in CHOICES]
    for item in settings:
        check_key(item.key)
    root = compose(library, choices, settings)
    is_overridden = any(item.key.startswith("cluster.") for item in settings)
    found = profiles.cluster(library, choices["cluster"], root["cluster"], is_overridden=is_overridden)
    return found, profiles.device(library, found.device)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Request:
    """One command, composed.

    Attributes:
        library: Where files come from.
        choices: The files chosen, by group.
        root: The composed configuration.
        keys: Keys that the command line sets.
        given: Axes that it sets.
        typed: The overrides as typed.
    """

    library: Library
    choices: Mapping[str, str]
    root: Mapping[str, Any]
    keys: frozenset[str]
    given: Values
    typed: tuple[str, ...]

    def path(self, group: str) -> Path:
        """The chosen file of a group."""
        return self.library.path(group, self.choices[group])

    @property
    def typed_series(self) -> Mapping[str, Any]:
        """The series keys of the command line."""
        return self.root.get("series") or {}


def _choices(
    library: Library, assignments: Sequence[Assignment], environ: Mapping[str, str], *, needs_grid: bool = True
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


def _given(root: Mapping[str, Any], keys: Collection[str]) -> Values:
    """The axes that the command line sets, with their values as composed."""
    given: Values = {}
    for name in (*AXES, *trainer_keys()):
        if name in keys:
            prefixed = name.startswith("trainer.")
            value = root["trainer"][name.removeprefix("trainer.")] if prefixed else root["axes"][name]
            given[name] = values_of(name, value)
    return given


def _spec(request: _Request) -> SweepSpec:
    settings = settings_of(request.root)
    cluster = profiles.cluster(
        request.library,
        request.choices["cluster"],
        request.root["cluster"],
        is_overridden=any(key.startswith("cluster.") for key in request.keys),
    )
    scale = settings.scale or cluster.scale
    name, path = request.choices["grid"], request.path("grid")
    with explained(path):
        at_scale = declared(request.root["grid"], name, scale)
    models = _models(request, at_scale)
    _check_given(request.given, at_scale, models)
    final = _with_defaults(override(at_scale, request.given), request, cluster)
    devices = {str(item): profiles.device(request.library, str(item)) for item in final.values("device")}
    grid = Grid(
        name=name,
        batch_kind=final.batch_kind,
        axes=final.axes,
        zips=final.zips,
        cells=final.cells,
        exclude=final.exclude,
        require=final.require,
        models=models,
        devices=devices,
    )
    with explained(path):
        check(grid)
    grid = replace(grid, exclude=(*grid.exclude, *settings.exclude), require=(*grid.require, *settings.require))
    with explained():
        # Only the command line's own conditions are new: what is wrong now is wrong in them.
        check(grid)
    return SweepSpec(
        grid=grid,
        cluster=cluster,
        scale=scale,
        series=_series(request, final, models),
        repeats=repeats(final.repeats if settings.repeats is None else settings.repeats),
        flop_convention=settings.flop_convention,
        devices=devices,
        run_dir=settings.run_dir or f"runs/{name}-{cluster.name}",
        watch=settings.watch,
        tables=settings.tables,
        retry=tuple(Outcome(item) for item in settings.retry),
        mix_fingerprints=settings.mix_fingerprints,
        overrides=request.typed,
        notify=settings.notify,
        preflight=settings.preflight,
        policy=profiles.policy(
            request.path("policy"), request.root["policy"], budget_gpu_hours=request.root["budget"]["gpu_hours"]
        ),
    )


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
    """The grid with what nothing else says: the cluster's device and GPUs a node, the trainer file's settings."""
    axes: Values = {"gpus_per_node": (cluster.gpus_per_node,), "device": (cluster.device,)}
    settings = {key: value for key, value in request.root["trainer"].items() if key != "description"}
    with explained(request.path("trainer")):
        fit(TrainerSettings, settings, "trainer")
        for item in fields(TrainerSettings):
            name = f"trainer.{item.name}"
            if item.name in settings and name not in request.given:
                value = normalise_axis(name, settings[item.name], {})
                # What is at its default anyway would only be one more column.
                axes.update({name: (value,)} if value != item.default else {})
    unsaid = {name: values for name, values in axes.items() if not grid.has_default(name)}
    return replace(grid, axes={**unsaid, **grid.axes})


def _series(request: _Request, grid: Declared, models: Mapping[str, ModelShape]) -> SeriesSpec:
    with explained("the command line" if request.typed_series else request.path("grid")):
        check_fields(request.typed_series, SERIES, "series")
        # A baseline that the command line names, or leaves out of its values, may have been measured before.
        open_axes = AXES if request.typed_series else tuple(request.given)
        return series_of({**grid.series, **request.typed_series}, grid, models, open_axes)
