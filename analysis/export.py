"""Writes one table in several formats: a small exporter for each, every file whole and the same for the same input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pandas as pd

from analysis.bootstrap import CONFIDENCE, MIN_STEPS, N_DRAWS
from analysis.frame import to_frame
from sweep.core.encoding.message import counted
from sweep.core.grids.series import Envelope, SeriesKind
from sweep.core.records.layout import FIGURES_DIR, TABLES_DIR
from sweep.files import write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from analysis.table import Row, Table, Value


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
    text = _one_line(value)
    # A spreadsheet would run text that begins so as a formula; a reason may quote anything a log said.
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


def _one_line(text: str) -> str:
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """A column as people read it: its title, with the unit, and how a row fills it."""

    title: str
    text: Callable[[Row], str]


def significant(value: float | None, digits: int = 4) -> str:
    """A number rounded for reading, never in exponent form for what is a thousand or more."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 10 ** (digits - 1) else f"{value:#.{digits}g}".rstrip(".")


def _number(name: str, digits: int = 4) -> Callable[[Row], str]:
    return lambda row: significant(row.number(name), digits)


def _text(name: str) -> Callable[[Row], str]:
    return lambda row: _plain(row[name])


def _plain(value: Value | None) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else _one_line(str(value))


def _step_time(row: Row) -> str:
    return _with_interval(row, "step_time_s", significant)


def _efficiency(row: Row) -> str:
    return _with_interval(row, "efficiency", lambda value: "" if value is None else f"{100 * value:.1f}")


def _with_interval(row: Row, name: str, show: Callable[[float | None], str]) -> str:
    low, high = (show(row.number(f"{name}_ci_{end}")) for end in ("low", "high"))
    return f"{show(row.number(name))} [{low}, {high}]" if low and high else show(row.number(name))


def _flags(row: Row) -> str:
    return ", ".join(name for name in ("throttled", "oversubscribed") if row[name] is True)


def _percent(name: str) -> Callable[[Row], str]:
    def show(row: Row) -> str:
        value = row.number(name)
        return "" if value is None else f"{100 * value:.1f}" if value >= 0.001 else "<0.1"

    return show


def _speedup(row: Row) -> str:
    value = row.number("speedup")
    return "" if value is None else f"{value:.2f}"


_MEASURES = (
    Shown(title="step time (s)", text=_step_time),
    Shown(title="tokens/s", text=_number("tokens_per_s", 5)),
    Shown(title="tokens/s/GPU", text=_number("tokens_per_s_per_gpu", 5)),
    Shown(title="speed-up", text=_speedup),
    Shown(title="efficiency (%)", text=_efficiency),
    Shown(title="TFLOP/s/GPU", text=_number("tflops_per_gpu")),
    Shown(title="MFU (%)", text=_percent("mfu")),
    Shown(title="exposed comm. (s)", text=_number("exposed_comm_s", 3)),
    Shown(title="memory (GiB)", text=_number("peak_memory_gib", 3)),
    Shown(title="power (W/GPU)", text=_number("power_w_per_gpu", 3)),
    Shown(title="tokens/J", text=_number("tokens_per_j", 3)),
    Shown(title="GPU-hours", text=_number("gpu_hours", 3)),
    Shown(title="flags", text=_flags),
)


def readable(table: Table) -> tuple[list[str], list[list[str]]]:
    """Titles and cells of the columns that people read: what varies, then what was measured, none wholly blank."""
    axes = [name for name in table.varied if name != "nodes"]
    columns = [Shown(title="nodes", text=_text("nodes")), Shown(title="GPUs", text=_text("gpus"))]
    columns += [Shown(title=_AXIS_TITLES.get(name, name), text=_text(name)) for name in axes]
    columns += [Shown(title="status", text=_text("status")), *_MEASURES]
    filled = [[column.text(row) for row in table.rows] for column in columns]
    kept = [index for index, cells in enumerate(filled) if any(cells)]
    return [columns[i].title for i in kept], [[filled[i][r] for i in kept] for r in range(len(table.rows))]


_AXIS_TITLES: Mapping[str, str] = {
    "gpus_per_node": "GPUs/node",
    "seq_len": "context (tokens)",
    "sequences_per_gpu": "sequences/GPU",
    "tokens_per_gpu": "tokens/GPU",
    "global_batch": "global batch (sequences)",
}


def to_markdown(table: Table) -> str:
    """The readable columns with a caption that says what a reader must know to trust them."""
    titles, cells = readable(table)
    numeric = [all(_is_figure(row[i]) for row in cells) for i in range(len(titles))]
    lines = [f"# {table.sweep.grid}", "", *caption(table), ""]
    lines.append(_markdown_row(titles))
    lines.append(_markdown_row(["---:" if right else "---" for right in numeric]))
    lines += [_markdown_row([_escape(text) for text in row]) for row in cells]
    for heading, items in (("Reasons", reasons(table)), ("Notes", table.notes), ("Software", software(table))):
        if items:
            lines += ["", f"**{heading}**", "", *(f"- {_escape(item)}" for item in items)]
    return "\n".join(lines) + "\n"


def _is_figure(text: str) -> bool:
    return not text or text[0].isdigit() or text[0] in "-<"


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escape(text: str) -> str:
    # Only what would break a table or turn text of a log into markup.
    for char in "\\|`*<":
        text = text.replace(char, f"\\{char}")
    return _one_line(text)


_KINDS: Mapping[SeriesKind, str] = {
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
    """What the table shows, one sentence or a few a line."""
    sweep, origin = table.sweep, table.provenance
    devices = ", ".join(_escape(name) for name in origin.devices) or "no device has reported yet"
    lines = [
        f"Grid `{sweep.grid}` on cluster `{sweep.cluster}` at {sweep.scale} scale; batch rule `{sweep.batch_kind}`; "
        f"source: {', '.join(origin.sources) or 'nothing measured yet'}; devices: {devices}.",
        _KINDS[sweep.series.kind] + _baseline(table) + _envelope(table),
        f"FLOPs are counted as `{sweep.flop_convention}`. Step time is the median of the window with its "
        f"{CONFIDENCE:.0%} interval (circular block bootstrap, {N_DRAWS} draws, repeats resampled whole; none for "
        f"fewer than {MIN_STEPS} steps); intervals of efficiency come from the same draws.",
        _counts(table),
    ]
    return [text for line in lines for text in (line, "")][:-1]


def _baseline(table: Table) -> str:
    spec = table.sweep.series
    named = ", ".join(f"{name}={value}" for name, value in spec.baseline.items())
    if not named:
        return " No baseline is named."
    found = [row for row in table.rows if row.is_baseline and row.is_measured and row.is_chosen]
    shown = [
        f"{row['cell']} (at {row['gpus']} GPU{'' if row['gpus'] == 1 else 's'}: "
        f"{significant(row.number('tokens_per_s_per_gpu'), 5)} tokens/s/GPU)"
        for row in found[:3]
    ]
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return f" Baseline: {named}" + (f", cell {', '.join(shown)}{more}." if shown else "; it was not measured.")


def _envelope(table: Table) -> str:
    is_best = table.sweep.series.envelope is Envelope.BEST
    return " Only the best layout at each number of GPUs is compared." if is_best else ""


def _counts(table: Table) -> str:
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
            name = ", ".join(f"{axis}={_plain(row.axes.get(axis))}" for axis in table.varied)
            grouped.setdefault((str(row["status"]), str(row["reason"])), []).append(name or str(row["cell"]))
    return [
        f"{status} — {'; '.join(names[:6])}{f' and {len(names) - 6} more' if len(names) > 6 else ''}: "
        f"{_one_line(reason)}"
        for (status, reason), names in grouped.items()
    ]


def software(table: Table) -> list[str]:
    """Every fingerprint with the fields it covers."""
    return [
        f"fingerprint {name}: " + ", ".join(f"{key} {value}" for key, value in fields.items() if value is not None)
        for name, fields in table.provenance.fingerprints.items()
    ]


_MAX_REASONS = 20  # on the terminal, where they would push the table out of sight


def to_text(table: Table) -> str:
    """The readable columns aligned for a terminal, with the reasons and notes below."""
    titles, cells = readable(table)
    widths = [max(len(row[i]) for row in [titles, *cells]) for i in range(len(titles))]
    right = [all(_is_figure(row[i]) for row in cells) for i in range(len(titles))]
    lines = [f"{table.sweep.grid} on {table.sweep.cluster}. {_counts(table)}", ""]
    for row in [titles, *cells]:
        padded = [
            text.rjust(width) if is_right else text.ljust(width)
            for text, width, is_right in zip(row, widths, right, strict=True)
        ]
        lines.append("  ".join(padded).rstrip())
    told = reasons(table)
    if len(told) > _MAX_REASONS:
        told = [*told[:_MAX_REASONS], f"and {len(told) - _MAX_REASONS} more reasons, in the tables"]
    lines += ["", *told, *table.notes] if told or table.notes else []
    return "\n".join(lines) + "\n"


EXPORTERS: Mapping[str, Callable[[Table], str]] = {"csv": to_csv, "md": to_markdown}
"""Formats by file suffix; a new format is one function and its line here."""
