"""Draws the figure of a table: scaling curves with their ideal line, or bars for configurations that are compared."""

from __future__ import annotations

import io
import math
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import (
    FixedLocator,
    FuncFormatter,
    MaxNLocator,
    MultipleLocator,
    NullFormatter,
    NullLocator,
    PercentFormatter,
)

from analysis.export import figure_path
from analysis.rows import is_on_cpu
from sweep.core.grids.series import SeriesKind
from sweep.files import write_atomically

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from analysis.rows import Row
    from analysis.table import Table
    from sweep.core.cells.axis import AxisValue

# Okabe and Ito's palette, told apart by colour-blind readers; yellow is left out, it does not show on white.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_IDEAL: Any = {"color": "#777777", "linestyle": (0, (4, 2)), "linewidth": 0.9}
_HOLE: Any = {"marker": "x", "color": "black", "linestyle": "none", "markersize": 5}
_GREY = "#777777"
_WIDTH_IN = 3.4  # one column of a two-column paper
_MAX_BARS = 40
_MAX_LEGEND = 24
_STYLE: Any = {
    "font.size": 8,
    "axes.labelsize": 8,
    "axes.titlesize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 6.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#E5E5E5",
    "grid.linewidth": 0.5,
    "axes.axisbelow": True,
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "pdf.fonttype": 42,
}
# Without dates and versions the same table gives the same bytes.
_METADATA: Mapping[str, Mapping[str, None]] = {
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Producer": None, "Creator": None},
}


def write_figures(table: Table, out: Path) -> list[Path]:
    """Draw the table and write it in every format; no path where nothing was measured.

    Raises:
        OSError: If the folder cannot be made or written.
    """
    with mpl.rc_context(_STYLE):
        figure = draw(table)
        if figure is None:
            return []
        # Laid out once for all formats: it costs as much as drawing.
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        written = []
        for suffix, metadata in _METADATA.items():
            content = io.BytesIO()
            figure.savefig(content, format=suffix, dpi=300, metadata=metadata)
            path = figure_path(table, out, suffix)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, content.getvalue())
            written.append(path)
    return written


def draw(table: Table) -> Figure | None:
    """The table's figure; None where nothing was measured."""
    if not any(row.is_measured for row in table.rows):
        return None
    if table.sweep.series.kind is SeriesKind.FREE:
        return _bars(table)
    return _curves(table)


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """One quantity against the number of GPUs.

    Attributes:
        column: Which column of the table.
        label: Axis label, with the unit.
        is_log: Whether its axis is logarithmic, where the ideal is a straight line.
        is_flat: Whether the ideal stays at the baseline's value; else it grows with the GPUs.
        is_percent: Whether it is a share.
    """

    column: str
    label: str
    is_log: bool = False
    is_flat: bool = False
    is_percent: bool = False


_TOKENS = Panel(column="tokens_per_s", label="tokens/s", is_log=True)
_PER_GPU = Panel(column="tokens_per_s_per_gpu", label="tokens/s/GPU", is_flat=True)
_STEP_TIME = Panel(column="step_time_s", label="step time (s)", is_log=True)
_SPEEDUP = Panel(column="speedup", label="speed-up", is_log=True)
_EFFICIENCY = Panel(column="efficiency", label="efficiency", is_flat=True, is_percent=True)


def _curves(table: Table) -> Figure:
    """Two panels over the number of GPUs: what grows, and the share of the ideal that is kept."""
    rows = [row for row in table.rows if row.is_chosen]
    is_strong = table.sweep.series.kind is SeriesKind.STRONG
    is_compared = any(row["speedup"] is not None for row in rows)
    upper = (_SPEEDUP if is_compared else _STEP_TIME) if is_strong else _TOKENS
    lower = _EFFICIENCY if is_compared else _PER_GPU
    figure = Figure(figsize=(_WIDTH_IN, 3.6), layout="constrained")
    axes: Sequence[Axes] = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    for axis, panel in zip(axes, (upper, lower), strict=True):
        _panel(axis, panel, rows)
    _gpu_axis(axes[1], rows)
    n_series, has_holes = len(_by_series(rows)), any(not row.is_measured for row in rows)
    _mark_holes(axes[1], rows, is_named=n_series == 1)
    figure.align_ylabels(axes)
    others = {"ideal": _IDEAL} if is_compared or any(row.is_baseline and row.is_measured for row in rows) else {}
    if has_holes and n_series > 1:
        others["not measured (see table)"] = _HOLE
    _legend(figure, table, rows, others)
    _footnote(figure, table, rows)
    return figure


def _by_series(rows: Sequence[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(str(row["series"]), []).append(row)
    return found


def _panel(axis: Axes, panel: Panel, rows: Sequence[Row]) -> None:
    axis.set_xscale("log", base=2)
    measured = [row for row in rows if row.number(panel.column) is not None]
    shown = [bound for row in measured for bound in _bounds(row, panel.column)]
    for index, (label, members) in enumerate(_by_series(rows).items()):
        points = [row for row in members if row.number(panel.column) is not None]
        if points:
            _curve(axis, panel, _with_gaps(members, points), label, index)
            shown += _ideal(axis, panel, members)
    axis.set_ylabel(panel.label)
    if panel.is_log:
        _log_axis(axis, shown)
    else:
        axis.set_ylim(0, 1.12 * max(shown, default=1.0))
        percent, number = PercentFormatter(1, decimals=0), FuncFormatter(lambda value, _: _short(value))
        axis.yaxis.set_major_formatter(percent if panel.is_percent else number)
        if panel.is_percent:
            axis.yaxis.set_major_locator(MultipleLocator(0.25) if max(shown) < 1.5 else MaxNLocator(4))


def _with_gaps(members: Sequence[Row], points: Sequence[Row]) -> list[Row]:
    """The points and, where a number of GPUs has none, a hole: no line is drawn across what was not measured."""
    filled = {row["gpus"] for row in points}
    return [row for row in members if row in points or row["gpus"] not in filled]


def _curve(axis: Axes, panel: Panel, points: Sequence[Row], label: str, index: int) -> None:
    values = [math.nan if (value := row.number(panel.column)) is None else value for row in points]
    bounds = [_bounds(row, panel.column) for row in points]
    # Never below zero: a skewed distribution may put the estimate outside the percentile interval.
    errors = [
        [max(0.0, value - low) for value, (low, _) in zip(values, bounds, strict=True)],
        [max(0.0, high - value) for value, (_, high) in zip(values, bounds, strict=True)],
    ]
    xs = [row.number("gpus") or 0.0 for row in points]
    axis.errorbar(xs, values, yerr=errors, label=label, capsize=2, elinewidth=0.8, zorder=3, **_look(index))


def _look(index: int) -> dict[str, Any]:
    """Colour, marker and line of a series; they repeat together only after all of them."""
    return {
        "color": PALETTE[index % len(PALETTE)],
        "marker": MARKERS[index % len(MARKERS)],
        "linestyle": ("-", "--", "-.", ":")[index // len(PALETTE) % 4],
    }


def _bounds(row: Row, column: str) -> tuple[float, float]:
    """The interval of a column; the value itself where there is none."""
    value, gpus = row.number(column) or 0.0, row.number("gpus") or 1.0
    if column in ("tokens_per_s", "tokens_per_s_per_gpu"):
        low, high = row.rate_ci or (None, None)
        share = 1.0 if column == "tokens_per_s" else 1 / gpus
    elif column == "step_time_s":
        low, high, share = row.number("step_time_s_ci_low"), row.number("step_time_s_ci_high"), 1.0
    else:
        low, high = row.number("efficiency_ci_low"), row.number("efficiency_ci_high")
        share = value / (row.number("efficiency") or 1.0)
    return (value, value) if low is None or high is None else (low * share, high * share)


def _ideal(axis: Axes, panel: Panel, members: Sequence[Row]) -> list[float]:
    """Draw what ideal scaling from the baseline would give; the values drawn."""
    base = next((row for row in members if row.is_baseline and row.is_measured), None)
    value = None if base is None else base.number(panel.column)
    if base is None or value is None or panel is _STEP_TIME:
        return []
    start = base.number("gpus") or 1.0
    xs = sorted({row.number("gpus") or 1.0 for row in members})
    ys = [value if panel.is_flat else value * x / start for x in xs]
    axis.plot(xs, ys, zorder=2, **_IDEAL)
    return ys


def _log_axis(axis: Axes, shown: Sequence[float]) -> None:
    axis.set_yscale("log", base=2)
    low, high = min(shown, default=1.0), max(shown, default=1.0)
    # At least two doublings, so that a single point does not fill its axis with noise.
    spread = max(0.0, 2 - math.log2(high / low)) / 2
    low, high = low * 2 ** -(spread + 0.35), high * 2 ** (spread + 0.35)
    axis.set_ylim(low, high)
    axis.yaxis.set_major_locator(FixedLocator(_round_numbers(low, high)))
    axis.yaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))


def _round_numbers(low: float, high: float) -> list[float]:
    """Ticks at 1, 2, 5 of each decade between the limits; more in less than one decade, fewer in more than three."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1,) if high / low > 1000 else (1, 2, 5) if high / low > 10 else (1, 1.5, 2, 3, 4, 6, 8)
    return [tick for decade in decades for step in steps if low <= (tick := step * 10.0**decade) <= high]


def _short(value: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def _gpu_axis(axis: Axes, rows: Sequence[Row]) -> None:
    xs = sorted({int(row.number("gpus") or 1) for row in rows})
    every = -(-len(xs) // 8)
    axis.xaxis.set_major_locator(FixedLocator(xs[::every]))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_minor_formatter(NullFormatter())
    margin = 2 ** (0.06 * math.log2(xs[-1] / xs[0])) if xs[-1] > xs[0] else 2.0
    axis.set_xlim(xs[0] / margin, xs[-1] * margin)
    axis.set_xlabel("GPUs")


def _mark_holes(axis: Axes, rows: Sequence[Row], *, is_named: bool) -> None:
    """A cross on the axis for every number of GPUs with a hole, and its status where there is one series."""
    at: dict[float, list[str]] = {}
    for row in rows:
        if not row.is_measured:
            at.setdefault(row.number("gpus") or 1.0, []).append(str(row["status"]))
    for x, statuses in at.items():
        axis.plot([x], [0], transform=axis.get_xaxis_transform(), clip_on=False, **_HOLE)
        if is_named:
            axis.annotate(
                "\n".join(sorted(set(statuses))),
                (x, 0.0),
                xycoords=axis.get_xaxis_transform(),
                xytext=(0, 5),
                textcoords="offset points",
                rotation=90,
                ha="center",
                va="bottom",
                fontsize=5.5,
            )


def _bars(table: Table) -> Figure:
    """Throughput of each configuration as a bar; the baseline is outlined, holes say their status."""
    ranked = sorted(table.rows, key=lambda row: -(row.number("tokens_per_s_per_gpu") or 0.0))
    kept = {id(row) for row in ranked[:_MAX_BARS]}
    rows = [row for row in table.rows if id(row) in kept]
    colours = {name: PALETTE[i % len(PALETTE)] for i, name in enumerate(_by_series(rows))}
    values = [row.number("tokens_per_s_per_gpu") or 0.0 for row in rows]
    names = [textwrap.fill(_configuration(table, row), 30, break_on_hyphens=False) for row in rows]
    height = 0.8 + len(rows) * max(0.2, 0.13 * max(name.count("\n") + 1 for name in names))
    figure = Figure(figsize=(_WIDTH_IN, height), layout="constrained")
    axis: Axes = figure.subplots()
    bounds = [_bounds(row, "tokens_per_s_per_gpu") for row in rows]
    bars = axis.barh(
        range(len(rows)),
        values,
        height=0.7,
        color=[colours[str(row["series"])] for row in rows],
        xerr=[
            [max(0.0, value - low) for value, (low, _) in zip(values, bounds, strict=True)],
            [max(0.0, high - value) for value, (_, high) in zip(values, bounds, strict=True)],
        ],
        error_kw={"elinewidth": 0.8, "capsize": 2},
    )
    labels = [_percent_of_baseline(row) for row in rows]
    for index, (row, value, bar, (_, high)) in enumerate(zip(rows, values, bars, bounds, strict=True)):
        bar.set_hatch("////" if row.is_baseline and row.is_measured else None)
        bar.set_edgecolor("white")
        axis.text(
            max(value, high),
            index,
            f" {labels[index] if row.is_measured else row['status']}",
            va="center",
            fontsize=6,
            color="black" if value else _GREY,
        )
    axis.set_yticks(range(len(rows)), names)
    axis.set_ylim(len(rows) - 0.4, -0.6)
    axis.set_xlim(0, 1.22 * max(high for _, high in bounds))
    axis.grid(visible=False, axis="y")
    axis.set_xlabel("tokens/s/GPU")
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
    notes = ["percentages: share of the baseline's; what is not named is as in it"] if any(labels) else []
    if len(rows) < len(table.rows):
        notes.append(f"the best {len(rows)} of {len(table.rows)} configurations")
    _footnote(figure, table, rows, *notes)
    return figure


def _percent_of_baseline(row: Row) -> str:
    if row.is_baseline:
        return "baseline"
    efficiency = row.number("efficiency")
    return "" if efficiency is None else f"{100 * efficiency:.0f}%"


def _configuration(table: Table, row: Row) -> str:
    """The axes that tell a row from the others: its series', and those in which it differs from the baseline."""
    series = [other for other in table.rows if other["series"] == row["series"]]
    base = next((other for other in series if other.is_baseline and other.is_measured), None)
    told = set(table.series_axes)
    if base is None:
        told.update(table.varied)
    elif base is row:
        told.update(table.sweep.series.baseline)
    else:
        told.update(name for name in table.varied if row.axes.get(name) != base.axes.get(name))
    return ", ".join(f"{name}={_word(row.axes.get(name))}" for name in table.varied if name in told) or str(row["cell"])


def _word(value: AxisValue) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)


def _series_name(table: Table, row: Row) -> str:
    return ", ".join(_word(row.axes.get(name)) for name in table.series_axes)


def _legend(figure: Figure, table: Table, rows: Sequence[Row], others: Mapping[str, Any]) -> None:
    """Names the series by the values that tell them apart, and whatever else is drawn; nothing for nothing."""
    series = _by_series(rows)
    entries = {name: Line2D([], [], **look) for name, look in others.items()}
    if 1 < len(series) <= _MAX_LEGEND:
        named = {_series_name(table, members[0]): _look(index) for index, members in enumerate(series.values())}
        entries = {name: Line2D([], [], **look) for name, look in named.items()} | entries
    if not entries:
        return
    longest = max(len(name) for name in entries)
    columns = max(1, min(4, len(entries), 64 // (longest + 7)))
    figure.set_figheight(figure.get_figheight() + 0.14 * -(-len(entries) // columns))
    title = ", ".join(table.series_axes) if len(series) > 1 else None
    figure.legend(
        entries.values(),
        entries.keys(),
        loc="outside upper center",
        ncols=columns,
        frameon=False,
        title=title,
        title_fontsize=6.5,
    )


def _footnote(figure: Figure, table: Table, rows: Sequence[Row], *first: str) -> None:
    """What a reader must know who sees nothing but the figure."""
    notes = [*first]
    if len(_by_series(rows)) > _MAX_LEGEND:
        notes.append(f"{len(_by_series(rows))} series; the table names them")
    if any(row.is_measured and is_on_cpu(row, table.sweep) for row in rows):
        notes.append("on CPUs: what is called a GPU here is a process")
    if any(row["oversubscribed"] is True for row in rows):
        notes.append("more ranks than devices or cores: a demonstration, not a measurement")
    if table.provenance.sources != ("measured",):
        notes.append(f"source: {', '.join(table.provenance.sources)}")
    if notes:
        figure.supxlabel("\n".join(notes), fontsize=6, style="italic")
