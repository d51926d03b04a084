"""Process groups of a trace, and the mesh dimension that each belongs to."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from analysis.trace.reading.events import EventArguments

MESH_ORDER = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
"""Mesh dimensions, outermost first, as the trainer numbers its ranks."""


class Dimension(StrEnum):
    """Which parallel dimension a collective belongs to."""

    DP = "dp"
    TP = "tp"
    PP = "pp"
    CP = "cp"
    OTHER = "other"
    """Several dimensions at once: the norm of all gradients, a loss over all ranks."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """A process group as a trace names it.

    Attributes:
        name: torch's name of it: a number, or a hash; the same on every rank of the group.
        description: ``default_pg``, ``mesh_tp``.
        ranks: Its global ranks; empty where the trace does not say.
        size: How many ranks; None where the trace does not say.
    """

    name: str | None = None
    description: str | None = None
    ranks: tuple[int, ...] = ()
    size: int | None = None


_NAMES = (
    (Dimension.TP, re.compile(r"^(?:tp|tensor|etp)")),
    (Dimension.PP, re.compile(r"^(?:pp|pipe)")),
    (Dimension.CP, re.compile(r"^(?:cp|context|sequence|sp$)")),
    (Dimension.DP, re.compile(r"^(?:dp|ddp|fsdp|hsdp|data|shard|replicate|batch)")),
    (Dimension.OTHER, re.compile(r"^(?:other|world|distinct)")),
)


def dimension_of(group: Group, degrees: Mapping[str, int]) -> Dimension:
    """The dimension of a group, by the mesh's name in its description, else by its ranks where the degrees are known.

    A group of dp_shard and cp together is FSDP's: dp. A group of cp alone is cp; where FSDP shares it, only the
    annotations around a collective can tell.
    """
    name = (group.description or "").lower()
    if name.startswith("mesh_") and (named := dimension_named(name.removeprefix("mesh_"))):
        return named
    if not degrees or len(group.ranks) < 2:
        return Dimension.UNKNOWN
    spanned = _spanned(group.ranks, degrees)
    if len(spanned) == 1 and (only := next(iter(spanned))) in ("pp", "cp", "tp"):
        return Dimension(only)
    return Dimension.DP if spanned <= {"dp_replicate", "dp_shard", "cp"} else Dimension.OTHER


def dimension_named(name: str) -> Dimension | None:
    """The dimension that a mesh dimension's name stands for: ``tp``, ``dp_shard``, ``dp_shard_cp`` (FSDP's: dp)."""
    return next((dimension for dimension, pattern in _NAMES if pattern.search(name.lower())), None)


def _spanned(ranks: Sequence[int], degrees: Mapping[str, int]) -> set[str]:
    """The mesh dimensions in which the coordinates of ranks differ."""
    spanned, inner = set(), 1
    for name in reversed(MESH_ORDER):
        degree = degrees.get(name, 1)
        if len({rank // inner % degree for rank in ranks}) > 1:
            spanned.add(name)
        inner *= degree
    return spanned


class Groups:
    """The groups of one trace, each once."""

    def __init__(self, beside: Mapping[str, Any]) -> None:
        self.found: list[Group] = []
        self._indices: dict[Group, int] = {}
        info = beside.get("distributedInfo")
        configs = info.get("pg_config") if isinstance(info, dict) else None
        self._configs: dict[str, dict[str, Any]] = {
            str(config.get("pg_name")): config
            for config in (configs if isinstance(configs, list) else [])
            if isinstance(config, dict)
        }

    def index(self, group: Group) -> int:
        """The index of a group in ``found``, to which it is added where it is new."""
        if group not in self._indices:
            self._indices[group] = len(self.found)
            self.found.append(group)
        return self._indices[group]

    def of(self, stated: EventArguments) -> Group:
        """The group that a collective's arguments name, with what the trace's list of groups adds."""
        config = self._configs.get(stated.group or "", {})
        ranks = _listed(stated.ranks) or _strided(stated) or _numbers(config.get("ranks"))
        size = stated.size or config.get("pg_size")
        if size is not None and len(ranks) != size:
            ranks = _numbers(config.get("ranks"))
        return Group(
            name=stated.group,
            description=stated.description or config.get("pg_desc"),
            ranks=ranks if size is None or len(ranks) == size else (),
            size=size if isinstance(size, int) else None,
        )


def _listed(text: str | None) -> tuple[int, ...]:
    """The ranks of ``[0, 1, 2]``; none of a list that the profiler cut short with dots."""
    if not text or "..." in text:
        return ()
    return tuple(int(number) for number in re.findall(r"\d+", text))


def _strided(stated: EventArguments) -> tuple[int, ...]:
    if (
        not stated.size
        or stated.first_rank is None
        or stated.stride is None
        or stated.first_rank < 0
        or stated.stride < 1
    ):
        return ()
    return tuple(range(stated.first_rank, stated.first_rank + stated.size * stated.stride, stated.stride))


def _numbers(value: object) -> tuple[int, ...]:
    return tuple(item for item in value if isinstance(item, int)) if isinstance(value, list) else ()
