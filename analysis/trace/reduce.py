"""Reduces one trace to the profile of its rank."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from analysis.trace.cpu import cpu_totals, cpu_work
from analysis.trace.describe import Describer
from analysis.trace.gpu import gpu_totals, gpu_work
from analysis.trace.groups import MESH_ORDER
from analysis.trace.reading.collect import Collected, collect
from analysis.trace.reading.names import Collective
from analysis.trace.reading.stream import TraceFile
from analysis.trace.record import RankProfile, Scope
from analysis.trace.work import ProfiledStep, Work

OWN_KEY = "scaling_sweep"
"""Beside its events the trainer writes under this name what the trace does not say itself: ``{"mesh": {"tp": 2}}``."""
_RANK = re.compile(r"rank[_-]?(\d+)")


def reduce_trace(path: Path, degrees: Mapping[str, int] | None = None) -> RankProfile:
    """The profile of the rank whose trace this is.

    Args:
        path: The trace, ``.json`` or ``.json.gz``.
        degrees: Degrees of the mesh dimensions, where the trace does not hold them.

    Raises:
        TraceError: If the file cannot be read, is damaged, or is no trace of torch.profiler.
    """
    file = TraceFile(path)
    found = collect(file)
    if not len(found.records) and not len(found.ops) and not len(found.gloo):
        raise file.error("holds neither GPU records nor operations of ATen: nothing to reduce")
    beside = found.beside
    describer = Describer(found, degrees or _degrees(beside))
    steps = _steps(found)
    n_unlinked = 0
    if len(found.records):
        scope, totals = Scope.GPU, gpu_totals(found)
        work, n_unlinked = gpu_work(found, describer, steps)
    else:
        scope, totals, work = Scope.CPU, cpu_totals(found, steps), cpu_work(found, describer, steps)
    info = beside.get("distributedInfo")
    info = info if isinstance(info, dict) else {}
    base_ns = int(work.starts.min(initial=work.whole[1]))
    whole, times = work.times()
    return RankProfile(
        file=path.name,
        rank=_whole_number(info.get("rank")) if "rank" in info else _rank_of_name(path),
        world_size=_whole_number(info.get("world_size")),
        n_groups=_whole_number(info.get("pg_count")),
        scope=scope,
        base_ns=base_ns,
        totals=totals,
        whole=whole,
        steps=times,
        groups=tuple(describer.groups.found),
        kernels=work.kernels(base_ns),
        unknown=_unknown(work),
        n_unlinked=n_unlinked,
        notes=_notes(found, steps, n_unlinked),
    )


def _steps(found: Collected) -> list[ProfiledStep]:
    rows = sorted(zip(found.steps.starts.tolist(), found.steps.ends.tolist(), found.steps.labels.tolist(), strict=True))
    return [ProfiledStep(number=number, start_ns=start, end_ns=end) for start, end, number in rows]


def _degrees(beside: Mapping[str, Any]) -> dict[str, int]:
    own = beside.get(OWN_KEY)
    mesh = own.get("mesh") if isinstance(own, dict) else None
    mesh = mesh if isinstance(mesh, dict) else {}
    return {name: mesh[name] for name in MESH_ORDER if isinstance(mesh.get(name), int) and mesh[name] > 0}


def _unknown(work: Work) -> dict[str, int]:
    """Names of the communication whose collective is unknown, the commonest first."""
    counts = Counter(item.name for item in work.described if item.kind is Collective.UNKNOWN)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _notes(found: Collected, steps: list[ProfiledStep], n_unlinked: int) -> tuple[str, ...]:
    notes = []
    devices = {device for device, _ in found.streams}
    if len(devices) > 1:
        notes.append(f"the trace holds {len(devices)} devices; their kernels are merged as if they were one")
    if not steps:
        notes.append("the trace holds no ProfilerStep: there are numbers of the whole only")
    if n_unlinked:
        notes.append(f"{n_unlinked} GPU records have no launch in the trace: they count for the whole, and for no step")
    return tuple(notes)


def _whole_number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _rank_of_name(path: Path) -> int | None:
    match = _RANK.search(path.name)
    return int(match[1]) if match else None
