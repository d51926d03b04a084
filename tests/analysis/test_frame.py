"""The frame: every table's columns of the same kinds, blanks as NA, values as the table has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from analysis.export import to_frame
from tests.analysis.factory import RunDir, table_of

if TYPE_CHECKING:
    from pathlib import Path


def test_every_value_is_the_tables_and_every_blank_is_na(tmp_path: Path) -> None:
    run = RunDir(
        tmp_path, axes={"nodes": (1, 2), "tp": (1, 3), "trainer.lr": (1e-4, 3e-4), "sequence_parallel": (True,)}
    )
    run.measure([0.1] * 20, axes={"nodes": 1, "tp": 1, "trainer.lr": 1e-4}, window_energy_j=1000.0)
    table = table_of(run)
    frame = to_frame(table)
    assert tuple(frame.columns) == table.columns
    assert len(frame) == len(table.rows) == 8
    for name in table.columns:
        for value, row in zip(frame[name].tolist(), table.rows, strict=True):
            assert (None if value is pd.NA else value) == row[name], name
            if isinstance(row[name], int) and name != "sequences_per_gpu":  # which may be a fraction
                assert type(value) is type(row[name]), name


def test_frames_of_runs_that_measured_nothing_and_something_have_columns_of_the_same_kinds(tmp_path: Path) -> None:
    empty, measured = RunDir(tmp_path / "empty"), RunDir(tmp_path / "measured")
    measured.measure([0.1] * 20, axes={"nodes": 1})
    one, other = to_frame(table_of(empty)), to_frame(table_of(measured))
    assert one.dtypes.to_dict() == other.dtypes.to_dict()
    both = pd.concat([one, other])
    assert both.dtypes.to_dict() == one.dtypes.to_dict()
    assert list(both[both.status == "measured"].tokens_per_s) == [other.tokens_per_s[0]]


def test_axes_that_only_some_grids_have_are_of_the_narrowest_kind(tmp_path: Path) -> None:
    run = RunDir(
        tmp_path, axes={"nodes": (1, 2), "trainer.lr": (1e-4, 3e-4), "trainer.seed": (0, 1), "device": ("h100",)}
    )
    kinds = to_frame(table_of(run)).dtypes.astype(str).to_dict()
    assert (kinds["trainer.lr"], kinds["trainer.seed"]) == ("Float64", "Int64")
