"""Draws the figure of a table, curves or bars of the throughput of configurations, and writes it in every format."""

from __future__ import annotations

import io
import textwrap
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from analysis.columns import COLUMNS
from analysis.figures.curves import draw_curves
from analysis.figures.marks import PALETTE, WIDTH_IN, add_footnote, by_series, error_bars, interval_of, short, word
from sweep.core.grids.series import SeriesKind
from sweep.core.records.layout import FIGURES_DIR
from sweep.files import make_folder, write_atomically

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from matplotlib.axes import Axes

    from analysis.rows import Row
    from analysis.table import Table

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
    "text.parse_math": False,  # a name with a dollar sign is no formula
}
_COLUMN = "tokens_per_s_per_gpu"
_GREY = "#777777"
_MAX_BARS = 40
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
            path = make_folder(out, FIGURES_DIR) / f"{table.sweep.grid}.{suffix}"
            write_atomically(path, content.getvalue())
            written.append(path)
    return written


def draw(table: Table) -> Figure | None:
    """The table's figure; None where nothing was measured."""
    if not any(row.is_measured for row in table.rows):
        return None
    if table.sweep.series.kind is SeriesKind.FREE:
        return draw_bars(table)
    return draw_curves(table)


def draw_bars(table: Table) -> Figure:
    """Throughput of each configuration as a bar; the baseline is outlined, holes say their status."""
    ranked = sorted(table.rows, key=lambda row: -(row.number(_COLUMN) or 0.0))
    kept = {id(row) for row in ranked[:_MAX_BARS]}
    rows = [row for row in table.rows if id(row) in kept]
    colours = {name: PALETTE[i % len(PALETTE)] for i, name in enumerate(by_series(rows))}
    values = [row.number(_COLUMN) or 0.0 for row in rows]
    names = [textwrap.fill(_configuration(table, row), 30, break_on_hyphens=False) for row in rows]
    height = 0.8 + len(rows) * max(0.2, 0.13 * max(name.count("\n") + 1 for name in names))
    figure = Figure(figsize=(WIDTH_IN, height), layout="constrained")
    axis: Axes = figure.subplots()
    bars = axis.barh(
        range(len(rows)),
        values,
        height=0.7,
        color=[colours[str(row["series"])] for row in rows],
        xerr=error_bars(rows, _COLUMN),
        error_kw={"elinewidth": 0.8, "capsize": 2},
    )
    for row, bar in zip(rows, bars, strict=True):
        bar.set_hatch("////" if row.is_baseline and row.is_measured else None)
        bar.set_edgecolor("white")
    ends = [interval_of(row, _COLUMN)[1] for row in rows]
    labels = [_percent_of_baseline(row) for row in rows]
    for index, (row, value, end) in enumerate(zip(rows, values, ends, strict=True)):
        label = labels[index] if row.is_measured else row["status"]
        colour = "black" if value else _GREY
        axis.text(max(value, end), index, f" {label}", va="center", fontsize=6, color=colour)
    axis.set_yticks(range(len(rows)), names)
    axis.set_ylim(len(rows) - 0.4, -0.6)
    axis.set_xlim(0, 1.22 * max(ends))
    axis.grid(visible=False, axis="y")
    axis.set_xlabel(COLUMNS[_COLUMN].title)
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    notes = ["percentages: share of the baseline's; what is not named is as in it"] if any(labels) else []
    if len(rows) < len(table.rows):
        notes.append(f"the best {len(rows)} of {len(table.rows)} configurations")
    add_footnote(figure, table, rows, *notes)
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
    named = set(table.series_axes)
    if base is None:
        named.update(table.varied)
    elif base is row:
        named.update(table.sweep.series.baseline)
    else:
        named.update(name for name in table.varied if row.axes.get(name) != base.axes.get(name))
    return ", ".join(f"{name}={word(row.axes.get(name))}" for name in table.varied if name in named) or str(row["cell"])
