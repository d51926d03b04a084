"""The figures: what is drawn, what is marked, and that the same table gives the same bytes."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from analysis.figures.figure import draw, write_figures
from sweep.core.attempts.attempt import Outcome
from sweep.core.grids.series import Envelope, SeriesKind
from tests.analysis.factory import RunDir, table_of

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure


def drawn(run: RunDir) -> Figure:
    figure = draw(table_of(run))
    assert figure is not None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure.canvas.draw()
    return figure


def texts(figure: Figure) -> str:
    found = [text.get_text() for axis in figure.axes for text in axis.texts]
    found += [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    label = figure.get_supxlabel()
    return "\n".join([*found, label])


def curve(axis: Any, index: int = 0) -> list[list[float]]:
    line = axis.containers[index].lines[0]
    return [[float(value) for value in line.get_xdata()], [float(value) for value in line.get_ydata()]]


def wobbly(time_s: float) -> list[float]:
    return [time_s * (1 + 0.1 * (k * k % 13) / 13) for k in range(20)]


def test_weak_scaling_shows_throughput_efficiency_and_the_ideal(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    for nodes, time_s in ((1, 0.1), (2, 0.125), (4, 0.2)):
        run.measure([time_s] * 20, axes={"nodes": nodes})
    figure = drawn(run)
    upper, lower = figure.axes
    assert (upper.get_ylabel(), lower.get_ylabel(), lower.get_xlabel()) == ("tokens/s", "efficiency", "GPUs")
    assert curve(upper) == [[1, 2, 4], pytest.approx([2560, 4096, 5120])]
    assert curve(lower)[1] == pytest.approx([1, 0.8, 0.5])
    (ideal,) = [line for line in upper.lines if line.get_linestyle() == "--" and line.get_marker() == "None"]
    assert np.asarray(ideal.get_ydata()) == pytest.approx([2560, 5120, 10240])
    assert [tick.get_text() for tick in lower.get_xticklabels()] == ["1", "2", "4"]
    assert texts(figure).strip() == "ideal"


def test_strong_scaling_shows_the_speedup_and_its_error_bars(tmp_path: Path) -> None:
    run = RunDir(tmp_path, kind=SeriesKind.STRONG)
    for nodes in (1, 2, 4):
        run.measure(wobbly(0.8 / nodes**0.8), axes={"nodes": nodes})
    figure = drawn(run)
    upper: Any
    upper, lower = figure.axes
    assert (upper.get_ylabel(), lower.get_ylabel()) == ("speed-up", "efficiency")
    (bars,) = upper.containers[0].lines[2]
    heights = [float(np.ptp(segment[:, 1])) for segment in bars.get_segments()]
    assert heights[0] == pytest.approx(0)
    assert min(heights[1:]) > 0


def test_error_bars_are_never_cut_off(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    for nodes in (1, 2):
        run.measure([0.1 / nodes**2 * (1 + (k * k % 13) / 2) for k in range(10)], axes={"nodes": nodes})
    for axis in drawn(run).axes:
        any_axis: Any = axis
        (bars,) = any_axis.containers[0].lines[2]
        ends = np.array([end for segment in bars.get_segments() for _, end in segment])
        low, high = axis.get_ylim()
        assert low <= ends.min()
        assert ends.max() <= high


def test_without_a_baseline_the_absolute_figures_are_drawn(tmp_path: Path) -> None:
    for kind, upper_label in ((SeriesKind.WEAK, "tokens/s"), (SeriesKind.STRONG, "step time (s)")):
        run = RunDir(tmp_path / upper_label.replace("/", ""), kind=kind, baseline={})
        for nodes in (1, 2):
            run.measure(wobbly(0.1), axes={"nodes": nodes})
        figure = drawn(run)
        assert [axis.get_ylabel() for axis in figure.axes] == [upper_label, "tokens/s/GPU"]
        assert not figure.legends


def test_under_an_envelope_only_the_best_layouts_are_drawn(tmp_path: Path) -> None:
    run = RunDir(
        tmp_path,
        axes={"nodes": (1, 2), "reshard_after_forward": (True, False)},
        series={"envelope": Envelope.BEST},
    )
    for point in run.sweep.points:
        run.measure([0.1 if point.axes["reshard_after_forward"] else 0.2] * 20, axes=point.axes)
    assert curve(drawn(run).axes[0]) == [[1, 2], pytest.approx([2560, 5120])]


def test_holes_are_marked_on_the_axis_and_no_line_crosses_them(tmp_path: Path) -> None:
    run = RunDir(tmp_path, axes={"nodes": (1, 2, 4)})
    run.measure([0.1] * 20, axes={"nodes": 1})
    run.measure([0.1] * 20, axes={"nodes": 4})
    run.end(run.key(nodes=2), Outcome.OOM_DEVICE)
    figure = drawn(run)
    assert "oom_device" in texts(figure)
    crosses = [line for line in figure.axes[1].lines if line.get_marker() == "x"]
    assert [np.asarray(line.get_xdata()).tolist() for line in crosses] == [[2]]
    ys = curve(figure.axes[0])[1]
    assert np.isnan(ys[1])
    assert not np.isnan([ys[0], ys[2]]).any()


def test_with_many_series_the_legend_names_them_and_what_a_cross_means(tmp_path: Path) -> None:
    run = RunDir(tmp_path, axes={"nodes": (1, 2), "model": ("tiny", "small"), "compile": (False,)})
    run.measure([0.1] * 20, axes={"nodes": 1, "model": "tiny"})
    run.measure([0.1] * 20, axes={"nodes": 1, "model": "small"})
    figure = drawn(run)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "tiny",
        "small",
        "ideal",
        "not measured (see table)",
    ]
    assert figure.legends[0].get_title().get_text() == "model"


def test_too_many_series_for_a_legend_are_noted(tmp_path: Path) -> None:
    run = RunDir(tmp_path, axes={"nodes": (1,), "seq_len": tuple(range(64, 64 + 30))})
    for point in run.sweep.points:
        run.measure([0.1] * 20, axes=point.axes)
    figure = drawn(run)
    assert "30 series; the table names them" in texts(figure)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["ideal"]


def test_a_demonstration_and_a_simulation_are_noted_below_the_figure(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.measure([0.1] * 20, axes={"nodes": 1}, oversubscribed=True, source="simulated")
    found = texts(drawn(run))
    assert "a demonstration, not a measurement" in found
    assert "source: simulated" in found


def test_ranks_on_cpus_are_not_called_gpus(tmp_path: Path) -> None:
    run = RunDir(tmp_path, axes={"nodes": (1, 2), "device": ("cpu",)})
    run.measure([0.1] * 20, axes={"nodes": 1})
    table = table_of(run)
    assert "1 of 1 measured points on CPUs: what this table calls a GPU is a process there" in table.notes
    assert "on CPUs: what is called a GPU here is a process" in texts(drawn(run))


def test_a_single_point_is_drawn_with_round_ticks_around_it(tmp_path: Path) -> None:
    run = RunDir(tmp_path, axes={"nodes": (1,)})
    run.measure([0.1] * 20)
    upper = drawn(run).axes[0]
    low, high = upper.get_ylim()
    assert low < 2560 < high
    assert len([tick for tick in upper.get_yticks() if low <= tick <= high]) >= 2


def test_a_wide_range_has_few_ticks(tmp_path: Path) -> None:
    run = RunDir(tmp_path, axes={"nodes": (1, 4096)})
    for nodes in (1, 4096):
        run.measure([1e-7] * 20, axes={"nodes": nodes})
    upper = drawn(run).axes[0]
    assert {text.get_text() for text in upper.get_yticklabels()} == {"10G", "100G", "1000G", "10000G"}


def test_configurations_are_bars_with_their_share_of_the_baseline(tmp_path: Path) -> None:
    run = RunDir(
        tmp_path,
        kind=SeriesKind.FREE,
        axes={"nodes": (1,), "precision": ("bf16", "fp32"), "reshard_after_forward": (True, False)},
        baseline={"precision": "bf16", "reshard_after_forward": False},
    )
    run.measure([0.1] * 20, axes={"precision": "bf16", "reshard_after_forward": False})
    run.measure([0.2] * 20, axes={"precision": "fp32", "reshard_after_forward": False})
    run.end(run.key(precision="fp32", reshard_after_forward=True), Outcome.OOM_DEVICE)
    figure = drawn(run)
    (axis,) = figure.axes
    bars: Any = axis.patches
    labels = [text.get_text() for text in axis.get_yticklabels()]
    assert labels == [
        "reshard_after_forward=yes",
        "precision=bf16,\nreshard_after_forward=no",
        "precision=fp32,\nreshard_after_forward=yes",
        "precision=fp32",
    ]
    assert [text.get_text().strip() for text in axis.texts] == ["not_run", "baseline", "oom_device", "50%"]
    assert [bar.get_width() for bar in bars] == pytest.approx([0, 2560, 0, 1280])
    assert "share of the baseline's; what is not named is as in it" in texts(figure)
    assert axis.get_xlim()[1] > max(segment[:, 0].max() for segment in axis.collections[0].get_segments())


def test_one_configuration_without_a_baseline_is_named_by_its_cell(tmp_path: Path) -> None:
    run = RunDir(tmp_path, kind=SeriesKind.FREE, axes={"nodes": (1,)}, baseline={})
    run.measure([0.1] * 20)
    (axis,) = drawn(run).axes
    assert [text.get_text() for text in axis.get_yticklabels()] == [run.cell_id()]
    assert axis.get_xlabel() == "tokens/s/GPU"


def test_only_the_best_of_very_many_configurations_are_shown_with_a_note(tmp_path: Path) -> None:
    run = RunDir(
        tmp_path,
        kind=SeriesKind.FREE,
        axes={"nodes": (1,), "seq_len": tuple(range(64, 64 + 45)), "micro_batch": (None,)},
        baseline={"seq_len": 64},
    )
    run.measure([0.1] * 20, axes={"seq_len": 100})
    figure = drawn(run)
    assert len(figure.axes[0].patches) == 40
    assert "the best 40 of 45 configurations" in texts(figure)


def test_nothing_measured_draws_nothing(tmp_path: Path) -> None:
    table = table_of(RunDir(tmp_path / "run"))
    assert draw(table) is None
    assert write_figures(table, tmp_path) == []


def test_the_same_table_gives_the_same_bytes(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    run.measure(wobbly(0.1), axes={"nodes": 1})
    contents = []
    for name in ("a", "b"):
        paths = write_figures(table_of(run), tmp_path / name)
        assert [path.name for path in paths] == ["demo.png", "demo.pdf"]
        contents.append([path.read_bytes() for path in paths])
    assert contents[0] == contents[1]
    assert b"CreationDate" not in contents[0][1]
    assert contents[0][0].startswith(b"\x89PNG")


def test_long_names_of_configurations_are_wrapped_so_that_bars_have_room(tmp_path: Path) -> None:
    run = RunDir(
        tmp_path,
        kind=SeriesKind.FREE,
        axes={
            "nodes": (1, 2),
            "model": ("tiny", "small"),
            "seq_len": (1024, 2048),
            "precision": ("bf16", "fp32"),
            "activation_checkpointing": ("none", "full"),
            "trainer.lr": (0.0001, 0.0002),
            "trainer.weight_decay": (0.01, 0.02),
        },
        baseline={},
    )
    run.measure([0.1] * 20, axes=run.sweep.points[0].axes)
    (axis,) = drawn(run).axes
    assert all("\n" in text.get_text() for text in axis.get_yticklabels())
    assert axis.get_position().width > 0.4
