"""Draws the figure of a table and writes it in every format."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import matplotlib as mpl

from analysis.export import figure_path
from analysis.figures.bars import draw_bars
from analysis.figures.curves import draw_curves
from sweep.core.grids.series import SeriesKind
from sweep.files import write_atomically

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from matplotlib.figure import Figure

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
        return draw_bars(table)
    return draw_curves(table)
