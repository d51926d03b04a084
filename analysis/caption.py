"""The words around a table: its caption, the reasons of its holes, and the software that it was measured with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from analysis.bootstrap import CONFIDENCE, MIN_STEPS, N_DRAWS
from analysis.columns import one_line, significant, text_of
from sweep.core.encoding.message import counted
from sweep.core.grids.series import Envelope, SeriesKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from analysis.table import Table

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


def escape(text: str) -> str:
    """The text for Markdown, in which it would break a table or be taken for markup, as a log's text may be."""
    for char in "\\|`*<":
        text = text.replace(char, f"\\{char}")
    return one_line(text)


def caption(table: Table) -> list[str]:
    """Lines that say how to read the table: its origin, its quantities and its holes."""
    sweep, origin = table.sweep, table.provenance
    devices = ", ".join(escape(name) for name in origin.devices) or "no device has reported yet"
    lines = [
        f"Grid `{sweep.grid}` on cluster `{sweep.cluster}` at {sweep.scale} scale; batch rule `{sweep.batch_kind}`; "
        f"source: {', '.join(origin.sources) or 'nothing measured yet'}; devices: {devices}.",
        _DEFINITIONS[sweep.series.kind] + _baseline(table) + _envelope(table),
        f"FLOPs are counted as `{sweep.flop_convention}`. Step time is the median of the window with its "
        f"{CONFIDENCE:.0%} interval (circular block bootstrap, {N_DRAWS} draws, repeats resampled whole; none for "
        f"fewer than {MIN_STEPS} steps); intervals of efficiency come from the same draws.",
        counts(table),
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
