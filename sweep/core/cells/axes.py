"""The axes that a grid can vary: their names, the order that tables show them in, their defaults and their values."""

from __future__ import annotations

from dataclasses import asdict, fields
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from sweep.core.cells.axis import AxisValue
from sweep.core.cells.batch import BatchKind
from sweep.core.cells.cell import Cell, Checkpointing, Precision
from sweep.core.cells.parallelism import Parallelism
from sweep.core.cells.trainer_settings import TrainerSettings
from sweep.core.encoding.codec import convert_value
from sweep.core.encoding.nearest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sweep.core.cells.model_shape import ModelShape

AUTO = "auto"
DEGREES = ("dp_replicate", "dp_shard", "tp", "pp", "cp")
LAYOUT = (*DEGREES, "schedule", "virtual_stages", "async_tp", "sequence_parallel")
"""Axes of the layout, by the names of the fields of :class:`sweep.core.cells.parallelism.Parallelism`."""
_OF_CELL = (
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
SETTINGS = tuple(f"trainer.{item.name}" for item in fields(TrainerSettings))
"""Axes of the trainer's settings, by their dotted names."""
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
AXES: tuple[str, ...] = ("nodes", "gpus_per_node", "device", "model", "seq_len", *BatchKind, *LAYOUT, *_OF_CELL[4:])
"""Every axis but the trainer's settings, in the order in which tables show them."""


class GridError(ValueError):
    """A grid cannot be read or expanded; the message says what to change."""


def axis_default(name: str) -> AxisValue:
    """The value of an axis in a combination that does not name it; None where it has no default, as ``nodes``."""
    return _DEFAULTS.get(name)


def axis_names(batch_kind: BatchKind) -> tuple[str, ...]:
    """The axes that a grid with this batch rule may use, the trainer's settings included."""
    other = set(BatchKind) - {batch_kind}
    return (*(name for name in AXES if name not in other), *SETTINGS)


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
    if name in LAYOUT:
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
    raise ValueError(
        f"{name}={value!r} is not known. {did_you_mean(str(value), known)}Known are: {', '.join(sorted(known))}."
    )


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
