"""One combination of axis values: the cell that it stands for, or the rule that it breaks."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import fields
from fractions import Fraction
from typing import Any, NamedTuple

from sweep.core.cells.axes import ALL_AXES, SETTINGS, GridError, axis_default
from sweep.core.cells.axis import AUTO, AxisValue
from sweep.core.cells.batch import BatchKind, BatchRule
from sweep.core.cells.cell import Cell
from sweep.core.cells.device import Device
from sweep.core.cells.model_shape import ModelShape
from sweep.core.cells.parallelism import DEGREES, LAYOUT, Parallelism
from sweep.core.cells.rules import Violation, first_violation, first_violation_of_settings
from sweep.core.cells.trainer_settings import TrainerSettings
from sweep.core.encoding.message import counted
from sweep.core.grids.conditions import Condition, ConditionError

_LAYOUT_NAMES = tuple(item.name for item in LAYOUT)
_of_layout = operator.itemgetter(*_LAYOUT_NAMES)
DERIVED = ("gpus", "n_params", "global_batch")
"""Names that conditions may use besides the axes."""
LEFT_OUT = ("exclude", "require")
"""Rules of rejections that are a grid's own choice; every other one says that the combination is impossible."""


class _Layout(NamedTuple):
    """A combination's layout and sizes, without the trainer's settings.

    Attributes:
        cell: The cell with the trainer's defaults, or the rule that is broken.
        seen: What conditions see: the axes with ``auto`` settled, and the derived names; empty without conditions.
    """

    cell: Cell | Violation
    seen: Mapping[str, object]


class Resolver:
    """Turns combinations of one grid into cells; what several of them share is worked out once.

    Args:
        grid: The grid's name, for messages.
        batch_kind: What the grid holds fixed.
        models: Shapes by the names that the ``model`` axis uses.
        devices: Profiles by the names that the ``device`` axis uses, as far as they are known.
        names: Axes of every combination: those of the layout in grid order, and the settings that the grid names.
        exclude: Conditions whose combinations are left out.
        require: Conditions that every combination must meet.

    Raises:
        GridError: If a condition is wrong.
    """

    def __init__(
        self,
        *,
        grid: str,
        batch_kind: BatchKind,
        models: Mapping[str, ModelShape],
        devices: Mapping[str, Device],
        names: tuple[tuple[str, ...], tuple[str, ...]],
        exclude: Sequence[str],
        require: Sequence[str],
    ) -> None:
        """Read the conditions once."""
        self._grid = grid
        self._batch_kind = batch_kind
        self._models = models
        self._devices = devices
        self._layout_names, self._settings_names = names
        self._exclude = self._conditions(exclude)
        self._require = self._conditions(require)
        # Where conditions look at the layout alone, they are answered once for all settings of the trainer.
        self._asks_settings = any({*SETTINGS} & asked.names for asked in (*self._exclude, *self._require))
        self._layout_key = operator.itemgetter(*self._layout_names)
        self._layout = self._resolve_layout
        if self._settings_names:
            # The trainer's axes come last in grid order, so that the same layout is asked for many times in a row.
            self._layout = functools.lru_cache(maxsize=1024)(self._resolve_layout)

    def _conditions(self, texts: Sequence[str]) -> list[Condition]:
        try:
            return [Condition(text, {*self._layout_names, *SETTINGS, *DERIVED}) for text in texts]
        except ConditionError as error:
            raise GridError(f"grid {self._grid}: {error}") from error

    def resolve(self, axes: Mapping[str, AxisValue]) -> Cell | Violation:
        """The cell of one combination, or the rule that it breaks."""
        layout = self._layout(*self._layout_key(axes))
        if self._asks_settings:
            settings = {name: axes.get(name, axis_default(name)) for name in SETTINGS}
            left_out = self._left_out({**layout.seen, **settings})
            if left_out is not None:
                return left_out
        cell = layout.cell
        if isinstance(cell, Violation):
            return cell
        if self._settings_names:
            trainer = _trainer_settings(*((ALL_AXES[name].field, axes[name]) for name in self._settings_names))
            if isinstance(trainer, Violation):
                return trainer
            cell = _with_settings(cell, trainer)
        return first_violation_of_settings(cell) or cell

    def _resolve_layout(self, *layout: AxisValue) -> _Layout:
        values: dict[str, Any] = dict(zip(self._layout_names, layout, strict=True))
        kind, shape = self._batch_kind, self._models[values["model"]]
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
                return _Layout(left_out, seen)
        if isinstance(parallelism, Violation):
            return _Layout(parallelism, seen)
        if not isinstance(batch, int):
            return _Layout(_broken_batch(kind, values, gpus, batch), seen)
        cell = _cell(values, shape, parallelism, batch)
        return _Layout(first_violation(cell, self._devices.get(cell.device)) or cell, seen)

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
            raise GridError(f"grid {self._grid}: {error}") from error
        return None


@functools.lru_cache(maxsize=65536)
def _settled(gpus: int, *layout: Any) -> Parallelism | Violation:
    """The degrees with the number that ``auto`` comes to, or why there is none."""
    values = dict(zip(_LAYOUT_NAMES, layout, strict=True))
    automatic = [name for name in DEGREES if values[name] == AUTO]
    if len(automatic) > 1:
        reason = f"{' and '.join(automatic)} are both auto. Only one degree can be what the others leave: set the rest."
        return Violation(rule="auto_degree", reason=reason)
    for name in automatic:
        others = {other: values[other] for other in DEGREES if other != name}
        product = math.prod(others.values())
        if gpus % product:
            factors = [f"{other}={value}" for other, value in others.items() if value != 1]
            shown = " x ".join(factors) + (f" = {product}" if len(factors) > 1 else "")
            reason = (
                f"{name}=auto: {counted(gpus, 'GPU')} cannot be divided by {shown}. "
                "Lower a degree or change the number of nodes."
            )
            return Violation(rule="auto_degree", reason=reason)
        values[name] = gpus // product
    return Parallelism(**values)


def _broken_batch(kind: BatchKind, values: Mapping[str, Any], gpus: int, batch: Fraction | int) -> Violation:
    reason = (
        f"{kind}={values[kind]} on {counted(gpus, 'GPU')} at seq_len={values['seq_len']} is a global batch of "
        f"{batch} sequences. "
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


def _cell(values: Mapping[str, Any], shape: ModelShape, parallelism: Parallelism, global_batch: int) -> Cell:
    """The cell with the trainer's default settings."""
    micro_batch = values["micro_batch"]
    if micro_batch is None:
        # One micro-batch without a pipeline, single sequences with one; what does not divide fails its own rule.
        micro_batch = 1 if parallelism.pp > 1 else max(1, global_batch // parallelism.data_ranks)
    return Cell(
        model=shape,
        parallelism=parallelism,
        global_batch=global_batch,
        micro_batch=micro_batch,
        trainer=_DEFAULT_TRAINER,
        **dict(zip(_OWN, _own_values(values), strict=True)),
    )


def _with_settings(cell: Cell, trainer: TrainerSettings) -> Cell:
    # dataclasses.replace takes three times as long, and a grid may have 100,000 cells of few layouts.
    return Cell(trainer=trainer, **dict(zip(_BUT_SETTINGS, _but_settings(cell), strict=True)))


_OWN = tuple(
    name for name, item in ALL_AXES.items() if item.owner is Cell and name not in ("model", "micro_batch", *BatchKind)
)
"""Axes whose value is that of the cell's field of the same name."""
_own_values = operator.itemgetter(*_OWN)
_BUT_SETTINGS = tuple(item.name for item in fields(Cell) if item.name != "trainer")
_but_settings = operator.attrgetter(*_BUT_SETTINGS)
