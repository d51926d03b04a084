"""Joins the profiles of ranks, over nodes too: waiting apart from transfer, the slowest rank, and the spread.

A communication kernel runs from its own rank's launch to the common end. So of the kernels of one collective the
shortest, that of the rank that came last, is the transfer, and what the others took longer is waiting. For this the
durations are enough: the nodes' clocks need not agree.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import fmean

from analysis.trace.groups import Group
from analysis.trace.reading.names import Collective
from analysis.trace.record import RankProfile, Times

_NO_GROUP = Group()
_MAPPED = tuple(item.name for item in fields(Times) if "Mapping" in str(item.type))
_PLAIN = (*(item.name for item in fields(Times) if item.name not in ("step", *_MAPPED)), "overlapped_ns", "busy_ns")


class JoinError(ValueError):
    """The profiles are not those of one run's ranks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankStep:
    """A step of a rank, its communication told apart.

    Attributes:
        rank: The global rank.
        times: Where the step's time went.
        transfer_ns: Of the collectives' durations what the last rank of each took; None where not every one found its
            peers': part of the waiting would be missing.
        wait_ns: The rest of them: waiting for peers.
        p2p_transfer_ns: The same of sends and receives. The four together are ``times.comm_sum_ns``.
        p2p_wait_ns: Waiting in sends and receives.
        n_unmatched: Communication kernels without those of all their peers.
    """

    rank: int
    times: Times
    transfer_ns: int | None
    wait_ns: int | None
    p2p_transfer_ns: int | None
    p2p_wait_ns: int | None
    n_unmatched: int


@dataclass(frozen=True, kw_only=True, slots=True)
class JoinedStep:
    """A step of all ranks.

    Attributes:
        step: Its number.
        ranks: Each rank's, ordered by rank; ranks whose trace lacks the step are missing.
        slowest_rank: The rank that waits least, for which the others wait; None where waiting is unknown.
    """

    step: int
    ranks: tuple[RankStep, ...]
    slowest_rank: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """Several values of one quantity."""

    mean: float
    min: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of at least one value."""
        return cls(mean=fmean(values), min=min(values), max=max(values))


@dataclass(frozen=True, kw_only=True, slots=True)
class Joined:
    """The steps of all ranks, and each quantity's spread.

    Attributes:
        steps: The steps that any rank has, in order.
        over_ranks: Of each quantity (see :func:`quantities`) the ranks' means over steps.
        over_steps: Of each quantity the steps' means over ranks.
    """

    steps: tuple[JoinedStep, ...]
    over_ranks: Mapping[str, Spread]
    over_steps: Mapping[str, Spread]


def join(profiles: Iterable[RankProfile]) -> Joined:
    """Join the profiles of the ranks of one run.

    Raises:
        JoinError: If a profile does not say its rank, or two are of one rank.
    """
    by_rank: dict[int, RankProfile] = {}
    for profile in profiles:
        if profile.rank is None:
            raise JoinError(f"{profile.file} does not say its rank. Name the file rank<number>....")
        if profile.rank in by_rank:
            raise JoinError(f"{profile.file} and {by_rank[profile.rank].file} are both of rank {profile.rank}.")
        by_rank[profile.rank] = profile
    transfers = _transfers(by_rank)
    found: dict[int, list[RankStep]] = defaultdict(list)
    for rank, profile in sorted(by_rank.items()):
        for times in profile.steps:
            if times.step is not None:
                found[times.step].append(_rank_step(rank, profile, times, transfers[rank]))
    steps = [JoinedStep(step=step, ranks=tuple(of), slowest_rank=_slowest(of)) for step, of in sorted(found.items())]
    rows = [(item.rank, step.step, quantities(item)) for step in steps for item in step.ranks]
    return Joined(
        steps=tuple(steps),
        over_ranks=_spreads([(rank, values) for rank, _, values in rows]),
        over_steps=_spreads([(step, values) for _, step, values in rows]),
    )


def quantities(item: RankStep) -> dict[str, float]:
    """Every quantity of a rank's step by its name; what is unknown is missing, a class without work is 0."""
    times = item.times
    values: dict[str, float | None] = {name: getattr(times, name) for name in _PLAIN}
    values |= {name: getattr(item, name) for name in ("transfer_ns", "wait_ns", "p2p_transfer_ns", "p2p_wait_ns")}
    for field in _MAPPED:
        values |= {f"{field}.{name}": value for name, value in getattr(times, field).items()}
    return {name: value for name, value in values.items() if value is not None}


def _spreads(rows: Sequence[tuple[int, Mapping[str, float]]]) -> dict[str, Spread]:
    """Of each quantity the spread of the means of rows alike."""
    gathered: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for key, values in rows:
        for name, value in values.items():
            gathered[name][key].append(value)
    return {name: Spread.of([fmean(values) for values in of.values()]) for name, of in gathered.items()}


def _slowest(of: Sequence[RankStep]) -> int | None:
    waits = [
        (item.wait_ns + item.p2p_wait_ns, item.rank)
        for item in of
        if item.wait_ns is not None and item.p2p_wait_ns is not None
    ]
    return min(waits)[1] if len(waits) == len(of) > 1 else None


def _rank_step(rank: int, profile: RankProfile, times: Times, transfers: Sequence[int | None]) -> RankStep:
    kernels = profile.kernels
    transfers_ns, waits_ns, n_unmatched = [0, 0], [0, 0], [0, 0]
    for at, step in enumerate(kernels.step):
        if step != times.step:
            continue
        is_p2p = kernels.collective[at] is Collective.P2P
        shortest = transfers[at]
        if shortest is None:
            n_unmatched[is_p2p] += 1
        else:
            transfers_ns[is_p2p] += shortest
            waits_ns[is_p2p] += kernels.duration_ns[at] - shortest
    known = [count == 0 for count in n_unmatched]
    return RankStep(
        rank=rank,
        times=times,
        transfer_ns=transfers_ns[0] if known[0] else None,
        wait_ns=waits_ns[0] if known[0] else None,
        p2p_transfer_ns=transfers_ns[1] if known[1] else None,
        p2p_wait_ns=waits_ns[1] if known[1] else None,
        n_unmatched=sum(n_unmatched),
    )


def _transfers(by_rank: Mapping[int, RankProfile]) -> dict[int, list[int | None]]:
    """For each kernel of each rank the shortest duration among its collective's, None where one is missing."""
    members: dict[Hashable, list[tuple[int, int]]] = defaultdict(list)
    needed: dict[Hashable, int | None] = {}
    for rank, profile in by_rank.items():
        for at, (key, n_ranks) in enumerate(_keys(profile, len(by_rank))):
            members[key].append((rank, at))
            needed[key] = n_ranks
    found: dict[int, list[int | None]] = {rank: [None] * len(item.kernels.step) for rank, item in by_rank.items()}
    for key, places in members.items():
        if needed[key] is not None and len(places) == needed[key]:
            shortest = min(by_rank[rank].kernels.duration_ns[at] for rank, at in places)
            for rank, at in places:
                found[rank][at] = shortest
    return found


def _keys(profile: RankProfile, n_joined: int) -> Iterable[tuple[Hashable, int | None]]:
    """A key for each kernel, the same for the kernels of one collective on all its ranks, and how many ranks it has.

    The number in the group counts if the trace has it, else the place among the step's: a trace may begin anywhere, so
    that a count over the whole of it is another on each rank. Where the trace names no groups, all ranks are one,
    unless it counts several.
    """
    kernels = profile.kernels
    seen: Counter[Hashable] = Counter()
    for at, step in enumerate(kernels.step):
        index, kind = kernels.group[at], kernels.collective[at]
        group = _NO_GROUP if index is None else profile.groups[index]
        ends = (kernels.source[at], kernels.target[at]) if kind is Collective.P2P else (None, None)
        key = (group.ranks or group.name, step, kind, ends, kernels.sequence[at])
        seen[key] += 1
        yield (*key, seen[key]), _n_ranks(group, kind, ends, profile, n_joined)


def _n_ranks(
    group: Group, kind: Collective, ends: tuple[int | None, int | None], profile: RankProfile, n_joined: int
) -> int | None:
    """How many ranks take part; None where nothing says."""
    known = group.size or len(group.ranks)
    if kind is Collective.P2P:
        return 2 if None not in ends or known == 2 else None
    if known:
        return known
    is_one_group = profile.n_groups in (None, 1) and profile.world_size in (None, n_joined)
    return n_joined if is_one_group else None
