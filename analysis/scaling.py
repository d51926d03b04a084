"""Speed-up and efficiency of every point against the named baseline of its series, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.bootstrap import Draws, FloatArray, Interval, interval
from analysis.reduce import Reduced
from sweep.core.cells.axis import AxisValue
from sweep.core.grids.series import SeriesKind, SeriesSpec, is_baseline, key_axes, key_of, label_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One point or rejection as the series see it.

    Attributes:
        cell_id: Its cell; None for a rejection.
        reduced: Its figures; None for a hole.
    """

    axes: Mapping[str, AxisValue]
    cell_id: str | None = None
    reduced: Reduced | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Where an entry stands in its series.

    Attributes:
        baseline: Cell that it is compared with; None where there is none.
        speedup: Over the baseline; None where it cannot be said.
        efficiency: Against ideal scaling from the baseline.
        efficiency_ci: Its interval; None for too few steps.
        is_chosen: True if its layout is the one compared at its number of GPUs (always, without an envelope).
        remark: Why it has no speed-up although it was measured, where the reason is its own.
    """

    series: str
    baseline: str | None = None
    speedup: float | None = None
    efficiency: float | None = None
    efficiency_ci: Interval | None = None
    is_chosen: bool = True
    remark: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scaled:
    """The comparison of every entry, in their order.

    Attributes:
        axes: The axes that tell the series apart.
        notes: Why whole series have no speed-up, and what to know of those that have.
        refusals: Series without a speed-up because they mix what must not be mixed.
    """

    axes: tuple[str, ...]
    comparisons: tuple[Comparison, ...]
    notes: tuple[str, ...]
    refusals: tuple[str, ...]


def scale(entries: Sequence[Entry], spec: SeriesSpec, *, mix_fingerprints: bool = False) -> Scaled:
    """Compare every entry with the baseline of its series."""
    names = key_axes(spec, [entry.axes for entry in entries])
    members: dict[str, list[int]] = {}
    for index, entry in enumerate(entries):
        members.setdefault(label_of(key_of(entry.axes, names)), []).append(index)
    comparisons: list[Comparison] = [Comparison(series="")] * len(entries)
    notes: list[str] = []
    refusals: list[str] = []
    for label, indices in members.items():
        group = [entries[index] for index in indices]
        refusal, note = _mixture(group, mix_fingerprints)
        if refusal:
            refusals.append(f"series {label}: {refusal}")
            compared = [Comparison(series=label)] * len(group)
        else:
            baseline, missing = _baseline(group, spec)
            notes += [f"series {label}: {text}" for text in (note, missing) if text]
            compared = _compare(group, label, spec, baseline)
        for index, comparison in zip(indices, compared, strict=True):
            comparisons[index] = comparison
    return Scaled(axes=names, comparisons=tuple(comparisons), notes=tuple(notes), refusals=tuple(refusals))


def _mixture(group: Sequence[Entry], mix_fingerprints: bool) -> tuple[str, str]:
    """Why the series must not be compared, and what to note where it may be all the same."""
    measured = [entry.reduced for entry in group if entry.reduced is not None]
    sources = sorted({source for reduced in measured for source in reduced.sources})
    if len(sources) > 1:
        return f"mixes the sources {', '.join(sources)}; no speed-up or efficiency is given", ""
    fingerprints = {name: fields for reduced in measured for name, fields in reduced.fingerprints.items()}
    if len(fingerprints) < 2:
        return "", ""
    spans = f"spans {len(fingerprints)} fingerprints, which differ in {_differing(list(fingerprints.values()))}"
    if mix_fingerprints:
        return "", f"{spans}; compared because it was asked for"
    return f"{spans}; no speed-up or efficiency is given (--mix-fingerprints compares all the same)", ""


def _differing(fingerprints: Sequence[Mapping[str, str | None]]) -> str:
    names = dict.fromkeys(name for fields in fingerprints for name in fields)
    shown = []
    for name in names:
        values = dict.fromkeys(str(fields.get(name)) for fields in fingerprints)
        if len(values) > 1:
            shown.append(f"{name} ({' / '.join(values)})")
    return ", ".join(shown) or "fields that were not recorded"


def _baseline(group: Sequence[Entry], spec: SeriesSpec) -> tuple[Entry | None, str]:
    """The entry that all are compared with, or why there is none."""
    if not any(entry.reduced is not None for entry in group):
        return None, ""  # its holes say why
    if not spec.baseline:
        return None, "no baseline is named, so there is no speed-up or efficiency"
    shown = ", ".join(f"{name}={value}" for name, value in spec.baseline.items())
    named = [entry for entry in group if is_baseline(entry.axes, spec)]
    measured = {str(entry.cell_id): entry for entry in named if entry.reduced is not None}
    if not named:
        return None, f"the baseline ({shown}) is not in the grid, so there is no speed-up or efficiency"
    if not measured:
        return None, f"the baseline ({shown}) was not measured, so there is no speed-up or efficiency"
    if spec.envelope is not None:
        return max(measured.values(), key=lambda entry: _merit(entry, spec.kind)), ""
    if len(measured) > 1:
        return None, f"{len(measured)} cells meet the baseline ({shown}); name more axes. No speed-up or efficiency"
    return next(iter(measured.values())), ""


def _merit(entry: Entry, kind: SeriesKind) -> float:
    """The merit of a layout among others at the same number of GPUs: higher is better."""
    assert entry.reduced is not None, "only measured entries are compared"
    if kind is SeriesKind.STRONG:
        return -entry.reduced.step_time_s if entry.reduced.step_time_s else float("-inf")
    return entry.reduced.tokens_per_s


def _compare(group: Sequence[Entry], label: str, spec: SeriesSpec, baseline: Entry | None) -> list[Comparison]:
    best = _best_at_each_x(group, spec)
    comparisons = []
    name = None if baseline is None else baseline.cell_id
    for entry in group:
        reduced = entry.reduced
        if reduced is None:
            comparisons.append(Comparison(series=label, baseline=name))
        elif best.get(reduced.cell.gpus, entry.cell_id) != entry.cell_id:
            gpus = reduced.cell.gpus
            remark = f"not the best layout at {gpus} GPU{'s' if gpus > 1 else ''}"
            comparisons.append(Comparison(series=label, baseline=name, is_chosen=False, remark=remark))
        elif baseline is None or baseline.reduced is None:
            comparisons.append(Comparison(series=label))
        else:
            comparisons.append(_comparison(label, name, spec.kind, reduced, baseline.reduced))
    return comparisons


def _best_at_each_x(group: Sequence[Entry], spec: SeriesSpec) -> dict[int, str | None]:
    best: dict[int, Entry] = {}
    for entry in group:
        if spec.envelope is not None and entry.reduced is not None:
            gpus = entry.reduced.cell.gpus
            if gpus not in best or _merit(entry, spec.kind) > _merit(best[gpus], spec.kind):
                best[gpus] = entry
    return {gpus: entry.cell_id for gpus, entry in best.items()}


def _comparison(label: str, name: str | None, kind: SeriesKind, reduced: Reduced, base: Reduced) -> Comparison:
    measure = _MEASURES[kind]
    remark = _other_work(kind, reduced, base)
    value, reference = measure.value(reduced), measure.value(base)
    if not remark and (value is None or reference is None):
        remark = "no step time to compare" if value is None else "the baseline has no step time to compare with"
    if remark or value is None or reference is None:
        return Comparison(series=label, baseline=name, remark=remark)
    gain = measure.gain(value, reference)
    per_gpu = base.cell.gpus / reduced.cell.gpus
    ci = None
    if reduced.draws is not None and base.draws is not None:
        gains = measure.gain(measure.draws(reduced, reduced.draws), measure.draws(base, base.draws))
        low, high = interval(gains, min(reduced.draws.n_blocks, base.draws.n_blocks))
        ci = (low * per_gpu, high * per_gpu)
    return Comparison(series=label, baseline=name, speedup=gain, efficiency=gain * per_gpu, efficiency_ci=ci)


def _other_work(kind: SeriesKind, reduced: Reduced, base: Reduced) -> str:
    """Why a comparison would not be of the kind that the table claims."""
    tokens, reference = reduced.cell.tokens_per_step, base.cell.tokens_per_step
    if kind is SeriesKind.STRONG and tokens != reference:
        return f"not strong scaling: {tokens} tokens a step, the baseline {reference}"
    if kind is SeriesKind.WEAK and tokens * base.cell.gpus != reference * reduced.cell.gpus:
        return "not weak scaling: another number of tokens a GPU than the baseline"
    return ""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Measure:
    """The figure that a kind of series compares, its bootstrap draws, and the gain of a value over a reference."""

    value: Callable[[Reduced], float | None]
    draws: Callable[[Reduced, Draws], FloatArray]
    gain: Callable[[Any, Any], Any]  # of two numbers, or of two arrays of draws


_THROUGHPUT = _Measure(
    value=lambda reduced: reduced.tokens_per_s,
    draws=lambda reduced, draws: reduced.rates(draws),
    gain=lambda value, reference: value / reference,
)
_MEASURES: Mapping[SeriesKind, _Measure] = {
    SeriesKind.WEAK: _THROUGHPUT,
    SeriesKind.STRONG: _Measure(
        value=lambda reduced: reduced.step_time_s,
        draws=lambda _, draws: draws.medians,
        gain=lambda value, reference: reference / value,
    ),
    SeriesKind.FREE: _THROUGHPUT,
}
