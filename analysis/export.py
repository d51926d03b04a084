"""Writes one table in several formats, with the words around it; the same input gives the same bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.bootstrap import CONFIDENCE, MIN_STEPS, N_DRAWS
from analysis.columns import COLUMNS, readable_columns, significant, text_of
from analysis.given_away import markdown, one_line
from analysis.rows import Value
from analysis.table import Table
from sweep.core.encoding.message import counted, visible
from sweep.core.grids.series import Envelope, SeriesKind
from sweep.core.records.layout import TABLES_DIR
from sweep.files import make_folder, write_atomically


def write_tables(table: Table, out: Path) -> list[Path]:
    """Write the table in every format; the paths, in order.

    Raises:
        OSError: If the folder cannot be made or written.
    """
    written = []
    for suffix, render in EXPORTERS.items():
        path = make_folder(out, TABLES_DIR) / f"{table.sweep.grid}.{suffix}"
        write_atomically(path, render(table))
        written.append(path)
    return written


def to_frame(table: Table) -> pd.DataFrame:
    """The table as a pandas frame: a row per grid point, all in the table's order, NA where nothing is known.

    Columns that all tables have are of the same kinds whatever the run (:data:`analysis.columns.COLUMNS`), so that
    frames of several runs can be concatenated. Those of the grid's other axes have the narrowest kind that holds them.
    """
    columns = {}
    for name in table.columns:
        # An enumeration's member is its text.
        values = [str(value) if isinstance(value, str) else value for row in table.rows for value in [row[name]]]
        kind: Any = COLUMNS[name].kind if name in COLUMNS else _narrowest(values)
        columns[name] = pd.Series(values, dtype=kind)
    return pd.DataFrame(columns)


def _narrowest(values: list[Value]) -> str:
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {bool}:
        return "boolean"
    if kinds <= {int}:
        return "Int64"
    return "Float64" if kinds <= {int, float} else "string"


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
    lines = [f"# {markdown(table.sweep.grid)}", "", *caption(table), ""]
    lines.append(_markdown_row(titles))
    lines.append(_markdown_row(["---:" if right else "---" for right in numeric]))
    lines += [_markdown_row([markdown(text) for text in row]) for row in cells]
    for heading, items in (("Reasons", reasons(table)), ("Notes", table.notes), ("Software", software(table))):
        if items:
            lines += ["", f"**{heading}**", "", *(f"- {markdown(item)}" for item in items)]
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
    return visible("\n".join(lines) + "\n")


_DEFINITIONS: Mapping[SeriesKind, str] = {
    SeriesKind.WEAK: (
        "Weak scaling: speed-up = tokens/s over the baseline's, efficiency = tokens/s/GPU over the baseline's."
    ),
    SeriesKind.STRONG: (
        "Strong scaling: speed-up = T0/T, efficiency = T0 n0/(T n), with T the step time and n the GPUs, "
        "0 the baseline's."
    ),
    SeriesKind.FREE: (
        "Configurations compared: speed-up = tokens/s over the baseline's, efficiency = tokens/s/GPU over the "
        "baseline's."
    ),
}


def caption(table: Table) -> list[str]:
    """Lines that say how to read the table: its origin, its quantities and its holes."""
    sweep, origin = table.sweep, table.provenance
    devices = ", ".join(markdown(name) for name in origin.devices) or "no device has reported yet"
    lines = [
        f"Grid `{markdown(sweep.grid)}` on cluster `{markdown(sweep.cluster)}` at {markdown(sweep.scale)} scale; "
        f"batch rule `{sweep.batch_kind}`; source: {markdown(', '.join(origin.sources)) or 'nothing measured yet'}; "
        f"devices: {devices}.",
        _DEFINITIONS[sweep.series.kind] + _baseline(table) + _envelope(table),
        f"FLOPs are counted as `{sweep.flop_convention}`. Step time is the median of the window with its "
        f"{CONFIDENCE:.0%} interval (circular block bootstrap, {N_DRAWS} draws, repeats resampled whole; none for "
        f"fewer than {MIN_STEPS} steps); intervals of efficiency come from the same draws.",
        counts(table),
    ]
    return [text for line in lines for text in (line, "")][:-1]


def _baseline(table: Table) -> str:
    spec = table.sweep.series
    named = markdown(", ".join(f"{name}={value}" for name, value in spec.baseline.items()))
    if not named:
        return " No baseline is named."
    found = [row for row in table.rows if row.is_baseline and row.is_measured and row.is_chosen]
    shown = [
        f"{markdown(str(row['cell']))} (at {row['gpus']} GPU{'' if row['gpus'] == 1 else 's'}: "
        f"{significant(row.number('tokens_per_s_per_gpu'), 5)} tokens/s/GPU)"
        for row in found[:3]
    ]
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return f" Baseline: {named}" + (f", cell {', '.join(shown)}{more}." if shown else "; it was not measured.")


def _envelope(table: Table) -> str:
    is_best = table.sweep.series.envelope is Envelope.BEST
    return " Only the best layout at each number of GPUs is compared." if is_best else ""


def counts(table: Table) -> str:
    """How many points the table has, measured and not."""
    holes = ", ".join(f"{count} {status}" for status, count in sorted(table.holes.items()))
    total = sum(table.holes.values())
    text = f"{counted(len(table.rows), 'point')}, {len(table.rows) - total} measured" + (
        f"; holes: {holes}." if holes else "."
    )
    if table.left_out:
        text += f" {table.left_out} combinations were left out by the grid's own conditions."
    return text + (f" Newest result: {table.provenance.newest}." if table.provenance.newest else "")


def reasons(table: Table) -> list[str]:
    """Every row's reason with what identifies the row; rows with one and the same reason together."""
    grouped: dict[tuple[str, str], list[str]] = {}
    for row in table.rows:
        if row["reason"]:
            name = ", ".join(f"{axis}={text_of(row.axes.get(axis))}" for axis in table.varied)
            grouped.setdefault((str(row["status"]), str(row["reason"])), []).append(name or str(row["cell"]))
    return [
        f"{status} — {'; '.join(names[:6])}{f' and {len(names) - 6} more' if len(names) > 6 else ''}: "
        f"{one_line(reason)}"
        for (status, reason), names in grouped.items()
    ]


def software(table: Table) -> list[str]:
    """Every fingerprint with the fields it covers."""
    return [
        f"fingerprint {name}: " + ", ".join(f"{key} {value}" for key, value in fields.items() if value is not None)
        for name, fields in table.provenance.fingerprints.items()
    ]


EXPORTERS: Mapping[str, Callable[[Table], str]] = {"csv": to_csv, "md": to_markdown}
"""Formats by file suffix; a new format is one function and its line here."""
