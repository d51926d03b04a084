"""Describes a collective by its kernel's arguments, by the calls around its launch, and by its name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from analysis.trace.groups import Dimension, Group, Groups, dimension_named, dimension_of
from analysis.trace.reading.collect import OWN_PREFIX, Collected
from analysis.trace.reading.columns import OpenCalls
from analysis.trace.reading.events import EventArguments
from analysis.trace.reading.names import Collective, collective_of

_NOTHING = EventArguments()
_DTYPE_BYTES = {
    **dict.fromkeys(("Byte", "Char", "Bool", "Float8_e4m3fn", "Float8_e5m2", "Float8_e4m3fnuz", "Float8_e5m2fnuz"), 1),
    **dict.fromkeys(("Half", "BFloat16", "Short"), 2),
    **dict.fromkeys(("Float", "Int"), 4),
    **dict.fromkeys(("Double", "Long", "ComplexFloat"), 8),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Description:
    """A collective; None, or unknown, where the trace does not say.

    Attributes:
        name: Of the kernel, or of gloo's event.
        kind: Which collective.
        dimension: The mesh dimension of its group.
        group: The index of its group, -1 for none.
        sequence: Its number in its group.
        n_bytes: Of its larger side: a gather's output, a scatter's input.
        source: The rank in the group that sends, of point to point.
        target: The rank in the group that receives.
    """

    name: str
    kind: Collective
    dimension: Dimension = Dimension.UNKNOWN
    group: int = -1
    sequence: int | None = None
    n_bytes: int | None = None
    source: int | None = None
    target: int | None = None


class Describer:
    """Describes the collectives of one trace."""

    def __init__(self, found: Collected, degrees: Mapping[str, int]) -> None:
        self.groups = Groups(found.beside)
        self._degrees = degrees
        self._found = found
        self._comm = OpenCalls(found.comm_scopes)
        self._fsdp = OpenCalls(found.fsdp_scopes)

    def describe(self, name: str, stated: EventArguments | None, thread: int | None, time: int) -> Description:
        """A collective by its name, its arguments, and the place where it was started (thread None: unknown).

        The trainer's own annotation knows best, then the arguments, then c10d's call and annotation around the start;
        the name of an NCCL kernel comes last: there a reduce-scatter may be a SendRecv, and RCCL's names say nothing.
        """
        labels = [] if thread is None else list(self._comm.at(thread, time))
        texts = [self._found.comm_texts[label] for label in labels]
        calls = [self._found.comm_arguments[label] for label in labels]
        own = next((_fields(text) for text in texts if text.startswith(OWN_PREFIX)), {})
        stated = stated or next((call for call in calls if call.collective not in (None, "wait")), _NOTHING)
        names = [own.get("op"), stated.collective, *texts, name]
        kinds = (collective_of(text) for text in names if text)
        kind = next((kind for kind in kinds if kind is not Collective.UNKNOWN), Collective.UNKNOWN)
        group = self._group(own, stated)
        return Description(
            name=name,
            kind=kind,
            dimension=self._dimension(own, group, thread, time),
            group=-1 if group is None else self.groups.index(group),
            sequence=_int(own.get("seq")) if "seq" in own else stated.sequence,
            n_bytes=_int(own.get("bytes")) if "bytes" in own else _n_bytes(stated),
            source=_int(own.get("src")) if "src" in own else stated.source,
            target=_int(own.get("dst")) if "dst" in own else stated.target,
        )

    def _group(self, own: Mapping[str, str], stated: EventArguments) -> Group | None:
        if "ranks" in own:
            ranks = tuple(int(rank) for rank in own["ranks"].split(",") if rank.isdigit())
            return Group(name=own.get("group"), description=own.get("dim"), ranks=ranks, size=len(ranks))
        group = self.groups.of(stated)
        return None if group == Group() else group

    def _dimension(self, own: Mapping[str, str], group: Group | None, thread: int | None, time: int) -> Dimension:
        if named := dimension_named(own.get("dim", "")):
            return named
        if thread is not None and next(self._fsdp.at(thread, time), None) is not None:
            return Dimension.DP
        return Dimension.UNKNOWN if group is None else dimension_of(group, self._degrees)


def _fields(text: str) -> dict[str, str]:
    """The fields of the trainer's annotation ``sweep::all_gather dim=dp seq=3 bytes=4096``."""
    op, *pairs = text.removeprefix(OWN_PREFIX).split()
    return {"op": op, **dict(pair.split("=", 1) for pair in pairs if "=" in pair)}


def _int(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def _n_bytes(stated: EventArguments) -> int | None:
    if stated.dtype not in _DTYPE_BYTES:
        return None
    elements: Sequence[int] = [count for count in (stated.elements_in, stated.elements_out) if count is not None]
    return max(elements) * _DTYPE_BYTES[stated.dtype] if elements else None
