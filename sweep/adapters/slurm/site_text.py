"""Reading what scontrol, sacctmgr and sinfo say of a cluster: limits, partitions, reservations, nodes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING

from sweep.adapters.slurm.queue_text import parse_nodes, parse_time
from sweep.core.encoding.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

USER_FORMAT = "DefaultAccount,Cluster,Account,Partition,QOS,DefaultQOS,MaxSubmit,MaxWall,GrpTRES,MaxTRES"
ACCOUNT_FORMAT = "Cluster,Account,ParentName,GrpSubmit,GrpTRES"
QOS_FORMAT = "Name,MaxSubmitPU,MaxSubmitPA,GrpSubmit,MaxWall,Flags,GrpTRES,MaxTRES,MaxTRESPU,MaxTRESPA"
QUEUE_FORMAT = "%q|%a|%P"
# The reason is last: an administrator's words may hold the separator.
NODE_FORMAT = "%N|%T|%E"

_PAIR = re.compile(r"(\w+)=(\S*)")
_SETTING = re.compile(r"^(\w+)\s*= (.*?)\s*$", re.MULTILINE)
_DURATION = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")
# As sinfo words them: "down*" does not answer, "drained" and "draining" are an administrator's, "fail" is about to.
_UNHEALTHY = re.compile(r"down|drain|drng|fail|error|inval|blocked|no_respond", re.IGNORECASE)
# Switched off to save power, or on the way: Slurm wakes them for a job.
_POWER = "~#%!@^"


Tres = Mapping[str, Mapping[str, int]]
"""Counts by Slurm's name of the limit and by resource."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Partition:
    """One partition (``scontrol -o show partition``).

    Attributes:
        name: Its name.
        is_default: Whether a job that names none goes here.
        max_walltime_min: Its MaxTime; None: it sets none.
        nodes: Its nodes.
        qos: Its own QOS, whose limits come before the job's; empty where it has none.
        is_up: Whether it starts jobs.
    """

    name: str
    is_default: bool
    max_walltime_min: int | None
    nodes: frozenset[str]
    qos: str
    is_up: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Association:
    """What one user may do in one account (``sacctmgr show user withassoc``); limits of its parents are in it.

    Attributes:
        cluster: The cluster.
        account: The account.
        is_default: Whether a job that names no account is charged to it.
        partition: The only partition that it is for; empty: all.
        qos: What may be asked for.
        default_qos: What a job gets that asks for none; empty where nothing says.
        max_submit: Jobs that may be queued or running.
        max_wall_min: Minutes that a job may take.
        tres: Limits on resources by Slurm's name for the limit (GrpTRES of this user's own, MaxTRES of each job) and
            resource (``node``, ``cpu``, ``gres/gpu``).
    """

    cluster: str
    account: str
    is_default: bool
    partition: str
    qos: tuple[str, ...]
    default_qos: str
    max_submit: int | None
    max_wall_min: int | None
    tres: Tres = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Account:
    """One account of a cluster: its parent, and what all of its users may have together (jobs; GrpTRES)."""

    cluster: str
    name: str
    parent: str
    group_submit: int | None
    tres: Tres = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Qos:
    """One QOS: its limits on submitted jobs by user, by account and altogether, on walltime, resources; its flags."""

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
class Queued:
    """One job or array task in the queue: what it counts against."""

    qos: str
    account: str
    partition: str


def read_config(text: str) -> dict[str, str]:
    """Settings of ``scontrol show config``."""
    return {match[1]: match[2] for match in _SETTING.finditer(text)}


def read_partitions(text: str) -> list[Partition]:
    """Rows of ``scontrol -o show partition``."""
    return [
        Partition(
            name=row["PartitionName"],
            is_default=row.get("Default") == "YES",
            max_walltime_min=parse_minutes(row.get("MaxTime", "")),
            nodes=frozenset(parse_nodes(row.get("Nodes", ""))),
            qos="" if row.get("QoS", "N/A") == "N/A" else row["QoS"],
            is_up=row.get("State") == "UP",
        )
        for row in _pairs(text)
        if "PartitionName" in row
    ]


def read_reservations(text: str) -> list[Reservation]:
    """Rows of ``scontrol -o show reservation``; "No reservations in the system" is none."""
    return [
        Reservation(
            name=row["ReservationName"],
            starts_at=parse_time(row.get("StartTime", "")),
            nodes=frozenset(parse_nodes(row.get("Nodes", ""))),
            flags=frozenset(row.get("Flags", "").split(",")),
        )
        for row in _pairs(text)
        if "ReservationName" in row
    ]


def read_associations(text: str) -> list[Association]:
    """Rows of ``sacctmgr -nP show user withassoc`` in USER_FORMAT."""
    return [
        Association(
            cluster=cluster,
            account=account,
            is_default=account == default_account,
            partition=partition,
            qos=tuple(filter(None, qos.split(","))),
            default_qos=default_qos,
            max_submit=parse_count(submit),
            max_wall_min=parse_minutes(wall),
            tres=_tres(GrpTRES=group, MaxTRES=most),
        )
        for default_account, cluster, account, partition, qos, default_qos, submit, wall, group, most in _rows(text, 10)
    ]


def read_accounts(text: str) -> list[Account]:
    """Rows of ``sacctmgr -nP show assoc where user=`` in ACCOUNT_FORMAT."""
    return [
        Account(cluster=cluster, name=name, parent=parent, group_submit=parse_count(submit), tres=_tres(GrpTRES=group))
        for cluster, name, parent, submit, group in _rows(text, 5)
    ]


def read_qos(text: str) -> dict[str, Qos]:
    """Rows of ``sacctmgr -nP show qos`` in QOS_FORMAT, by name."""
    return {
        name: Qos(
            name=name,
            per_user=parse_count(per_user),
            per_account=parse_count(per_account),
            group_submit=parse_count(group),
            max_wall_min=parse_minutes(wall),
            flags=frozenset(filter(None, flags.split(","))),
            tres=_tres(GrpTRES=all_jobs, MaxTRES=job, MaxTRESPerUser=user, MaxTRESPerAccount=account),
        )
        for name, per_user, per_account, group, wall, flags, all_jobs, job, user, account in _rows(text, 10)
    }


def read_queue(text: str) -> list[Queued]:
    """Rows of ``squeue --array -h`` in QUEUE_FORMAT."""
    return [Queued(qos=qos, account=account, partition=partition) for qos, account, partition in _rows(text, 3)]


def read_unhealthy(text: str) -> dict[str, str]:
    """Nodes out of service by the rows of ``sinfo -N -h`` in NODE_FORMAT, each with its state and Slurm's reason."""
    found = {}
    for line in text.splitlines():
        name, _, rest = line.partition("|")
        state, _, reason = rest.partition("|")
        state = state.strip()
        if is_unhealthy(state):
            said = reason.strip()
            found[name.strip()] = f"{state}: {said}" if said.lower() not in ("", "none") else state
    return found


def is_unhealthy(state: str) -> bool:
    """Whether sinfo's word for a node's state says that no job should count on it; ``*`` after it: it is silent."""
    if state[-1:] in _POWER and "drain" not in state:
        return False
    return state.endswith("*") or _UNHEALTHY.search(state) is not None


def parse_minutes(text: str) -> int | None:
    """Whole minutes of Slurm's time (``30``, ``1-00:00:00``, ``12:30:00``, ``MM:SS``); None: no limit, or not read."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        return None
    days, first, second, third = (None if part is None else int(part) for part in match.groups())
    if days is not None:  # days-hours[:minutes[:seconds]]
        return (days * 24 + (first or 0)) * 60 + (second or 0)
    if third is not None:  # hours:minutes:seconds
        return (first or 0) * 60 + (second or 0)
    return first  # minutes[:seconds]


def parse_count(text: str) -> int | None:
    """A limit; None where none is set."""
    text = text.strip()
    return int(text) if text.isdecimal() else None


def _tres(**limits: str) -> Tres:
    """Limits by name and resource, of texts like ``cpu=128,gres/gpu=16,node=2``; what is no number is left out."""
    found: dict[str, dict[str, int]] = {}
    for name, text in limits.items():
        pairs = (part.rpartition("=") for part in text.split(","))
        counts = {resource: int(count) for resource, _, count in pairs if count.isdecimal()}
        if counts:
            found[name] = counts
    return found


def _pairs(text: str) -> Iterable[Mapping[str, str]]:
    return (dict(_PAIR.findall(line)) for line in text.splitlines())


def _rows(text: str, columns: int) -> Iterable[Sequence[str]]:
    rows = ([field.strip() for field in line.split("|")] for line in text.splitlines())
    return (row for row in rows if len(row) == columns)
