"""Defines a private Slurm's settings and layout, and renders its configuration files from both."""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tools.slurmbox.errors import BadRequestError, PrivateSlurmError
from tools.slurmbox.process import SYSTEM_PATH, write_file

RUN_ROOT = Path("/run/private-slurm")
CLUSTER_NAME = "private"
PARTITION = "debug"

# The layout depends on these settings: with others the cluster would not find its own directory.
OWNED_KEYS = frozenset(
    {
        "accountingstoragehost",
        "accountingstoragepass",
        "accountingstorageport",
        "authtype",
        "clustername",
        "grestypes",
        "include",
        "nodename",
        "partitionname",
        "slurmctldhost",
        "slurmctldlogfile",
        "slurmctldpidfile",
        "slurmctldport",
        "slurmdlogfile",
        "slurmdpidfile",
        "slurmdspooldir",
        "slurmuser",
        "statesavelocation",
    }
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The request of `up`, kept in DIR/cluster.json. `first_port` is None until the ports are chosen."""

    nodes: int = 4
    gpus_per_node: int = 8
    cpus_per_node: int = 8
    memory_mib_per_node: int = 256_000
    first_port: int | None = None
    overrides: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse sizes that no configuration can express, and settings that the caller may not change."""
        for name, low, high in (("nodes", 1, 64), ("gpus_per_node", 0, 64), ("cpus_per_node", 1, 1024)):
            value = getattr(self, name)
            if not low <= value <= high:
                raise BadRequestError(
                    f"{name}={value}: a private Slurm takes {low} to {high}. Choose a value in that range."
                )
        for key, value in self.overrides.items():
            _check_override(key, value)

    @property
    def node_names(self) -> list[str]:
        """node1 .. nodeN, in order."""
        return [f"node{number}" for number in range(1, self.nodes + 1)]

    @property
    def port_count(self) -> int:
        """One port for slurmctld, one for slurmdbd, one for each slurmd."""
        return self.nodes + 2

    @property
    def base_port(self) -> int:
        """The port of slurmctld; slurmdbd has the next, node1 the one after."""
        if self.first_port is None:
            raise PrivateSlurmError("The ports of this private Slurm are not chosen yet. Run `up` first.")
        return self.first_port


def _check_override(key: str, value: str) -> None:
    """Raise if KEY=VALUE cannot be a line of slurm.conf, or the layout depends on KEY."""
    if not re.fullmatch(r"[A-Za-z]\w*", key) or "\n" in value or "#" in value:
        raise BadRequestError(f"--set {key}={value}: not a line of slurm.conf. Write KEY=VALUE.")
    if key.lower() in OWNED_KEYS:
        raise BadRequestError(f"--set {key}: fixed by the private Slurm's own layout. Leave it out.")


def changed_overrides(known: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    """The recorded overrides with changes applied; an empty value removes an override."""
    touched = {key.lower() for key in changes}
    kept = {key: value for key, value in known.items() if key.lower() not in touched}
    return kept | {key: value for key, value in changes.items() if value}


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """The paths of a private Slurm: `root` is DIR, `run` a short directory for sockets and process records."""

    root: Path
    run: Path

    @classmethod
    def of(cls, directory: Path) -> Layout:
        """The layout for DIR."""
        root = directory.expanduser().resolve()
        return cls(root=root, run=RUN_ROOT / hashlib.sha256(os.fsencode(root)).hexdigest()[:10])

    @property
    def base(self) -> Path:
        """The symbolic link to DIR that the configuration uses: short, and without special characters."""
        return self.run / "dir"

    @property
    def slurm_conf(self) -> Path:
        """The value of SLURM_CONF with which Slurm's commands use this cluster."""
        return self.root / "etc" / "slurm.conf"

    @property
    def settings_file(self) -> Path:
        """The file of the settings; if it exists, DIR belongs to a private Slurm."""
        return self.root / "cluster.json"

    @property
    def lock(self) -> Path:
        """The lock of a process that changes this cluster."""
        return self.run.with_suffix(".lock")

    @property
    def munge_socket(self) -> Path:
        """The socket of munged."""
        return self.run / "munge.socket"

    @property
    def mysql_socket(self) -> Path:
        """The socket of mariadbd, which has no TCP port."""
        return self.run / "mysql.socket"

    def log(self, daemon: str) -> Path:
        """The log that a daemon writes; its output goes to the same name with `.out`."""
        return self.root / "log" / f"{daemon}.log"


def read_settings(layout: Layout) -> Settings | None:
    """The settings of the last `up`; None if there was none."""
    try:
        return Settings(**json.loads(layout.settings_file.read_text()))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise PrivateSlurmError(
            f"{layout.settings_file} is not readable ({error}). Run `down --purge`, then `up`."
        ) from error


def write_settings(layout: Layout, settings: Settings) -> None:
    """Write the settings for the next `up`."""
    write_file(layout.settings_file, json.dumps(asdict(settings), indent=1) + "\n")


def render(settings: Settings, layout: Layout) -> dict[str, str]:
    """Every configuration file of the cluster, by name."""
    # 22.05 knows no "disabled"; since 23.11 a machine without cgroup v1 needs it.
    plugin = "disabled" if _slurm_version() >= (23, 11) else "cgroup/v1"
    return {
        "slurm.conf": _slurm_conf(settings, layout),
        "gres.conf": _gres_conf(settings, layout),
        # The limit applies only with TaskPlugin=task/cgroup in slurm.conf.
        "cgroup.conf": f"CgroupPlugin={plugin}\nConstrainRAMSpace=yes\n",
        "slurmdbd.conf": _slurmdbd_conf(settings, layout),
    }


def _slurm_version() -> tuple[int, int]:
    """(major, minor) of the installed Slurm, as in 22.05."""
    environment = {"PATH": SYSTEM_PATH}
    done = subprocess.run(["slurmd", "-V"], env=environment, capture_output=True, text=True, check=False)
    found = re.search(r"(\d+)\.(\d+)", done.stdout)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _host() -> str:
    """This machine's short host name; slurmctld runs under no other."""
    return socket.gethostname().partition(".")[0]


def _slurm_conf(settings: Settings, layout: Layout) -> str:
    """The text of slurm.conf: fixed settings with the caller's overrides, then nodes and the partition."""
    replaced = {key.lower() for key in settings.overrides}
    fixed = _place_settings(settings, layout) | _behaviour_settings(settings)
    values = {key: value for key, value in fixed.items() if key.lower() not in replaced} | settings.overrides
    first = settings.base_port + 2
    gres = f" Gres=gpu:{settings.gpus_per_node}" if settings.gpus_per_node else ""
    lines = [
        "# Written by private_slurm.py; change it with --set KEY=VALUE.",
        *(f"{key}={value}" for key, value in values.items()),
        f"NodeName=node[1-{settings.nodes}] NodeHostname={_host()} NodeAddr=127.0.0.1 "
        f"Port=[{first}-{first + settings.nodes - 1}] CPUs={settings.cpus_per_node} "
        f"RealMemory={settings.memory_mib_per_node}{gres} State=UNKNOWN",
        f"PartitionName={PARTITION} Nodes=ALL Default=YES MaxTime=INFINITE State=UP",
    ]
    return "\n".join(lines) + "\n"


def _place_settings(settings: Settings, layout: Layout) -> dict[str, str]:
    """Lines of slurm.conf that hold paths, ports and hosts."""
    base, run = layout.base, layout.run
    return {
        "ClusterName": CLUSTER_NAME,
        "SlurmctldHost": f"{_host()}(127.0.0.1)",
        "SlurmctldPort": str(settings.base_port),
        "SlurmUser": "root",
        "AuthType": "auth/munge",
        # A requeued job waits for cred_expire (by default 120 s) before it may start again.
        "AuthInfo": f"socket={layout.munge_socket},cred_expire=20",
        "StateSaveLocation": f"{base}/state",
        # Without these the daemons listen on all interfaces: other machines could talk to a Slurm that runs as root.
        "CommunicationParameters": "NoInAddrAny,NoCtldInAddrAny",
        "SlurmdSpoolDir": f"{base}/spool/%n",
        "SlurmctldPidFile": f"{run}/slurmctld.pid",
        "SlurmdPidFile": f"{run}/slurmd.%n.pid",
        "SlurmctldLogFile": f"{base}/log/slurmctld.log",
        "SlurmdLogFile": f"{base}/log/slurmd.%n.log",
        "AccountingStorageType": "accounting_storage/slurmdbd",
        "AccountingStorageHost": "localhost",
        "AccountingStoragePort": str(settings.base_port + 1),
        "AccountingStoragePass": str(layout.munge_socket),
    }


def _behaviour_settings(settings: Settings) -> dict[str, str]:
    """Lines of slurm.conf that say how the cluster behaves."""
    return {
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "MpiDefault": "none",
        "ReturnToService": "2",
        "MailProg": "/bin/true",
        "PropagateResourceLimits": "NONE",
        "SchedulerType": "sched/backfill",
        # Slurm batches its scheduling for thousands of jobs; here a job should start within a second.
        "SchedulerParameters": "batch_sched_delay=0,sched_interval=2,bf_interval=1,bf_resolution=1,bf_continue",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core_Memory",
        # Without a default a job that names no memory would get all of a node's, and the node to itself.
        "DefMemPerCPU": str(settings.memory_mib_per_node // settings.cpus_per_node),
        "AccountingStorageEnforce": "associations,limits,qos",
        "AccountingStorageTRES": "gres/gpu",
        "JobAcctGatherType": "jobacct_gather/linux",
        "JobAcctGatherFrequency": "2",
        "JobAcctGatherParams": "OverMemoryKill",
        "GresTypes": "gpu",
        "SlurmdParameters": "config_overrides",
        "MaxArraySize": "1001",
        "KillWait": "5",
        "MinJobAge": "300",
        "PreemptMode": "REQUEUE",
        "PreemptType": "preempt/qos",
    }


def _gres_conf(settings: Settings, layout: Layout) -> str:
    """The text of gres.conf: all nodes share the same fake device files."""
    if not settings.gpus_per_node:
        return "# no GPUs\n"
    last = settings.gpus_per_node - 1
    files = f"{layout.base}/dev/gpu[0-{last}]" if last else f"{layout.base}/dev/gpu0"
    return f"NodeName=node[1-{settings.nodes}] Name=gpu File={files}\n"


def _slurmdbd_conf(settings: Settings, layout: Layout) -> str:
    """The text of slurmdbd.conf. It holds no password: mariadbd identifies root by its Unix user."""
    lines = [
        "AuthType=auth/munge",
        f"AuthInfo=socket={layout.munge_socket}",
        "DbdHost=localhost",
        "CommunicationParameters=NoInAddrAny",
        f"DbdPort={settings.base_port + 1}",
        "SlurmUser=root",
        f"LogFile={layout.base}/log/slurmdbd.log",
        f"PidFile={layout.run}/slurmdbd.pid",
        "StorageType=accounting_storage/mysql",
        "StorageHost=localhost",
        "StorageUser=root",
        "StorageLoc=slurm_acct_db",
    ]
    return "\n".join(lines) + "\n"
