"""A grid: axes, zips, explicit cells and conditions; expanded into cells and rejections, nothing dropped."""

from __future__ import annotations

import itertools
import math
import operator
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field

from sweep.core.cells.axes import REQUIRED, SETTINGS, GridError, axis_default, axis_names, normalise_axis
from sweep.core.cells.axis import AUTO, AxisValue
from sweep.core.cells.batch import BatchKind
from sweep.core.cells.cell import Cell, cell_id
from sweep.core.cells.device import Device
from sweep.core.cells.model_shape import ModelShape
from sweep.core.cells.parallelism import DEGREES
from sweep.core.cells.rules import Violation
from sweep.core.encoding.frozen import dataclass
from sweep.core.encoding.message import did_you_mean
from sweep.core.grids.combination import Resolver


class EmptyGridError(GridError):
    """Every combination of the grid was excluded or rejected."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """A declared grid, with the values of one scale and the command line's overrides applied.

    Attributes:
        name: The grid's name.
        batch_kind: What stays fixed as GPUs are added; its value is the axis of the same name.
        axes: Values by axis; the grid is their product.
        zips: Groups of axes that advance together.
        cells: Explicit cells: each takes its own values (the product of what it lists) for the axes it names and is
            combined with ``axes`` and ``zips`` for the others. None at all: the product alone.
        exclude: Conditions whose combinations are left out.
        require: Conditions that every combination must meet.
        models: Shapes by the names that the ``model`` axis uses.
        devices: Profiles by the names that the ``device`` axis uses; what is said of one that is not here is left to
            the run.
    """

    name: str
    batch_kind: BatchKind
    axes: Mapping[str, tuple[AxisValue, ...]]
    models: Mapping[str, ModelShape]
    zips: tuple[Mapping[str, tuple[AxisValue, ...]], ...] = ()
    cells: tuple[Mapping[str, tuple[AxisValue, ...]], ...] = ()
    exclude: tuple[str, ...] = ()
    require: tuple[str, ...] = ()
    devices: Mapping[str, Device] = field(default_factory=dict)
    max_combinations: int = 100_000
    """More are refused before any is made: they would take the machine's memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One combination of axis values and the cell it stands for."""

    axes: Mapping[str, AxisValue]
    cell_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Rejection:
    """One combination that cannot be a cell, with the rule and the reason."""

    axes: Mapping[str, AxisValue]
    rule: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Expansion:
    """All combinations of a grid: each is a point or a rejection.

    Attributes:
        points: Combinations that can run, in grid order; two of them may be the same cell.
        rejections: Combinations that cannot, and those that ``exclude`` and ``require`` leave out.
        cells: Cells by id.
    """

    points: tuple[Point, ...]
    rejections: tuple[Rejection, ...]
    cells: Mapping[str, Cell] = field(default_factory=dict)

    def rejected_by_rule(self) -> dict[str, int]:
        """How many combinations each rule rejected, most first."""
        return dict(Counter(rejection.rule for rejection in self.rejections).most_common())


def check(grid: Grid) -> None:
    """Refuse a grid with a wrong declaration, as :func:`expand` does, without expanding it.

    Raises:
        GridError: As :func:`expand`, but for axes that have no value at all and for conditions without an answer.
    """
    _Expander(grid)


def expand(grid: Grid) -> Expansion:
    """Every combination of the grid as a point or a rejection.

    Raises:
        GridError: If an axis is unknown, has a bad value or is given twice, a zip is uneven, or a condition is wrong.
        EmptyGridError: If no cell is left; the message counts the rejections by rule.
    """
    expander = _Expander(grid)
    points: list[Point] = []
    rejections: list[Rejection] = []
    cells: dict[str, Cell] = {}
    for axes in expander.combinations():
        outcome = expander.resolve(axes)
        if isinstance(outcome, Violation):
            rejections.append(Rejection(axes=axes, rule=outcome.rule, reason=outcome.reason))
            continue
        identity = cell_id(outcome)
        known = cells.setdefault(identity, outcome)
        if known is not outcome and known != outcome:
            raise GridError(f"two different cells share the id {identity}: {known} and {outcome}.")
        points.append(Point(axes=axes, cell_id=identity))
    expansion = Expansion(points=tuple(points), rejections=tuple(rejections), cells=cells)
    if not points:
        raise EmptyGridError(_why_empty(grid, expansion))
    return expansion


def _why_empty(grid: Grid, expansion: Expansion) -> str:
    if not expansion.rejections:
        return f"grid {grid.name} has no combination at all: an axis has an empty list of values."
    counts = ", ".join(f"{rule} {count}" for rule, count in expansion.rejected_by_rule().items())
    first: dict[str, str] = {}
    for rejection in expansion.rejections:
        first.setdefault(rejection.rule, rejection.reason)
    reasons = "\n".join(f"  {rule}: {reason}" for rule, reason in first.items())
    number = len(expansion.rejections)
    every = "the only combination was" if number == 1 else f"all {number} combinations were"
    return f"grid {grid.name} has no cell left: {every} rejected ({counts}).\nThe first of each rule:\n{reasons}"


def _refuse_too_many(grid: Grid) -> None:
    """Multiply the numbers of values, before anything is made of them."""
    total = 0
    for entry in grid.cells or ({},):
        zips = [group for group in grid.zips if not set(group) & set(entry)]
        lists = [*({**grid.axes, **entry}).values(), *(next(iter(group.values()), ()) for group in zips)]
        total += math.prod(map(len, lists))
    if total > grid.max_combinations:
        raise GridError(
            f"grid {grid.name} asks for {total:,} combinations; at most {grid.max_combinations:,} are made. Give its "
            f"axes fewer values, or raise the limit with max_combinations={total}."
        )


class _Expander:
    """The normalised values of one grid, and how one combination becomes a cell."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        _refuse_too_many(grid)
        self._names = axis_names(grid.batch_kind)
        self._axes = self._normalised(grid.axes, "axes")
        self._zips = [self._zip(group) for group in grid.zips]
        self._entries = [self._normalised(entry, "cells") for entry in grid.cells] or [{}]
        self._refuse_twice_named()
        named = {*self._axes, *itertools.chain.from_iterable((*self._zips, *self._entries))}
        self._settings_names = tuple(name for name in SETTINGS if name in named)
        self._layout_names = tuple(name for name in self._names if name not in SETTINGS)
        self.resolve = Resolver(
            grid=grid.name,
            batch_kind=grid.batch_kind,
            models=grid.models,
            devices=grid.devices,
            names=(self._layout_names, self._settings_names),
            exclude=grid.exclude,
            require=grid.require,
        ).resolve

    def _normalised(self, axes: Mapping[str, Sequence[AxisValue]], where: str) -> dict[str, tuple[AxisValue, ...]]:
        found = {}
        for name, values in axes.items():
            if name not in self._names:
                raise GridError(f"grid {self._grid.name}: {where} names {self._unknown_axis(name)}")
            found[name] = tuple(dict.fromkeys(normalise_axis(name, value, self._grid.models) for value in values))
        return found

    def _unknown_axis(self, name: str) -> str:
        if name in set(BatchKind):
            return f"{name}, but the grid's batch rule is {self._grid.batch_kind}: one rule per grid."
        hint = did_you_mean(name, self._names).strip() or f"Known are: {', '.join(self._names)}."
        return f"the unknown axis {name!r}. {hint}"

    def _zip(self, group: Mapping[str, tuple[AxisValue, ...]]) -> dict[str, tuple[AxisValue, ...]]:
        lengths = {name: len(values) for name, values in group.items()}
        if len(set(lengths.values())) != 1:
            raise GridError(f"grid {self._grid.name}: a zip needs lists of one length; these have {lengths}.")
        for name in group:
            if name not in self._names:
                raise GridError(f"grid {self._grid.name}: zip names {self._unknown_axis(name)}")
        models = self._grid.models
        columns = [[normalise_axis(name, value, models) for value in values] for name, values in group.items()]
        rows = dict.fromkeys(zip(*columns, strict=True))
        return dict(zip(group, zip(*rows, strict=True), strict=True)) if rows else dict.fromkeys(group, ())

    def _refuse_twice_named(self) -> None:
        seen = list(self._axes)
        for group in self._zips:
            seen.extend(group)
        twice = [name for name, count in Counter(seen).items() if count > 1]
        if twice:
            raise GridError(f"grid {self._grid.name}: {', '.join(twice)} is given twice, in axes and zip.")
        for entry in self._entries:
            for group in self._zips:
                if set(group) & set(entry) and not set(group) <= set(entry):
                    raise GridError(
                        f"grid {self._grid.name}: an explicit cell names {sorted(set(group) & set(entry))} of the "
                        f"zip {sorted(group)}. Name all of them or none."
                    )

    def combinations(self) -> Iterator[dict[str, AxisValue]]:
        """Every combination, in grid order and with the same axes; none twice."""
        seen: set[tuple[AxisValue, ...]] = set()
        for entry in self._entries:
            for axes in self._product(entry):
                if len(self._entries) > 1:
                    key = tuple(axes.values())
                    if key in seen:
                        continue
                    seen.add(key)
                yield axes

    def _product(self, entry: Mapping[str, tuple[AxisValue, ...]]) -> Iterator[dict[str, AxisValue]]:
        """Combinations of one explicit cell with the axes and zips that it does not name."""
        own = {**{name: values for name, values in self._axes.items() if name not in entry}, **entry}
        zips = [group for group in self._zips if not set(group) & set(entry)]
        named = {*own, *itertools.chain.from_iterable(zips)}
        self._require_named(named)
        order = [name for name in self._names if name in own]
        base = {name: None if name in named else axis_default(name) for name in self._layout_names}
        base |= {name: None if name in named else axis_default(name) for name in self._settings_names}
        rows = [list(zip(*group.values(), strict=True)) for group in zips]
        rows += [[(value,) for value in own[name]] for name in order]
        names = [*itertools.chain.from_iterable(zips), *order]
        others = operator.itemgetter(*(name for name in DEGREES if name != "dp_shard"))
        fill_shard = "dp_shard" not in named
        for chosen in itertools.product(*rows):
            axes = base.copy()
            axes.update(zip(names, itertools.chain.from_iterable(chosen), strict=True))
            if fill_shard and AUTO in others(axes):
                # FSDP over what the other degrees leave, unless another degree takes that.
                axes["dp_shard"] = 1
            yield axes

    def _require_named(self, named: set[str]) -> None:
        missing = [name for name in (*REQUIRED, self._grid.batch_kind.value) if name not in named]
        if missing:
            raise GridError(f"grid {self._grid.name} gives no value for {', '.join(missing)}. Add it to its axes.")
