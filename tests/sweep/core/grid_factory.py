"""Grids of one cell with other axes, and what they expand to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from sweep.core.cells.axis import AxisValue
from sweep.core.cells.batch import BatchKind
from sweep.core.cells.model_shape import ModelShape
from sweep.core.grids.grid import EmptyGridError, Expansion, Grid, expand

SMALL = ModelShape(name="small", n_layers=8, hidden=512, n_heads=8, n_kv_heads=8, ffn_hidden=1024, vocab_size=1024)
LARGE = replace(SMALL, name="large", n_layers=16)
AXES_OF_ONE: Mapping[str, tuple[AxisValue, ...]] = {
    "nodes": (1,),
    "gpus_per_node": (8,),
    "device": ("h100",),
    "model": ("small",),
    "seq_len": (4096,),
}
KINDS: Mapping[BatchKind, AxisValue] = {
    BatchKind.SEQUENCES_PER_GPU: 2,
    BatchKind.TOKENS_PER_GPU: 8192,
    BatchKind.GLOBAL_BATCH: 64,
}


def grid(
    kind: BatchKind = BatchKind.SEQUENCES_PER_GPU,
    *,
    zips: Sequence[Mapping[str, tuple[AxisValue, ...]]] = (),
    cells: Sequence[Mapping[str, tuple[AxisValue, ...]]] = (),
    exclude: Sequence[str] = (),
    require: Sequence[str] = (),
    drop: Sequence[str] = (),
    **axes: object,
) -> Grid:
    """A grid of one cell with other axes; ``trainer__lr`` stands for ``trainer.lr``."""
    given = {name.replace("__", "."): value if isinstance(value, tuple) else (value,) for name, value in axes.items()}
    whole = {**AXES_OF_ONE, kind.value: (KINDS[kind],), **given}
    return Grid(
        name="g",
        batch_kind=kind,
        axes={name: values for name, values in whole.items() if name not in drop},
        models={"small": SMALL, "large": LARGE},
        zips=tuple(zips),
        cells=tuple(cells),
        exclude=tuple(exclude),
        require=tuple(require),
    )


def column(expansion: Expansion, *names: str) -> list[tuple[AxisValue, ...]]:
    return [tuple(point.axes[name] for name in names) for point in expansion.points]


def only(expansion: Expansion) -> tuple[Mapping[str, AxisValue], object]:
    (point,) = expansion.points
    return point.axes, expansion.cells[point.cell_id]


def rejected(grid: Grid) -> str:
    """The single rejection of a grid that has nothing else, with its rule."""
    with pytest.raises(EmptyGridError) as caught:
        expand(grid)
    return str(caught.value).splitlines()[-1].strip()
