"""Slurm's partitions, associations, accounts, QOS and reservations, as the rest of the adapter sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from sweep.core.encoding.frozen import dataclass

Tres = Mapping[str, Mapping[str, int]]
"""Counts by the name of Slurm's limit (``GrpTRES``) and by resource (``node``, ``cpu``, ``gres/gpu``)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Partition:
    """One partition (``scontrol -o show partition``)."""

    name: str
    is_default: bool
    """True if a job that names no partition goes here."""
    max_walltime_min: int | None
    """Its MaxTime; None: it sets none."""
    nodes: frozenset[str]
    qos: str
    """Its own QOS, whose limits come before those of the job's; empty where it has none."""
    is_up: bool
    """True if it starts jobs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Association:
    """One user in one account (``sacctmgr show user withassoc``), with the limits that its parents set."""

    cluster: str
    account: str
    is_default: bool
    """True if a job that names no account is charged to this one."""
    partition: str
    """The only partition that it is for; empty: all."""
    qos: tuple[str, ...]
    """Every QOS that a job may ask for."""
    default_qos: str
    """The QOS of a job that asks for none; empty where none is set."""
    max_submit: int | None
    """Jobs that may be pending or running at once."""
    max_wall_min: int | None
    """Walltime of one job."""
    tres: Tres = field(default_factory=dict)
    """GrpTRES of this user's jobs together, and MaxTRES of each job."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Account:
    """One account of a cluster; ``group_submit`` (jobs) and ``tres`` (GrpTRES) limit all its users together."""

    cluster: str
    name: str
    parent: str
    group_submit: int | None
    tres: Tres = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Qos:
    """One QOS: how many jobs each user, each account and all together may submit; walltime, resources and flags."""

    name: str
    per_user: int | None = None
    per_account: int | None = None
    group_submit: int | None = None
    max_wall_min: int | None = None
    flags: frozenset[str] = frozenset()
    tres: Tres = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Reservation:
    """One reservation (``scontrol -o show reservation``)."""

    name: str
    starts_at: float | None
    nodes: frozenset[str]
    flags: frozenset[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class QueuedJob:
    """One job or array task in the queue, with what decides which limits it counts against."""

    qos: str
    account: str
    partition: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterConfig:
    """The configuration of a cluster; a field is None where Slurm did not give it."""

    settings: Mapping[str, str] | None = None
    """Slurm's own settings (``scontrol show config``)."""
    partitions: Sequence[Partition] | None = None
    reservations: Sequence[Reservation] | None = None
    associations: Sequence[Association] | None = None
    """This user's."""
    accounts: Sequence[Account] | None = None
    qos: Mapping[str, Qos] | None = None
    """By name."""

    @property
    def name(self) -> str | None:
        """Slurm's ClusterName."""
        return (self.settings or {}).get("ClusterName")

    @property
    def enforces_limits(self) -> bool:
        """True if Slurm applies the limits of associations and QOS (AccountingStorageEnforce)."""
        enforced = (self.settings or {}).get("AccountingStorageEnforce", "").lower().split(",")
        return not {"limits", "safe", "all"}.isdisjoint(enforced)

    @property
    def nodes(self) -> frozenset[str]:
        """Nodes of all partitions."""
        return frozenset[str]().union(*(partition.nodes for partition in self.partitions or ()))

    def account_and_parents(self, name: str) -> list[Account]:
        """The account of that name, its parent, and so on up to the root."""
        known = {account.name: account for account in self.accounts or () if account.cluster == self.name}
        path: dict[str, Account] = {}
        while name in known and name not in path:
            path[name] = known[name]
            name = known[name].parent
        return list(path.values())
