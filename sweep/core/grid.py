"""A grid: axes, zips, explicit cells and conditions; expanded into cells and rejections, nothing dropped."""

from __future__ import annotations

import difflib
import functools
import itertools
import math
import operator
from collections import Counter
from dataclasses import asdict, dataclass, field, fields
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from sweep.core.cell import (
    AxisValue,
    BatchKind,
    BatchRule,
    Cell,
    Checkpointing,
    Parallelism,
    Precision,
    TrainerSettings,
    cell_id,
    convert_value,
)
from sweep.core.conditions import Condition, ConditionError
from sweep.core.rules import Violation, first_violation

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from sweep.core.model import ModelShape

AUTO = "auto"
DEGREES = ("dp_replicate", "dp_shard", "tp", "pp", "cp")
_LAYOUT = (*DEGREES, "schedule", "virtual_stages", "async_tp", "sequence_parallel")
_CELL = (
    "nodes",
    "gpus_per_node",
    "device",
    "seq_len",
    "micro_batch",
    "precision",
    "compile",
    "activation_checkpointing",
    "reshard_after_forward",
)
_TRAINER = tuple(f"trainer.{item.name}" for item in fields(TrainerSettings))
_DEFAULTS: Mapping[str, AxisValue] = {
    "dp_replicate": 1,
    "dp_shard": AUTO,
    "tp": 1,
    "pp": 1,
    "cp": 1,
    "schedule": None,
    "virtual_stages": 1,
    "async_tp": False,
    "sequence_parallel": True,
    "micro_batch": None,
    "precision": Precision.BF16,
    "compile": False,
    "activation_checkpointing": Checkpointing.NONE,
    "reshard_after_forward": False,
    **{f"trainer.{name}": value for name, value in asdict(TrainerSettings()).items()},
}
_of_layout = operator.itemgetter(*_LAYOUT)
_of_cell = operator.itemgetter(*_CELL)
AXES: tuple[str, ...] = ("nodes", "gpus_per_node", "device", "model", "seq_len", *BatchKind, *_LAYOUT, *_CELL[4:])
"""Every axis but the trainer's settings, in the order in which tables show them."""
DERIVED = ("gpus", "n_params", "global_batch")
"""Names that conditions may use besides the axes."""
LEFT_OUT = ("exclude", "require")
"""Rules of rejections that are a grid's own choice; every other one says that the combination is impossible."""


class GridError(ValueError):
    """A grid cannot be read or expanded; the message says what to change."""


class EmptyGridError(GridError):
    """Every combination of the grid was excluded or rejected."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """What a grid declares, its values already those of one scale with the command line's overrides applied.

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
    """

    name: str
    batch_kind: BatchKind
    axes: Mapping[str, tuple[AxisValue, ...]]
    models: Mapping[str, ModelShape]
    zips: tuple[Mapping[str, tuple[AxisValue, ...]], ...] = ()
    cells: tuple[Mapping[str, tuple[AxisValue, ...]], ...] = ()
    exclude: tuple[str, ...] = ()
    require: tuple[str, ...] = ()


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


def axis_default(name: str) -> AxisValue:
    """The value of an axis in a combination that does not name it; None where it has no default, as ``nodes``."""
    return _DEFAULTS.get(name)


def axis_names(batch_kind: BatchKind) -> tuple[str, ...]:
    """The axes that a grid with this batch rule may use, the trainer's settings included."""
    other = set(BatchKind) - {batch_kind}
    return (*(name for name in AXES if name not in other), *_TRAINER)


def normalise_axis(name: str, value: object, models: Mapping[str, ModelShape]) -> AxisValue:
    """One axis value, checked and brought to its type.

    Raises:
        GridError: If it is of the wrong type or not among the values that the axis has.
    """
    try:
        return _normalise(name, value, models)
    except ValueError as error:
        raise GridError(str(error)) from error


def _normalise(name: str, value: object, models: Mapping[str, ModelShape]) -> AxisValue:
    checked: Any
    if name == "model":
        _known("model", value, models)
        return str(value)
    if name in set(BatchKind):
        return _batch_value(name, value)
    if name in DEGREES and value == AUTO:
        return AUTO
    if name == "micro_batch":
        return None if value is None else _positive(name, value)
    if name in _LAYOUT:
        checked = convert_value(Parallelism, name, value, name)
    elif name.startswith("trainer."):
        checked = convert_value(TrainerSettings, name.removeprefix("trainer."), value, name)
    else:
        checked = convert_value(Cell, name, value, name)
    is_count = isinstance(checked, int) and not isinstance(checked, bool) and not name.startswith("trainer.")
    return _positive(name, checked) if is_count else checked


def _known(name: str, value: object, known: Mapping[str, object]) -> None:
    if isinstance(value, str) and value in known:
        return
    near = difflib.get_close_matches(str(value), known, n=3, cutoff=0.5)
    hint = f"Did you mean {' or '.join(near)}? " if near else ""
    raise ValueError(f"{name}={value!r} is not known. {hint}Known are: {', '.join(sorted(known))}.")


def _positive(name: str, value: object) -> int:
    if type(value) is not int or value < 1:
        raise ValueError(f"{name}={value!r} is not a positive integer. Give a whole number >= 1.")
    return value


def _batch_value(name: str, value: object) -> AxisValue:
    try:
        exact = Fraction(str(value))
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"{name}={value!r} is not a number or a fraction such as 1/2.") from None
    if exact <= 0:
        raise ValueError(f"{name}={value!r} is not positive. Give a number above 0.")
    if exact.denominator == 1:
        return exact.numerator
    if name != BatchKind.SEQUENCES_PER_GPU:
        raise ValueError(f"{name}={value!r} is not a whole number.")
    return str(exact)


def check(grid: Grid) -> None:
    """Refuse a grid that :func:`expand` would refuse for what it declares, without expanding it.

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
    return (
        f"grid {grid.name} has no cell left: all {len(expansion.rejections)} combinations were rejected ({counts}).\n"
        f"The first of each rule:\n{reasons}"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Layout:
    """What a combination comes to without the trainer's settings.

    Attributes:
        seen: What conditions see: the axes with ``auto`` settled, and the derived names; empty without conditions.
        fields: Fields of the cell but for ``trainer``; empty where a rule is broken.
        cell: The cell with the trainer's defaults, or the rule that is broken.
    """

    seen: Mapping[str, object]
    fields: Mapping[str, Any]
    cell: Cell | Violation


class _Expander:
    """The normalised values of one grid, and how one combination becomes a cell."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._names = axis_names(grid.batch_kind)
        self._axes = self._normalised(grid.axes, "axes")
        self._zips = [self._zip(group) for group in grid.zips]
        self._entries = [self._normalised(entry, "cells") for entry in grid.cells] or [{}]
        self._refuse_twice_named()
        named = {*self._axes, *itertools.chain.from_iterable((*self._zips, *self._entries))}
        self._settings_names = tuple(name for name in _TRAINER if name in named)
        self._layout_names = tuple(name for name in self._names if name not in _TRAINER)
        self._exclude = self._conditions(grid.exclude)
        self._require = self._conditions(grid.require)
        # Where conditions look at the layout alone, they are answered once for all settings of the trainer.
        self._asks_settings = any({*_TRAINER} & asked.names for asked in (*self._exclude, *self._require))
        self._layout_key = operator.itemgetter(*self._layout_names)
        self._layout = self._resolve_layout
        if self._settings_names:
            # The trainer's axes come last in grid order, so that the same layout is asked for many times in a row.
            self._layout = functools.lru_cache(maxsize=1024)(self._resolve_layout)

    def _conditions(self, texts: Sequence[str]) -> list[Condition]:
        try:
            return [Condition(text, {*self._names, *DERIVED}) for text in texts]
        except ConditionError as error:
            raise GridError(f"grid {self._grid.name}: {error}") from error

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
        near = difflib.get_close_matches(name, self._names, n=3, cutoff=0.5)
        hint = f" Did you mean {' or '.join(near)}?" if near else f" Known are: {', '.join(self._names)}."
        return f"the unknown axis {name!r}.{hint}"

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
        fill_shard = "dp_shard" not in named
        for chosen in itertools.product(*rows):
            axes = base.copy()
            axes.update(zip(names, itertools.chain.from_iterable(chosen), strict=True))
            if fill_shard and AUTO in (axes["dp_replicate"], axes["tp"], axes["pp"], axes["cp"]):
                # FSDP over what the other degrees leave, unless another degree takes that.
                axes["dp_shard"] = 1
            yield axes

    def _require_named(self, named: set[str]) -> None:
        needed = ("nodes", "gpus_per_node", "device", "model", "seq_len", self._grid.batch_kind.value)
        missing = [name for name in needed if name not in named]
        if missing:
            raise GridError(f"grid {self._grid.name} gives no value for {', '.join(missing)}. Add it to its axes.")

    def resolve(self, axes: Mapping[str, AxisValue]) -> Cell | Violation:
        """The cell of one combination, or the rule that it breaks."""
        layout = self._layout(*self._layout_key(axes))
        if self._asks_settings:
            settings = {name: axes.get(name, axis_default(name)) for name in _TRAINER}
            left_out = self._left_out({**layout.seen, **settings})
            if left_out is not None:
                return left_out
        if not self._settings_names or isinstance(layout.cell, Violation):
            return layout.cell
        trainer = _trainer_settings(*((name[8:], axes[name]) for name in self._settings_names))
        return trainer if isinstance(trainer, Violation) else Cell(**layout.fields, trainer=trainer)

    def _resolve_layout(self, *layout: AxisValue) -> _Layout:
        values: dict[str, Any] = dict(zip(self._layout_names, layout, strict=True))
        kind, shape = self._grid.batch_kind, self._grid.models[values["model"]]
        gpus = values["nodes"] * values["gpus_per_node"]
        parallelism = _settled(gpus, *_of_layout(values))
        batch = _global_batch(kind, values[kind], gpus, values["seq_len"])
        seen: dict[str, object] = {}
        if self._exclude or self._require:
            if isinstance(parallelism, Parallelism):
                values.update((name, getattr(parallelism, name)) for name in DEGREES)
            seen = {**values, kind: _exact(values[kind])}
            seen |= {"gpus": gpus, "n_params": shape.n_params, "global_batch": batch}
            if not self._asks_settings and (left_out := self._left_out(seen)):
                return _Layout(seen=seen, fields={}, cell=left_out)
        if isinstance(parallelism, Violation):
            return _Layout(seen=seen, fields={}, cell=parallelism)
        if not isinstance(batch, int):
            return _Layout(seen=seen, fields={}, cell=_broken_batch(kind, values, gpus, batch))
        fields = _cell_fields(values, shape, parallelism, batch)
        cell = Cell(**fields, trainer=_DEFAULT_TRAINER)
        return _Layout(seen=seen, fields=fields, cell=first_violation(cell) or cell)

    def _left_out(self, seen: Mapping[str, object]) -> Violation | None:
        # A condition on a degree that auto could not settle is not asked: the combination is rejected for that.
        unsettled = {name for name in DEGREES if seen[name] == AUTO}
        try:
            for asked in self._exclude:
                if not unsettled & asked.names and asked.holds(seen):
                    return Violation(rule="exclude", reason=f"excluded by the grid's condition: {asked.text}")
            for asked in self._require:
                if not unsettled & asked.names and not asked.holds(seen):
                    return Violation(rule="require", reason=f"does not meet the grid's condition: {asked.text}")
        except ConditionError as error:
            raise GridError(f"grid {self._grid.name}: {error}") from error
        return None


@functools.lru_cache(maxsize=65536)
def _settled(gpus: int, *layout: Any) -> Parallelism | Violation:
    """The degrees with the number that ``auto`` comes to, or why there is none."""
    values = dict(zip(_LAYOUT, layout, strict=True))
    automatic = [name for name in DEGREES if values[name] == AUTO]
    if len(automatic) > 1:
        reason = f"{' and '.join(automatic)} are both auto. Only one degree can be what the others leave: set the rest."
        return Violation(rule="auto_degree", reason=reason)
    for name in automatic:
        others = {other: values[other] for other in DEGREES if other != name}
        product = math.prod(others.values())
        if gpus % product:
            shown = " x ".join(f"{other}={value}" for other, value in others.items() if value != 1)
            reason = (
                f"{name}=auto: {gpus} GPUs do not divide by {shown} = {product}. "
                "Lower a degree or change the number of nodes."
            )
            return Violation(rule="auto_degree", reason=reason)
        values[name] = gpus // product
    return Parallelism(**values)


def _broken_batch(kind: BatchKind, values: Mapping[str, Any], gpus: int, batch: Fraction | int) -> Violation:
    reason = (
        f"{kind}={values[kind]} on {gpus} GPUs at seq_len={values['seq_len']} is a global batch of {batch} sequences. "
        "It must be a whole number: change the batch, the sequence length or the nodes."
    )
    return Violation(rule="whole_batch", reason=reason)


def _exact(value: AxisValue) -> Fraction | int:
    """A batch value as a number: fractions are kept as text, ``1/2``."""
    return value if isinstance(value, int) else Fraction(str(value))


@functools.lru_cache(maxsize=65536)
def _global_batch(kind: BatchKind, value: AxisValue, gpus: int, seq_len: int) -> Fraction | int:
    batch = BatchRule(kind=kind, value=Fraction(_exact(value))).global_batch(gpus=gpus, seq_len=seq_len)
    return batch.numerator if batch.denominator == 1 else batch


_DEFAULT_TRAINER = TrainerSettings()


@functools.lru_cache(maxsize=65536)
def _trainer_settings(*pairs: tuple[str, Any]) -> TrainerSettings | Violation:
    try:
        return TrainerSettings(**dict(pairs))
    except ValueError as error:
        return Violation(rule="values", reason=str(error))


def _cell_fields(
    values: Mapping[str, Any], shape: ModelShape, parallelism: Parallelism, global_batch: int
) -> dict[str, Any]:
    """Every field of a cell but the trainer's settings."""
    fields: dict[str, Any] = dict(zip(_CELL, _of_cell(values), strict=True))
    if fields["micro_batch"] is None:
        # One micro-batch without a pipeline, single sequences with one; what does not divide fails its own rule.
        fields["micro_batch"] = 1 if parallelism.pp > 1 else max(1, global_batch // parallelism.data_ranks)
    fields["model"], fields["parallelism"], fields["global_batch"] = shape, parallelism, global_batch
    return fields
