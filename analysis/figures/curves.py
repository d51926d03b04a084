"""Scaling curves: one quantity against the number of GPUs, with its ideal, its intervals and its holes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from matplotlib import ticker
from matplotlib.figure import Figure

from analysis.columns import COLUMNS
from analysis.figures import marks
from sweep.core.grids.series import SeriesKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from analysis.rows import Row
    from analysis.table import Table


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """One column of the table against the number of GPUs."""

    column: str
    is_log: bool = False
    """True if its axis is logarithmic, where the ideal is a straight line."""
    is_flat: bool = False
    """True if the ideal stays at the baseline's value; else it grows with the GPUs."""
    is_percent: bool = False
    """True if the axis shows it in percent."""

    @property
    def label(self) -> str:
        """Axis label, with the unit unless the axis shows it."""
        return COLUMNS[self.column].title.removesuffix(" (%)")


_TOKENS = Panel(column="tokens_per_s", is_log=True)
_PER_GPU = Panel(column="tokens_per_s_per_gpu", is_flat=True)
_STEP_TIME = Panel(column="step_time_s", is_log=True)
_SPEEDUP = Panel(column="speedup", is_log=True)
_EFFICIENCY = Panel(column="efficiency", is_flat=True, is_percent=True)


def draw_curves(table: Table) -> Figure:
    """Two panels over the number of GPUs: what grows, and the share of the ideal that is kept."""
    rows = [row for row in table.rows if row.is_chosen]
    is_strong = table.sweep.series.kind is SeriesKind.STRONG
    is_compared = any(row["speedup"] is not None for row in rows)
    upper = (_SPEEDUP if is_compared else _STEP_TIME) if is_strong else _TOKENS
    lower = _EFFICIENCY if is_compared else _PER_GPU
    figure = Figure(figsize=(marks.WIDTH_IN, 3.6), layout="constrained")
    axes: Sequence[Axes] = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    for axis, panel in zip(axes, (upper, lower), strict=True):
        _panel(axis, panel, rows)
    _gpu_axis(axes[1], rows)
    n_series, has_holes = len(marks.by_series(rows)), any(not row.is_measured for row in rows)
    _mark_holes(axes[1], rows, is_named=n_series == 1)
    figure.align_ylabels(axes)
    others = {"ideal": marks.IDEAL} if is_compared or any(row.is_baseline and row.is_measured for row in rows) else {}
    if has_holes and n_series > 1:
        others["not measured (see table)"] = marks.HOLE
    marks.add_legend(figure, table, rows, others)
    marks.add_footnote(figure, table, rows)
    return figure


def _panel(axis: Axes, panel: Panel, rows: Sequence[Row]) -> None:
    axis.set_xscale("log", base=2)
    measured = [row for row in rows if row.number(panel.column) is not None]
    shown = [bound for row in measured for bound in marks.interval_of(row, panel.column)]
    for index, (label, members) in enumerate(marks.by_series(rows).items()):
        points = [row for row in members if row.number(panel.column) is not None]
        if points:
            _curve(axis, panel, _with_gaps(members, points), label, index)
            shown += _ideal(axis, panel, members)
    axis.set_ylabel(panel.label)
    if panel.is_log:
        _log_axis(axis, shown)
    else:
        axis.set_ylim(0, 1.12 * max(shown, default=1.0))
        percent, number = (
            ticker.PercentFormatter(1, decimals=0),
            ticker.FuncFormatter(lambda value, _: marks.short(value)),
        )
        axis.yaxis.set_major_formatter(percent if panel.is_percent else number)
        if panel.is_percent:
            axis.yaxis.set_major_locator(ticker.MultipleLocator(0.25) if max(shown) < 1.5 else ticker.MaxNLocator(4))


def _with_gaps(members: Sequence[Row], points: Sequence[Row]) -> list[Row]:
    """The points and, where a number of GPUs has none, a hole: no line is drawn across what was not measured."""
    filled = {row["gpus"] for row in points}
    return [row for row in members if row in points or row["gpus"] not in filled]


def _curve(axis: Axes, panel: Panel, points: Sequence[Row], label: str, index: int) -> None:
    values = [math.nan if (value := row.number(panel.column)) is None else value for row in points]
    errors = marks.error_bars(points, panel.column)
    xs = [row.number("gpus") or 0.0 for row in points]
    axis.errorbar(
        xs, values, yerr=errors, label=label, capsize=2, elinewidth=0.8, zorder=3, **marks.style_of_series(index)
    )


def _ideal(axis: Axes, panel: Panel, members: Sequence[Row]) -> list[float]:
    """Draw what ideal scaling from the baseline would give; the values drawn."""
    base = next((row for row in members if row.is_baseline and row.is_measured), None)
    value = None if base is None else base.number(panel.column)
    if base is None or value is None or panel is _STEP_TIME:
        return []
    start = base.number("gpus") or 1.0
    xs = sorted({row.number("gpus") or 1.0 for row in members})
    ys = [value if panel.is_flat else value * x / start for x in xs]
    axis.plot(xs, ys, zorder=2, **marks.IDEAL)
    return ys


def _log_axis(axis: Axes, shown: Sequence[float]) -> None:
    axis.set_yscale("log", base=2)
    low, high = min(shown, default=1.0), max(shown, default=1.0)
    # At least two doublings, so that a single point does not fill its axis with noise.
    spread = max(0.0, 2 - math.log2(high / low)) / 2
    low, high = low * 2 ** -(spread + 0.35), high * 2 ** (spread + 0.35)
    axis.set_ylim(low, high)
    axis.yaxis.set_major_locator(ticker.FixedLocator(_round_numbers(low, high)))
    axis.yaxis.set_minor_locator(ticker.NullLocator())
    axis.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: marks.short(value)))


def _round_numbers(low: float, high: float) -> list[float]:
    """Ticks at 1, 2, 5 of each decade between the limits; more in less than one decade, fewer in more than three."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1,) if high / low > 1000 else (1, 2, 5) if high / low > 10 else (1, 1.5, 2, 3, 4, 6, 8)
    return [tick for decade in decades for step in steps if low <= (tick := step * 10.0**decade) <= high]


def _gpu_axis(axis: Axes, rows: Sequence[Row]) -> None:
    xs = sorted({int(row.number("gpus") or 1) for row in rows})
    every = -(-len(xs) // 8)
    axis.xaxis.set_major_locator(ticker.FixedLocator(xs[::every]))
    axis.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:.0f}"))
    axis.xaxis.set_minor_locator(ticker.NullLocator())
    axis.xaxis.set_minor_formatter(ticker.NullFormatter())
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
        axis.plot([x], [0], transform=axis.get_xaxis_transform(), clip_on=False, **marks.HOLE)
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
