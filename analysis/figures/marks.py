"""The marks that curves and bars share: colours, intervals, numbers on axes, legends and footnotes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matplotlib.lines import Line2D

from analysis.rows import Row, is_on_cpu

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.figure import Figure

    from analysis.table import Table
    from sweep.core.cells.axis import AxisValue

# Okabe and Ito's palette, told apart by colour-blind readers; yellow is left out, it does not show on white.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
IDEAL: Any = {"color": "#777777", "linestyle": (0, (4, 2)), "linewidth": 0.9}
HOLE: Any = {"marker": "x", "color": "black", "linestyle": "none", "markersize": 5}
WIDTH_IN = 3.4  # one column of a two-column paper
_MAX_LEGEND = 24


def by_series(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows of each series, in order."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(str(row["series"]), []).append(row)
    return found


def style_of_series(index: int) -> dict[str, Any]:
    """Colour, marker and line of a series; they repeat together only after all of them."""
    return {
        "color": PALETTE[index % len(PALETTE)],
        "marker": MARKERS[index % len(MARKERS)],
        "linestyle": ("-", "--", "-.", ":")[index // len(PALETTE) % 4],
    }


def interval_of(row: Row, column: str) -> tuple[float, float]:
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


def error_bars(rows: Sequence[Row], column: str) -> list[list[float]]:
    """Lengths of the error bars of a column, below and above its values."""
    values = [row.number(column) or 0.0 for row in rows]
    intervals = [interval_of(row, column) for row in rows]
    # Never below zero: a skewed distribution may put the estimate outside the percentile interval.
    return [
        [max(0.0, value - low) for value, (low, _) in zip(values, intervals, strict=True)],
        [max(0.0, high - value) for value, (_, high) in zip(values, intervals, strict=True)],
    ]


def short(value: float) -> str:
    """A number for an axis: ``200k`` for 200,000."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def word(value: AxisValue) -> str:
    """The value of an axis for a legend or a label."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)


def add_legend(figure: Figure, table: Table, rows: Sequence[Row], others: Mapping[str, Any]) -> None:
    """Name the series by the values that tell them apart, and the other marks; no legend without either."""
    series = by_series(rows)
    styles: dict[str, Any] = {}
    if 1 < len(series) <= _MAX_LEGEND:
        for index, (first, *_) in enumerate(series.values()):
            name = ", ".join(word(first.axes.get(axis)) for axis in table.series_axes)
            styles[name] = style_of_series(index)
    entries = {name: Line2D([], [], **style) for name, style in {**styles, **others}.items()}
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


def add_footnote(figure: Figure, table: Table, rows: Sequence[Row], *first: str) -> None:
    """Write below the figure the notes that a reader needs who sees nothing else."""
    notes = [*first]
    if len(by_series(rows)) > _MAX_LEGEND:
        notes.append(f"{len(by_series(rows))} series; the table names them")
    if any(row.is_measured and is_on_cpu(row, table.sweep) for row in rows):
        notes.append("on CPUs: what is called a GPU here is a process")
    if any(row["oversubscribed"] is True for row in rows):
        notes.append("more ranks than devices or cores: a demonstration, not a measurement")
    if table.provenance.sources != ("measured",):
        notes.append(f"source: {', '.join(table.provenance.sources)}")
    if notes:
        figure.supxlabel("\n".join(notes), fontsize=6, style="italic")
