"""The files: CSV that other tools read, Markdown that people read, whole and the same for the same input."""

from __future__ import annotations

import csv
from pathlib import Path

import pandas as pd
import pytest

from analysis.columns import significant
from analysis.export import to_csv, to_markdown, to_text, write_tables
from sweep.core.attempts.attempt import Outcome
from sweep.core.grids.series import Envelope, SeriesKind
from sweep.files import write_atomically
from tests.analysis.factory import RunDir, table_of

GOLDEN = Path(__file__).parent / "golden"


def sample(path: Path) -> RunDir:
    """Weak scaling with every kind of thing that a caption has to say; constant steps, so no library's draws matter."""
    run = RunDir(path, axes={"nodes": (1, 2, 3, 4, 8), "tp": (1, 3)}, exclude=("nodes >= 4 and tp == 3",), grid="weak")
    run.measure([0.1] * 20, axes={"nodes": 1, "tp": 1}, window_energy_j=1000.0)
    run.measure([0.125] * 20, axes={"nodes": 2, "tp": 1}, oversubscribed=True, throttled=True)
    run.end(run.key(nodes=4, tp=1), Outcome.OOM_DEVICE, reason="rank 0: tried <12> | *GiB*\n\x1b[31mof 80")
    run.submit(run.key(nodes=8, tp=1))
    return run


def test_markdown_is_the_recorded_text(tmp_path: Path) -> None:
    assert to_markdown(table_of(sample(tmp_path))) == (GOLDEN / "weak.md").read_text()


def test_terminal_text_is_the_recorded_text(tmp_path: Path) -> None:
    assert to_text(table_of(sample(tmp_path))) == (GOLDEN / "weak.txt").read_text()


def test_csv_is_read_back_by_pandas_at_full_precision(tmp_path: Path) -> None:
    run = sample(tmp_path)
    table = table_of(run)
    (tmp_path / "table.csv").write_text(to_csv(table))
    frame = pd.read_csv(tmp_path / "table.csv")
    assert tuple(frame.columns) == table.columns
    assert len(frame) == len(table.rows)
    for index, row in enumerate(table.rows):
        for name in ("step_time_s", "tokens_per_s", "efficiency", "gpu_hours", "mfu"):
            value = frame[name][index]
            assert (None if pd.isna(value) else value) == row[name]
    measured = frame[frame.status == "measured"]
    assert list(measured.oversubscribed) == [False, True]
    assert list(frame.reshard_after_forward.dropna().unique()) == [False]


def test_csv_has_lf_line_ends_and_one_line_a_row(tmp_path: Path) -> None:
    table = table_of(sample(tmp_path))
    text = to_csv(table)
    assert "\r" not in text
    assert len(text.splitlines()) == len(table.rows) + 1
    assert "\x1b" not in text


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t=", "\r@"])
def test_a_reason_that_a_spreadsheet_would_run_is_harmless(tmp_path: Path, start: str) -> None:
    run = RunDir(tmp_path, axes={"nodes": (1,)}, repeats=1)
    run.measure([0.1] * 20, device_name=f'{start}HYPERLINK("x"),H100')
    (row,) = csv.DictReader(to_csv(table_of(run)).splitlines())
    assert row["gpu"] == f'\'{start.strip()}HYPERLINK("x"),H100'


def test_an_empty_table_still_names_its_grid(tmp_path: Path) -> None:
    run = RunDir(tmp_path, baseline={})
    text = to_markdown(table_of(run))
    assert "source: nothing measured yet; devices: no device has reported yet" in text
    assert "No baseline is named." in text
    assert "3 points, 0 measured; holes: 3 not_run." in text
    assert "**Software**" not in text


def test_the_caption_says_when_the_baseline_was_not_measured(tmp_path: Path) -> None:
    assert "Baseline: nodes=1; it was not measured." in to_markdown(table_of(RunDir(tmp_path)))


@pytest.mark.parametrize("kind", SeriesKind)
def test_every_kind_of_series_gives_its_formulas(tmp_path: Path, kind: SeriesKind) -> None:
    text = to_markdown(table_of(RunDir(tmp_path, kind=kind)))
    assert ("T0/T" in text) == (kind is SeriesKind.STRONG)
    assert "efficiency =" in text


def test_the_caption_says_that_an_envelope_was_taken_and_names_the_first_baselines(tmp_path: Path) -> None:
    run = RunDir(
        tmp_path,
        axes={"nodes": (1,), "seq_len": (128, 256, 384, 512), "reshard_after_forward": (True, False)},
        series={"envelope": Envelope.BEST},
    )
    for point in run.sweep.points:
        run.measure([0.1 + 0.1 * bool(point.axes["reshard_after_forward"])] * 20, axes=point.axes)
    text = to_markdown(table_of(run))
    assert "Only the best layout at each number of GPUs is compared." in text
    assert "tokens/s/GPU) and 1 more." in text


def test_a_reason_of_many_rows_is_listed_once(tmp_path: Path) -> None:
    run = RunDir(tmp_path, axes={"nodes": tuple(range(1, 11))})
    text = to_markdown(table_of(run))
    assert "nodes=6 and 4 more: not run yet" in text


def test_the_terminal_is_not_flooded_with_reasons(tmp_path: Path) -> None:
    run = RunDir(tmp_path, axes={"nodes": tuple(range(1, 31))})
    for nodes in range(1, 31):
        run.end(run.key(nodes=nodes), Outcome.OOM_DEVICE, reason=f"on node {nodes}")
    text = to_text(table_of(run))
    assert text.count("OOM_DEVICE: on node") == 20
    assert "and 10 more reasons, in the tables" in text


def test_files_are_written_whole_and_leave_nothing_else(tmp_path: Path) -> None:
    table = table_of(sample(tmp_path / "run"))
    paths = write_tables(table, tmp_path / "out")
    assert [path.relative_to(tmp_path / "out").as_posix() for path in paths] == ["tables/weak.csv", "tables/weak.md"]
    first = [path.read_bytes() for path in paths]
    write_tables(table_of(sample(tmp_path / "again")), tmp_path / "out")
    assert [path.read_bytes() for path in paths] == first
    assert sorted(path.name for path in (tmp_path / "out" / "tables").iterdir()) == ["weak.csv", "weak.md"]


def test_a_reader_that_has_the_old_file_open_keeps_it_whole(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a.csv", b"old")
    with (tmp_path / "a.csv").open("rb") as reader:
        write_atomically(tmp_path / "a.csv", b"new")
        assert reader.read() == b"old"
    assert (tmp_path / "a.csv").read_bytes() == b"new"


def test_a_write_that_fails_keeps_the_old_file_and_no_part_of_the_new(tmp_path: Path) -> None:
    target = tmp_path / "tables" / "a.csv"
    target.mkdir(parents=True)
    (target / "in the way").touch()
    with pytest.raises(OSError, match=r"a\.csv"):
        write_atomically(target, b"new")
    assert [path.name for path in target.parent.iterdir()] == ["a.csv"]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, ""),
        (0.0, "0.000"),
        (0.012345, "0.01235"),
        (1.5, "1.500"),
        (999.96, "1000"),
        (12345.6, "12,346"),
        (1e-7, "1.000e-07"),
    ],
)
def test_numbers_are_rounded_for_reading(value: float | None, shown: str) -> None:
    assert significant(value) == shown
