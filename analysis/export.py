"""Writes one table in several formats: a small exporter for each, every file whole and the same for the same input."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from analysis.caption import caption, counts, escape, reasons, software
from analysis.columns import one_line, readable_columns
from analysis.frame import to_frame
from sweep.core.records.layout import FIGURES_DIR, TABLES_DIR
from sweep.files import write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from analysis.table import Table


def write_tables(table: Table, out: Path) -> list[Path]:
    """Write the table in every format; the paths, in order.

    Raises:
        OSError: If the folder cannot be made or written.
    """
    written = []
    for suffix, render in EXPORTERS.items():
        path = out / TABLES_DIR / f"{table.sweep.grid}.{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, render(table))
        written.append(path)
    return written


def figure_path(table: Table, out: Path, suffix: str) -> Path:
    """Where a figure of the table belongs."""
    return out / FIGURES_DIR / f"{table.sweep.grid}.{suffix}"


def to_csv(table: Table) -> str:
    """RFC 4180 with LF line ends and numbers at full precision; blank where nothing is known."""
    frame = to_frame(table)
    for name, column in frame.items():
        if isinstance(column.dtype, pd.BooleanDtype):
            frame[name] = column.map({True: "true", False: "false"}, na_action="ignore")
        elif isinstance(column.dtype, pd.StringDtype):
            frame[name] = column.map(_safe_text, na_action="ignore")
    return frame.to_csv(index=False, lineterminator="\n")


def _safe_text(value: str) -> str:
    text = one_line(value)
    # A spreadsheet would run text that begins so as a formula; a reason may quote anything a log said.
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


def readable(table: Table) -> tuple[list[str], list[list[str]]]:
    """Titles and cells of the columns that people read, none wholly blank."""
    columns = readable_columns(table.varied)
    filled = [[column.show(row, column.name) for row in table.rows] for column in columns]
    kept = [index for index, cells in enumerate(filled) if any(cells)]
    return [columns[i].title for i in kept], [[filled[i][r] for i in kept] for r in range(len(table.rows))]


def to_markdown(table: Table) -> str:
    """The readable columns as a Markdown table, with a caption that says how to read them."""
    titles, cells = readable(table)
    numeric = [all(_is_figure(row[i]) for row in cells) for i in range(len(titles))]
    lines = [f"# {table.sweep.grid}", "", *caption(table), ""]
    lines.append(_markdown_row(titles))
    lines.append(_markdown_row(["---:" if right else "---" for right in numeric]))
    lines += [_markdown_row([escape(text) for text in row]) for row in cells]
    for heading, items in (("Reasons", reasons(table)), ("Notes", table.notes), ("Software", software(table))):
        if items:
            lines += ["", f"**{heading}**", "", *(f"- {escape(item)}" for item in items)]
    return "\n".join(lines) + "\n"


def _is_figure(text: str) -> bool:
    return not text or text[0].isdigit() or text[0] in "-<"


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


_MAX_REASONS = 20  # on the terminal, where they would push the table out of sight


def to_text(table: Table) -> str:
    """The readable columns aligned for a terminal, with the reasons and notes below."""
    titles, cells = readable(table)
    widths = [max(len(row[i]) for row in [titles, *cells]) for i in range(len(titles))]
    right = [all(_is_figure(row[i]) for row in cells) for i in range(len(titles))]
    lines = [f"{table.sweep.grid} on {table.sweep.cluster}. {counts(table)}", ""]
    for row in [titles, *cells]:
        padded = [
            text.rjust(width) if is_right else text.ljust(width)
            for text, width, is_right in zip(row, widths, right, strict=True)
        ]
        lines.append("  ".join(padded).rstrip())
    shown = reasons(table)
    if len(shown) > _MAX_REASONS:
        shown = [*shown[:_MAX_REASONS], f"and {len(shown) - _MAX_REASONS} more reasons, in the tables"]
    lines += ["", *shown, *table.notes] if shown or table.notes else []
    return "\n".join(lines) + "\n"


EXPORTERS: Mapping[str, Callable[[Table], str]] = {"csv": to_csv, "md": to_markdown}
"""Formats by file suffix; a new format is one function and its line here."""
