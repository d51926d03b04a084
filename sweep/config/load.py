"""From the words of a command line to a SweepSpec."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from sweep.config.compose import Assignment, compose, parse
from sweep.config.declared import Declared, Values, check_axis, declared, override, texts, values_of
from sweep.config.errors import ConfigError, did_you_mean, listed
from sweep.config.keys import CHOICES, SETTINGS, Settings, check_fields, check_key, fit, trainer_keys
from sweep.config.library import Library
from sweep.core.attempt import Outcome
from sweep.core.cell import AxisValue, Precision, TrainerSettings, build, convert_value
from sweep.core.conditions import Condition
from sweep.core.device import Device
from sweep.core.grid import AXES, DERIVED, Grid, axis_names, normalise_axis
from sweep.core.model import ModelShape
from sweep.core.series import Envelope, SeriesKind, SeriesSpec
from sweep.core.spec import ClusterSpec, SweepSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path


def load(
    overrides: Sequence[str],
    *,
    config_dir: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> SweepSpec:
    """What the command line asks for.

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
    request = _Request(
        library=library,
        choices=choices,
        root=root,
        given=_given(root, {item.key for item in settings}),
        typed=tuple(overrides),
    )
    return _spec(request)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Request:
    """One command, composed.

    Attributes:
        library: Where files come from.
        choices: The files chosen, by group.
        root: The composed configuration.
        given: Axes that the command line sets.
        typed: The overrides as typed.
    """

    library: Library
    choices: Mapping[str, str]
    root: Mapping[str, Any]
    given: Values
    typed: tuple[str, ...]

    def path(self, group: str) -> Path:
        """The chosen file of a group."""
        return self.library.path(group, self.choices[group])


def _choices(library: Library, assignments: Sequence[Assignment], environ: Mapping[str, str]) -> dict[str, str]:
    chosen = {"cluster": "auto", "trainer": "default"}
    for item in assignments:
        if item.key in CHOICES:
            if not isinstance(item.value, str):
                raise ConfigError(
                    f"{item.key}={item.text} is not one name. There are: {listed(library.names(item.key))}."
                )
            chosen[item.key] = item.value
    if chosen["cluster"] == "auto":
        chosen["cluster"] = "slurm" if shutil.which("sbatch", path=environ.get("PATH", "")) else "local"
    if "grid" not in chosen:
        raise ConfigError(f"No grid is named. Add +grid=NAME; there are: {listed(library.names('grid'))}.")
    for group, name in chosen.items():
        library.path(group, name)
    return chosen


def _given(root: Mapping[str, Any], keys: set[str]) -> Values:
    """The axes that the command line sets, with their values as composed."""
    given: Values = {}
    for name in (*AXES, *trainer_keys()):
        if name in keys:
            prefixed = name.startswith("trainer.")
            value = root["trainer"][name.removeprefix("trainer.")] if prefixed else root["axes"][name]
            given[name] = values_of(name, value)
    return given


@dataclass(frozen=True, kw_only=True, slots=True)
class _Series:
    """The words of a series that are one of a few."""

    kind: SeriesKind
    envelope: Envelope | None


@contextmanager
def _in(where: object) -> Iterator[None]:
    """Errors inside are those of a file."""
    try:
        yield
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from error


@contextmanager
def _as_config_error() -> Iterator[None]:
    try:
        yield
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _spec(request: _Request) -> SweepSpec:
    settings = _settings(request.root)
    cluster = _cluster(request)
    scale = settings.scale or cluster.scale
    name = request.choices["grid"]
    path = request.path("grid")
    with _in(path):
        grid = declared(request.root["grid"], name, scale)
    repeats = grid.repeats if settings.repeats is None else settings.repeats
    # The command line's values are checked first, so that an error in them does not name the grid's file.
    models = _models(request, grid)
    with _as_config_error():
        for axis, values in request.given.items():
            check_axis(axis, grid.batch_kind, "the command line")
            for value in values:
                normalise_axis(axis, value, models)
    grid = _with_defaults(override(grid, request.given), request, cluster)
    with _in(path):
        _check_values(grid, models)
    with _as_config_error():
        conditions = {part: _conditions(getattr(settings, part), grid) for part in ("exclude", "require")}
    return SweepSpec(
        grid=Grid(
            name=name,
            batch_kind=grid.batch_kind,
            axes=grid.axes,
            zips=grid.zips,
            cells=grid.cells,
            exclude=(*grid.exclude, *conditions["exclude"]),
            require=(*grid.require, *conditions["require"]),
            models=models,
        ),
        cluster=cluster,
        scale=scale,
        series=_series(request, grid, models),
        repeats=_repeats(repeats),
        flop_convention=settings.flop_convention,
        devices={str(device): _device(request.library, str(device)) for device in grid.values("device")},
        run_dir=settings.run_dir or f"runs/{name}-{cluster.name}",
        watch=settings.watch,
        tables=settings.tables,
        retry=tuple(Outcome(outcome) for outcome in settings.retry),
        mix_fingerprints=settings.mix_fingerprints,
        overrides=request.typed,
    )


def _settings(root: Mapping[str, Any]) -> Settings:
    values: dict[str, Any] = {}
    for name in SETTINGS:
        value = root.get(name)
        if name in ("exclude", "require"):
            values[name] = texts(value, name)
        elif name == "retry":
            values[name] = _outcomes(value)
        elif value is not None:
            with _as_config_error():
                values[name] = convert_value(Settings, name, fit(Settings, {name: value}, name)[name], name)
    return Settings(**values)


def _outcomes(value: object) -> tuple[str, ...]:
    found = tuple(str(item).upper() for item in (value if isinstance(value, list) else [value] if value else []))
    for item in found:
        if item not in set(Outcome):
            raise ConfigError(
                f"retry={item} is not an outcome. {did_you_mean(item, list(Outcome))}Known: {listed(Outcome)}."
            )
    return found


def _repeats(value: object) -> int:
    if value is None:
        return 1
    if type(value) is not int or value < 1:
        raise ConfigError(f"repeats={value!r} is not a positive integer. Give a whole number >= 1.")
    return value


def _cluster(request: _Request) -> ClusterSpec:
    name = request.choices["cluster"]
    data = {key: value for key, value in request.root["cluster"].items() if key != "description"}
    with _in(request.path("cluster")):
        cluster = build(ClusterSpec, fit(ClusterSpec, {"name": name, **data}, "cluster"), "cluster")
        if cluster.name != name:
            raise ConfigError(f"name is {cluster.name!r}, but the file is called {name}. Make them the same.")
        _check_cluster(cluster)
    return cluster


def _check_cluster(cluster: ClusterSpec) -> None:
    for key in ("gpus_per_node", "walltime_min", "poll_interval_s"):
        if getattr(cluster, key) <= 0:
            raise ConfigError(f"cluster.{key}={getattr(cluster, key)} is not positive. Give a number above 0.")
    for key in ("result_grace_s", "lost_after_s", "hang_grace_s"):
        if getattr(cluster, key) < 0:
            raise ConfigError(f"cluster.{key}={getattr(cluster, key)} is negative. Give 0 or more.")
    first, last = cluster.launch.port_range
    if not 1024 <= first <= last <= 65535:
        raise ConfigError(f"cluster.launch.port_range=[{first},{last}] is not a range of ports within 1024 to 65535.")


def _models(request: _Request, grid: Declared) -> dict[str, ModelShape]:
    """The shapes that the grid, its baseline or the command line name."""
    given = request.given.get("model")
    baseline = {**grid.series, **(request.root.get("series") or {})}.get("baseline")
    named = [*(grid.values("model") if given is None else given)]
    named += [baseline["model"]] if isinstance(baseline, dict) and "model" in baseline else []
    return {str(name): _model(request.library, str(name)) for name in dict.fromkeys(named)}


def _named(library: Library, group: str, name: str) -> dict[str, Any]:
    data = {"name": name, **library.read(group, name)}
    if data["name"] != name:
        raise ConfigError(f"name is {data['name']!r}, but the file is called {name}. Make them the same.")
    return {key: value for key, value in data.items() if key != "description"}


def _model(library: Library, name: str) -> ModelShape:
    path = library.path("model", name)
    with _in(path):
        return build(ModelShape, fit(ModelShape, _named(library, "model", name), "the model"), "model")


def _device(library: Library, name: str) -> Device:
    path = library.path("hardware", name)
    with _in(path):
        device = build(Device, fit(Device, _named(library, "hardware", name), "the device"), "device")
        check_fields(device.peak_tflops, [item.value for item in Precision], "peak_tflops")
        return device


def _with_defaults(grid: Declared, request: _Request, cluster: ClusterSpec) -> Declared:
    """The grid with what nothing else says: the cluster's device and GPUs a node, the trainer file's settings."""
    axes: Values = {"gpus_per_node": (cluster.gpus_per_node,), "device": (cluster.device,)}
    settings = {key: value for key, value in request.root["trainer"].items() if key != "description"}
    with _in(request.path("trainer")):
        fit(TrainerSettings, settings, "trainer")
        for item in fields(TrainerSettings):
            name = f"trainer.{item.name}"
            if item.name not in settings or name in request.given:
                continue
            value = normalise_axis(name, settings[item.name], {})
            if value != item.default:
                axes[name] = (value,)
    return replace(grid, axes={**{name: v for name, v in axes.items() if not grid.has_default(name)}, **grid.axes})


def _check_values(grid: Declared, models: Mapping[str, ModelShape]) -> None:
    """Refuse a value of the wrong type or a condition that cannot be read, before anything is expanded."""
    for group in grid.groups():
        for name, values in group.items():
            for value in values:
                normalise_axis(name, value, models)
    for group in grid.zips:
        lengths = {name: len(values) for name, values in group.items()}
        if len(set(lengths.values())) > 1:
            raise ConfigError(f"a zip needs lists of one length; these have {lengths}.")
    _conditions((*grid.exclude, *grid.require), grid)


def _conditions(wanted: tuple[str, ...], grid: Declared) -> tuple[str, ...]:
    for text in wanted:
        Condition(text, {*axis_names(grid.batch_kind), *DERIVED})
    return wanted


def _series(request: _Request, grid: Declared, models: Mapping[str, ModelShape]) -> SeriesSpec:
    typed = request.root.get("series") or {}
    data = {**grid.series, **typed}
    where = "the command line" if typed else request.path("grid")
    with _in(where):
        if "kind" not in data:
            raise ConfigError(f"series.kind is missing. Use {listed(SeriesKind)}.")
        baseline = _baseline(data.get("baseline") or {}, grid, models)
        if not typed:
            _check_baseline(baseline, grid, request.given)
        by = None if data.get("by") is None else texts(data["by"], "series.by")
        for name in by or ():
            check_axis(name, grid.batch_kind, "series.by")
        plain = build(_Series, {"kind": data["kind"], "envelope": data.get("envelope")}, "series")
        return SeriesSpec(kind=plain.kind, baseline=baseline, envelope=plain.envelope, by=by)


def _baseline(data: object, grid: Declared, models: Mapping[str, ModelShape]) -> dict[str, AxisValue]:
    if not isinstance(data, dict):
        raise ConfigError(f"series.baseline={data!r} is not a mapping. Say for example {{nodes: 1}}.")
    found: dict[str, AxisValue] = {}
    for name, value in data.items():
        check_axis(name, grid.batch_kind, "series.baseline")
        if len(values_of(f"series.baseline.{name}", value)) != 1 or isinstance(value, list):
            raise ConfigError(f"series.baseline.{name}={value!r} is not one value: the baseline is one cell.")
        found[name] = normalise_axis(name, value, models)
    return found


def _check_baseline(baseline: Mapping[str, AxisValue], grid: Declared, given: Values) -> None:
    """Refuse a grid whose baseline is none of its points; a command line may leave out what is measured already."""
    for name, value in baseline.items():
        values = grid.values(name)
        if name not in given and values and value not in values:
            raise ConfigError(f"series.baseline.{name}={value!r} is none of the grid's values {list(values)}.")
