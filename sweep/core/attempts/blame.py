"""Which nodes are to be kept away from: those that several cells blame, on one cluster, for a while."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from sweep.core.attempts.attempt import Outcome
from sweep.core.attempts.ledger import Ended
from sweep.core.attempts.outcome_rules import BLAMING
from sweep.core.encoding.frozen import dataclass
from sweep.core.encoding.names import CellId, NodeName, UnixTime
from sweep.core.encoding.plain import plain
from sweep.core.encoding.record import parse_line, read_record, render_line

_NAME = "a line of blame"


@dataclass(frozen=True, kw_only=True, slots=True)
class Blame:
    """One attempt's evidence against one node.

    Attributes:
        node: The node's name.
        time: Unix time.
        cell_id: The cell whose attempt blames it.
        run: The run's name.
        outcome: How the attempt ended.
        reason: Why, for people.
    """

    node: NodeName
    time: UnixTime
    cell_id: CellId
    run: str
    outcome: Outcome
    reason: str

    def render(self) -> str:
        """One JSON line, without its line end."""
        return render_line(plain(self))

    @classmethod
    def parse(cls, line: str) -> Blame:
        """Read one line back.

        Raises:
            RecordError: If it is damaged.
        """
        return read_record(cls, parse_line(line, _NAME), _NAME)


def blames_of(ended: Ended, run: str) -> list[Blame]:
    """The evidence of one attempt's end against nodes; ``run`` is the run's name."""
    nodes = ended.evidence.get("blamed") if ended.outcome in BLAMING else None
    return [
        Blame(
            node=str(node),
            time=ended.time,
            cell_id=ended.key.cell_id,
            run=run,
            outcome=ended.outcome,
            reason=ended.reason,
        )
        for node in (nodes if isinstance(nodes, list) else [])
    ]


def unexpired(blames: Iterable[Blame], *, now: float, expiry_h: float) -> dict[str, list[Blame]]:
    """Blame that has not expired, by node, the latest first."""
    found: dict[str, list[Blame]] = {}
    for blame in sorted(blames, key=lambda blame: -blame.time):
        if now - blame.time < expiry_h * 3600:
            found.setdefault(blame.node, []).append(blame)
    return found


def bad_nodes(blames: Iterable[Blame], *, now: float, after: int, expiry_h: float) -> tuple[str, ...]:
    """Nodes that at least ``after`` different cells blame; one cell that fails everywhere proves nothing."""
    by_node = unexpired(blames, now=now, expiry_h=expiry_h)
    return tuple(sorted(node for node, found in by_node.items() if len({blame.cell_id for blame in found}) >= after))


def excludable(
    wanted: Collection[str], *, known: Collection[str], usable: Collection[str], needed: int
) -> tuple[str, ...]:
    """Nodes to exclude of those wanted: only names that the cluster knows, and never so many that too few are left.

    Slurm refuses every submission whose ``--exclude`` has a name that it does not know, or leaves too few nodes.

    Args:
        wanted: Nodes to keep away from, the most important first.
        known: Names that the cluster knows; empty where it cannot be asked: then nothing is excluded.
        usable: Of these, nodes on which the job could start otherwise: the others are no loss, and no gain.
        needed: Nodes that the job needs.
    """
    left, chosen = set(usable), []
    for node in dict.fromkeys(wanted):
        if node not in known or (node in left and len(left) <= needed):
            continue
        left.discard(node)
        chosen.append(node)
    return tuple(sorted(chosen))


def evidence_of(blames: Mapping[str, Sequence[Blame]]) -> list[tuple[str, int, str]]:
    """Per node: how many cells blame it, and the latest reason; for ``status --nodes``."""
    return [
        (node, len({blame.cell_id for blame in found}), f"{found[0].outcome}: {found[0].reason}")
        for node, found in sorted(blames.items())
    ]
