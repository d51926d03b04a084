"""Reads what scontrol, sacctmgr, squeue and sinfo print about a cluster's configuration and nodes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from sweep.adapters.slurm.fields import parse_nodes, parse_time
from sweep.adapters.slurm.site.cluster_config import Account, Association, Partition, Qos, QueuedJob, Reservation, Tres

USER_FORMAT = "DefaultAccount,Cluster,Account,Partition,QOS,DefaultQOS,MaxSubmit,MaxWall,GrpTRES,MaxTRES"
ACCOUNT_FORMAT = "Cluster,Account,ParentName,GrpSubmit,GrpTRES"
QOS_FORMAT = "Name,MaxSubmitPU,MaxSubmitPA,GrpSubmit,MaxWall,Flags,GrpTRES,MaxTRES,MaxTRESPU,MaxTRESPA"
QUEUE_FORMAT = "%q|%a|%P"
# The reason is last: an administrator's text may hold the separator.
NODE_FORMAT = "%N|%T|%E"

_PAIR = re.compile(r"(\w+)=(\S*)")
_SETTING = re.compile(r"^(\w+)\s*= (.*?)\s*$", re.MULTILINE)
_DURATION = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")
# In sinfo's words: "down*" does not respond, an administrator set "drained" and "draining", "fail" is about to fail.
_OUT_OF_SERVICE = re.compile(r"down|drain|drng|fail|error|inval|blocked|no_respond", re.IGNORECASE)
# sinfo's marks of a node that is powered down or changes its power state: Slurm powers it up for a job.
_POWER = "~#%!@^"


def read_settings(text: str) -> dict[str, str]:
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
    """Rows of ``scontrol -o show reservation``; empty for "No reservations in the system"."""
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


def read_queue(text: str) -> list[QueuedJob]:
    """Rows of ``squeue --array -h`` in QUEUE_FORMAT."""
    return [QueuedJob(qos=qos, account=account, partition=partition) for qos, account, partition in _rows(text, 3)]


def read_out_of_service(text: str) -> dict[str, str]:
    """Nodes out of service by the rows of ``sinfo -N -h`` in NODE_FORMAT, each with its state and Slurm's reason."""
    found = {}
    for line in text.splitlines():
        name, _, rest = line.partition("|")
        state, _, reason = (part.strip() for part in rest.partition("|"))
        if is_out_of_service(state):
            found[name.strip()] = f"{state}: {reason}" if reason.lower() not in ("", "none") else state
    return found


def is_out_of_service(state: str) -> bool:
    """True if no job should count on a node in this state, as sinfo prints it; a ``*`` marks one that is silent."""
    if state[-1:] in _POWER and "drain" not in state:
        return False
    return state.endswith("*") or _OUT_OF_SERVICE.search(state) is not None


def parse_minutes(text: str) -> int | None:
    """Whole minutes of a duration (``30``, ``1-00:00:00``, ``12:30:00``, ``MM:SS``); None: no limit, or no duration."""
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
    """Limits by name and resource, from texts like ``cpu=128,gres/gpu=16,node=2``; others are skipped."""
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
