#!/usr/bin/env python3
"""A private multi-node Slurm on one Debian or Ubuntu machine: up, down, status, env.

Everything lives in one directory (DIR, by default ``.slurm`` in the checkout) with daemons, sockets and ports of its
own, so that a system-wide Slurm, munge or MariaDB is never touched and several clusters can run side by side::

    DIR/cluster.json   what was asked for (nodes, GPUs, ports, settings); the one input of everything below
    DIR/etc            slurm.conf, gres.conf, cgroup.conf, slurmdbd.conf, munge.key
    DIR/state spool db log dev
    /run/private-slurm/HASH/   HASH stands for DIR: sockets, process records, ``dir`` -> DIR. Gone after a reboot.

All paths in the configuration go through ``/run/private-slurm/HASH/dir``: a Unix socket's path is limited to 108 bytes
(slurmstepd puts sockets into the spool directory), and slurm.conf has no quoting for blanks or brackets in a path.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import getpass
import hashlib
import json
import os
import pwd
import re
import secrets
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

DEFAULT_DIR = Path(__file__).resolve().parents[1] / ".slurm"
RUN_ROOT = Path("/run/private-slurm")
CLUSTER_NAME = "private"
ACCOUNT = "sweep"

# Debian package -> a program it must have brought.
PACKAGES: Mapping[str, str] = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "slurmdbd": "slurmdbd",
    "slurm-client": "sbatch",
    "munge": "munged",
    "mariadb-server": "mariadbd",
}

# Below the rendezvous ports of torchrun (20000-29999) and the kernel's ephemeral ports (32768 and up).
PORT_RANGE = range(15000, 20000)

# Every process we start carries these; slurmstepd inherits them from slurmd, jobs do not.
MARK_CLUSTER = "PRIVATE_SLURM"
MARK_DAEMON = "PRIVATE_SLURM_DAEMON"

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 15.0
LOG_LIMIT_BYTES = 20_000_000

READY_STATES = frozenset({"idle", "mixed", "allocated", "completing", "reserved", "planned"})
RESUMABLE_STATES = frozenset({"down", "drained", "draining", "fail", "failing", "error"})

# Settings that this file owns: changing them would cut the cluster off from its own directory.
OWNED_KEYS = frozenset(
    key.lower()
    for key in (
        "AccountingStorageHost AccountingStoragePass AccountingStoragePort AuthType ClusterName GresTypes "
        "Include NodeName PartitionName SlurmUser SlurmctldHost SlurmctldPidFile SlurmctldPort SlurmdPidFile "
        "SlurmdSpoolDir StateSaveLocation SlurmctldLogFile SlurmdLogFile"
    ).split()
)


class PrivateSlurmError(Exception):
    """Something asked of the private Slurm did not happen; the text says what, why and what to change."""


class CannotRunHereError(PrivateSlurmError):
    """This machine or user cannot run a private Slurm at all (not root, not Debian, packages missing)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What `up` was asked for; kept in DIR/cluster.json. `first_port` None means: not chosen yet."""

    nodes: int = 4
    gpus_per_node: int = 8
    cpus_per_node: int = 8
    memory_mib_per_node: int = 256_000
    first_port: int | None = None
    overrides: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse sizes that no configuration can express and settings that are not the caller's to change."""
        for name, low, high in (("nodes", 1, 64), ("gpus_per_node", 0, 64), ("cpus_per_node", 1, 1024)):
            value = getattr(self, name)
            if not low <= value <= high:
                raise PrivateSlurmError(f"{name}={value}: a private Slurm takes {low} to {high}. Change it.")
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


def _check_override(key: str, value: str) -> None:
    """Raise if KEY=VALUE cannot be a line of slurm.conf or is owned by this file."""
    if not re.fullmatch(r"[A-Za-z]\w*", key) or "\n" in value or "#" in value:
        raise PrivateSlurmError(f"--set {key}={value}: not a line of slurm.conf. Write KEY=VALUE.")
    if key.lower() in OWNED_KEYS:
        raise PrivateSlurmError(f"--set {key}: fixed by the private Slurm's own layout. Leave it out.")


# ---------------------------------------------------------------------------------------------------- processes


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessRecord:
    """Names one process for good: a pid alone may belong to somebody else by tomorrow."""

    pid: int
    start_ticks: int
    boot_id: str

    def alive(self) -> bool:
        """True if that very process still runs (a zombie does not)."""
        return self.boot_id == _boot_id() and _start_ticks(self.pid) == self.start_ticks


def _boot_id() -> str:
    """The kernel's name for this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _stat_fields(pid: int) -> list[str] | None:
    """/proc/PID/stat from the state field on (field 3 of proc(5) is index 0); None if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def _start_ticks(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot; None if it is gone or a zombie."""
    fields = _stat_fields(pid)
    if fields is None or fields[0] in "ZX":
        return None
    return int(fields[19])


def _environ(pid: int) -> dict[str, str]:
    """The environment a process was started with; empty if it is gone or not ours to read."""
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (item.partition("=") for item in raw.decode(errors="replace").split("\0") if "=" in item)
    return {name: value for name, _, value in pairs}


def _pids() -> list[int]:
    """Every process on the machine except this one."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]


def _with_descendants(roots: set[int]) -> set[int]:
    """The given processes and all their living descendants."""
    parent = {pid: int(fields[1]) for pid in _pids() if (fields := _stat_fields(pid)) is not None}
    found = set(roots)
    grew = True
    while grew:
        more = {pid for pid, ppid in parent.items() if ppid in found} - found
        found |= more
        grew = bool(more)
    return {pid for pid in found if _start_ticks(pid) is not None}


def _kill(pid: int, sig: signal.Signals) -> None:
    """Send a signal; a process that has just ended is no error."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, sig)


def _wait(check: Callable[[], bool], timeout_s: float, every_s: float = 0.1) -> bool:
    """Poll until `check` holds; False when the time is up."""
    deadline = time.monotonic() + timeout_s
    while not check():
        if time.monotonic() > deadline:
            return False
        time.sleep(every_s)
    return True


def _tail(path: Path, lines: int = 12) -> str:
    """The last lines of a log, indented for an error message."""
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return f"  ({path}: no such log)"
    return "\n".join(f"  | {line}" for line in text.splitlines()[-lines:]) or f"  ({path}: empty)"


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    """Publish a file atomically: a file that exists is complete."""
    temporary = path.with_name(path.name + ".tmp")
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.chmod(mode)
    temporary.replace(path)


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold an exclusive lock; wait for whoever has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


# ---------------------------------------------------------------------------------------------------- packages


def _missing_packages() -> list[str]:
    """Debian packages whose program is not on this machine."""
    return [name for name, program in PACKAGES.items() if shutil.which(program, path=SYSTEM_PATH) is None]


@contextlib.contextmanager
def _no_service_start(policy: Path = Path("/usr/sbin/policy-rc.d")) -> Iterator[None]:
    """Keep freshly installed packages from starting system services (Debian's policy-rc.d, exit 101)."""
    if policy.exists():
        yield
        return
    _write(policy, "#!/bin/sh\nexit 101\n", 0o755)
    try:
        yield
    finally:
        policy.unlink(missing_ok=True)


def _apt_install(packages: Sequence[str]) -> None:
    """Install packages, with fresh lists only if the first try fails."""
    environment = {"PATH": SYSTEM_PATH, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    install = [
        "apt-get",
        "install",
        "-y",
        "--no-install-recommends",
        "-o",
        "DPkg::Lock::Timeout=120",
        *packages,
    ]
    for argv in (install, ["apt-get", "update"], install):
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
        if argv is install and done.returncode == 0:
            return
    tail = "\n".join(f"  | {line}" for line in (done.stdout + done.stderr).splitlines()[-8:])
    raise CannotRunHereError(
        f"Installing {' '.join(packages)} failed (apt-get exit {done.returncode}):\n{tail}\n"
        "Mend apt, or install these packages yourself, and run `up` again."
    )


def _ensure_packages(say: Callable[[str], None]) -> None:
    """Install what is missing; raise CannotRunHereError where that is impossible."""
    missing = _missing_packages()
    if not missing:
        return
    if shutil.which("apt-get", path=SYSTEM_PATH) is None:
        raise CannotRunHereError(
            f"A private Slurm needs {', '.join(missing)}; no apt-get here to install them."
        )
    say(f"installing {' '.join(missing)}")
    with _no_service_start(), _lock(RUN_ROOT / "apt.lock"):
        _apt_install(missing)
    if still := _missing_packages():
        raise CannotRunHereError(
            f"apt-get installed, yet the programs of {', '.join(still)} are not on the path."
        )


# ---------------------------------------------------------------------------------------------------- configuration


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Where things are. `base` is DIR as written into the configuration: short and without odd characters."""

    root: Path
    run: Path

    @classmethod
    def of(cls, directory: Path) -> Layout:
        """The layout for DIR."""
        root = directory.expanduser().resolve()
        return cls(root=root, run=RUN_ROOT / hashlib.sha256(os.fsencode(root)).hexdigest()[:10])

    @property
    def base(self) -> Path:
        """The symbolic link to DIR that the configuration speaks of."""
        return self.run / "dir"

    @property
    def munge_socket(self) -> Path:
        """Our munged's socket."""
        return self.run / "munge.socket"

    @property
    def mysql_socket(self) -> Path:
        """Our mariadbd's socket; it has no TCP port."""
        return self.run / "mysql.socket"


def _slurm_version() -> tuple[int, int]:
    """(major, minor) of the installed Slurm, as in 22.05."""
    done = subprocess.run(
        ["slurmd", "-V"], env={"PATH": SYSTEM_PATH}, capture_output=True, text=True, check=False
    )
    found = re.search(r"(\d+)\.(\d+)", done.stdout)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _slurm_settings(settings: Settings, layout: Layout) -> dict[str, str]:
    """slurm.conf without nodes and partitions, before the caller's overrides."""
    assert settings.first_port is not None
    base, host = layout.base, socket.gethostname().partition(".")[0]
    return {
        "ClusterName": CLUSTER_NAME,
        "SlurmctldHost": f"{host}(127.0.0.1)",
        "SlurmctldPort": str(settings.first_port),
        "SlurmUser": "root",
        "AuthType": "auth/munge",
        # cred_expire is also how long a requeued job waits before it may start again (120 s by default).
        "AuthInfo": f"socket={layout.munge_socket},cred_expire=20",
        "StateSaveLocation": f"{base}/state",
        "SlurmdSpoolDir": f"{base}/spool/%n",
        "SlurmctldPidFile": f"{layout.run}/slurmctld.pid",
        "SlurmdPidFile": f"{layout.run}/slurmd.%n.pid",
        "SlurmctldLogFile": f"{base}/log/slurmctld.log",
        "SlurmdLogFile": f"{base}/log/slurmd.%n.log",
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "MpiDefault": "none",
        "ReturnToService": "2",
        "MessageTimeout": "30",
        "PropagateResourceLimits": "NONE",
        "SchedulerType": "sched/backfill",
        # Slurm batches its scheduling for thousands of jobs; here a job should start within a second.
        "SchedulerParameters": "batch_sched_delay=0,sched_interval=2,bf_interval=1,bf_resolution=1,bf_continue",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core_Memory",
        # Without a default a job that names no memory would get all of a node's, and the node to itself.
        "DefMemPerCPU": str(settings.memory_mib_per_node // settings.cpus_per_node),
        "AccountingStorageType": "accounting_storage/slurmdbd",
        "AccountingStorageHost": "localhost",
        "AccountingStoragePort": str(settings.first_port + 1),
        "AccountingStoragePass": str(layout.munge_socket),
        "AccountingStorageEnforce": "associations,limits,qos",
        "AccountingStorageTRES": "gres/gpu",
        "JobAcctGatherType": "jobacct_gather/linux",
        "JobAcctGatherFrequency": "2",
        "JobAcctGatherParams": "OverMemoryKill",
        "GresTypes": "gpu",
        "SlurmdParameters": "config_overrides",
        "MaxArraySize": "1001",
        "KillWait": "5",
        "MinJobAge": "30",
        "PreemptMode": "REQUEUE",
        "PreemptType": "preempt/qos",
    }


def _merged(settings: dict[str, str], overrides: Mapping[str, str]) -> dict[str, str]:
    """Settings with overrides applied; slurm.conf's keys do not care about case."""
    replaced = {key.lower() for key in overrides}
    return {key: value for key, value in settings.items() if key.lower() not in replaced} | dict(overrides)


def _slurm_conf(settings: Settings, layout: Layout) -> str:
    """The text of slurm.conf."""
    assert settings.first_port is not None
    values = _merged(_slurm_settings(settings, layout), settings.overrides)
    host = socket.gethostname().partition(".")[0]
    first, last = settings.first_port + 2, settings.first_port + 1 + settings.nodes
    gres = f" Gres=gpu:{settings.gpus_per_node}" if settings.gpus_per_node else ""
    nodes = (
        f"NodeName=node[1-{settings.nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] "
        f"CPUs={settings.cpus_per_node} RealMemory={settings.memory_mib_per_node}{gres} State=UNKNOWN"
    )
    partition = "PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP"
    lines = [f"{key}={value}" for key, value in values.items()]
    return "\n".join(
        ["# Written by private_slurm.py; change it with --set KEY=VALUE.", *lines, nodes, partition, ""]
    )


def _gres_conf(settings: Settings, layout: Layout) -> str:
    """The text of gres.conf: all nodes share the same fake device files."""
    if not settings.gpus_per_node:
        return "# no GPUs\n"
    last = settings.gpus_per_node - 1
    files = f"{layout.base}/dev/gpu[0-{last}]" if last else f"{layout.base}/dev/gpu0"
    return f"NodeName=node[1-{settings.nodes}] Name=gpu File={files}\n"


def _slurmdbd_conf(settings: Settings, layout: Layout) -> str:
    """The text of slurmdbd.conf; root logs in to our mariadbd by its Unix identity, so there is no password."""
    assert settings.first_port is not None
    return "\n".join(
        [
            "AuthType=auth/munge",
            f"AuthInfo=socket={layout.munge_socket}",
            "DbdHost=localhost",
            f"DbdPort={settings.first_port + 1}",
            "SlurmUser=root",
            f"LogFile={layout.base}/log/slurmdbd.log",
            f"PidFile={layout.run}/slurmdbd.pid",
            "StorageType=accounting_storage/mysql",
            "StorageHost=localhost",
            "StorageUser=root",
            "StorageLoc=slurm_acct_db",
            "",
        ]
    )


def _render(settings: Settings, layout: Layout) -> dict[str, str]:
    """Every configuration file of the cluster, by name."""
    # 22.05 knows no "disabled"; since 23.11 a machine without cgroup v1 needs it.
    plugin = "disabled" if _slurm_version() >= (23, 11) else "cgroup/v1"
    return {
        "slurm.conf": _slurm_conf(settings, layout),
        "gres.conf": _gres_conf(settings, layout),
        "cgroup.conf": f"CgroupPlugin={plugin}\n",
        "slurmdbd.conf": _slurmdbd_conf(settings, layout),
    }


def _port_is_free(port: int) -> bool:
    """True if a daemon could listen there now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def _make_device(path: Path) -> None:
    """A character device that stands for a GPU: Slurm only looks at it, nothing opens it."""
    if path.exists() and stat.S_ISCHR(path.stat().st_mode):
        return
    path.unlink(missing_ok=True)
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError:  # a container without CAP_MKNOD; Slurm follows the link
        path.symlink_to("/dev/null")


# ---------------------------------------------------------------------------------------------------- the cluster


@dataclass(frozen=True, kw_only=True, slots=True)
class Daemon:
    """One daemon of the cluster: how it is started, what it writes, how one knows that it answers."""

    name: str
    argv: tuple[str, ...]
    log: Path
    port: int | None
    answers: Callable[[], bool]


@dataclass(frozen=True, kw_only=True, slots=True)
class Status:
    """What is true now. `problems` is empty exactly when the cluster can run jobs."""

    dir: str
    slurm_conf: str
    up: bool
    daemons: dict[str, int | None]
    nodes: dict[str, str]
    problems: list[str]


def _silent(_: str) -> None:
    """Say nothing."""


class Cluster:
    """The private Slurm in one directory. Making the object touches nothing."""

    def __init__(self, directory: Path = DEFAULT_DIR, say: Callable[[str], None] = _silent) -> None:
        self.layout = Layout.of(directory)
        self._say = say

    # -- what is known -------------------------------------------------------------------------------------

    @property
    def slurm_conf(self) -> Path:
        """What SLURM_CONF must be for Slurm's commands to speak to this cluster."""
        return self.layout.root / "etc" / "slurm.conf"

    def env(self) -> dict[str, str]:
        """Variables to add to a process that is to use this cluster."""
        return {"SLURM_CONF": str(self.slurm_conf)}

    def settings(self) -> Settings | None:
        """What the last successful `up` settled on; None if there was none."""
        path = self.layout.root / "cluster.json"
        try:
            return Settings(**json.loads(path.read_text()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            raise PrivateSlurmError(
                f"{path} is not readable ({error}). Run `down --purge`, then `up`."
            ) from error

    def _known_settings(self) -> Settings:
        """The settings of a cluster that must have been brought up before."""
        settings = self.settings()
        if settings is None:
            raise PrivateSlurmError(f"There is no private Slurm in {self.layout.root}. Run `up` first.")
        return settings

    def run(
        self, *argv: str, timeout_s: float = 60.0, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run one of Slurm's commands against this cluster, with none of the caller's SLURM_* variables."""
        environment = {"PATH": SYSTEM_PATH, "HOME": "/root", "LC_ALL": "C", **self.env()}
        try:
            done = subprocess.run(
                argv, env=environment, cwd="/", capture_output=True, text=True, timeout=timeout_s, check=False
            )
        except subprocess.TimeoutExpired:
            done = subprocess.CompletedProcess(argv, 124, "", f"no answer within {timeout_s:g} s")
        except FileNotFoundError:
            done = subprocess.CompletedProcess(argv, 127, "", "not installed")
        if check and done.returncode != 0:
            raise PrivateSlurmError(
                f"`{shlex.join(argv)}` failed (exit {done.returncode}): {(done.stderr or done.stdout).strip()}\n"
                f"{_tail(self.layout.root / 'log' / 'slurmctld.log')}\nRun `up` to repair the cluster."
            )
        return done

    def node_states(self) -> dict[str, str]:
        """State of every node in sinfo's long words ("idle", "down*"); empty if the controller does not answer."""
        done = self.run("sinfo", "-h", "-N", "-o", "%N %T", timeout_s=10, check=False)
        return dict(line.split() for line in done.stdout.splitlines()) if done.returncode == 0 else {}

    def status(self) -> Status:
        """Look at daemons, controller, accounting and nodes; change nothing."""
        settings = self.settings()
        daemons = {d.name: self._live_pid(d.name) for d in self._daemons(settings)} if settings else {}
        nodes = self.node_states() if daemons.get("slurmctld") else {}
        problems = self._problems(settings, daemons, nodes)
        return Status(
            dir=str(self.layout.root),
            slurm_conf=str(self.slurm_conf),
            up=not problems,
            daemons=daemons,
            nodes=nodes,
            problems=problems,
        )

    def _problems(
        self, settings: Settings | None, daemons: Mapping[str, int | None], nodes: Mapping[str, str]
    ) -> list[str]:
        """Why the cluster cannot be used, most basic reason first."""
        if settings is None:
            return [f"no private Slurm in {self.layout.root}"]
        problems = [f"{name} is not running" for name, pid in daemons.items() if pid is None]
        if daemons["slurmctld"] and not nodes:
            problems.append("slurmctld does not answer")
        problems += [f"{name} is {state}" for name, state in nodes.items() if not _is_ready(state)]
        problems += [
            f"{name} is unknown to slurmctld" for name in settings.node_names if nodes and name not in nodes
        ]
        if daemons["slurmdbd"] and not self._accounting_answers():
            problems.append("slurmdbd does not answer")
        return problems

    # -- process records -----------------------------------------------------------------------------------

    def _record_path(self, name: str) -> Path:
        return self.layout.run / f"{name}.proc"

    def _record(self, name: str) -> ProcessRecord | None:
        """The process last started as daemon `name`."""
        try:
            return ProcessRecord(**json.loads(self._record_path(name).read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def _live_pid(self, name: str) -> int | None:
        """Pid of daemon `name` if it runs."""
        record = self._record(name)
        return record.pid if record and record.alive() else None

    def _marked_pids(self, daemon: str | None = None) -> set[int]:
        """Processes that carry this cluster's mark: daemons and slurmstepds (of one daemon, or of all)."""
        found = set()
        for pid in _pids():
            environment = _environ(pid)
            if environment.get(MARK_CLUSTER) == self.layout.run.name and _start_ticks(pid) is not None:
                if daemon is None or environment.get(MARK_DAEMON) == daemon:
                    found.add(pid)
        return found

    def _job_pids(self, node: str | None = None) -> set[int]:
        """Processes of this cluster's jobs (on one node, or on all), found by what slurmstepd gave them."""
        confs = {str(self.slurm_conf), str(self.layout.base / "etc" / "slurm.conf")}
        found = set()
        for pid in _pids():
            environment = _environ(pid)
            on_node = environment.get("SLURMD_NODENAME")
            if on_node and environment.get("SLURM_CONF") in confs and node in (None, on_node):
                found.add(pid)
        return found

    # -- daemons -------------------------------------------------------------------------------------------

    def _daemons(self, settings: Settings) -> list[Daemon]:
        """All daemons in the order in which they must start."""
        port = settings.first_port
        services = [self._munged(), self._mariadbd(), self._slurmdbd(port), self._slurmctld(port)]
        return services + [self._slurmd(name, port, at) for at, name in enumerate(settings.node_names)]

    def _daemon(
        self, name: str, argv: Sequence[str], port: int | None, answers: Callable[[], bool]
    ) -> Daemon:
        return Daemon(
            name=name,
            argv=tuple(argv),
            log=self.layout.root / "log" / f"{name}.log",
            port=port,
            answers=answers,
        )

    def _munged(self) -> Daemon:
        """munged, as root: --force because it distrusts a key below a directory that a developer owns."""
        run, base = self.layout.run, self.layout.base
        argv = [
            "munged",
            "--foreground",
            "--force",
            f"--socket={self.layout.munge_socket}",
            "--num-threads=2",
        ]
        argv += [
            f"--key-file={base}/etc/munge.key",
            f"--pid-file={run}/munged.pid",
            f"--seed-file={run}/munged.seed",
        ]
        socket_option = f"--socket={self.layout.munge_socket}"
        return self._daemon(
            "munged", argv, None, lambda: self.run("munge", "-n", socket_option, check=False).returncode == 0
        )

    def _mariadbd(self) -> Daemon:
        """mariadbd, as root and without a port: only root can log in, by its Unix identity."""
        base, sock = self.layout.base, self.layout.mysql_socket
        argv = ["mariadbd", "--no-defaults", "--user=root", f"--datadir={base}/db", f"--socket={sock}"]
        argv += [
            f"--pid-file={self.layout.run}/mariadbd.pid",
            "--skip-networking",
            "--innodb-buffer-pool-size=64M",
        ]
        argv += [
            "--innodb-lock-wait-timeout=900",
            "--innodb-flush-log-at-trx-commit=2",
            "--performance-schema=OFF",
        ]
        ping = ("mariadb-admin", "--no-defaults", f"--socket={sock}", "--user=root", "ping")
        return self._daemon("mariadbd", argv, None, lambda: self.run(*ping, check=False).returncode == 0)

    def _slurmdbd(self, first_port: int | None) -> Daemon:
        port = None if first_port is None else first_port + 1
        return self._daemon("slurmdbd", ["slurmdbd", "-D"], port, self._accounting_answers)

    def _slurmctld(self, first_port: int | None) -> Daemon:
        argv = ["slurmctld", "-D", "-f", str(self.layout.base / "etc" / "slurm.conf")]
        return self._daemon("slurmctld", argv, first_port, self._controller_answers)

    def _slurmd(self, node: str, first_port: int | None, index: int) -> Daemon:
        """One node's slurmd; whether it answers is seen in the node's state, later and for all at once."""
        argv = ["slurmd", "-D", "-N", node, "-f", str(self.layout.base / "etc" / "slurm.conf")]
        port = None if first_port is None else first_port + 2 + index
        return self._daemon(f"slurmd.{node}", argv, port, lambda: True)

    def _accounting_answers(self) -> bool:
        done = self.run(
            "sacctmgr", "-n", "-P", "show", "cluster", "format=cluster", timeout_s=10, check=False
        )
        return done.returncode == 0

    def _controller_answers(self) -> bool:
        return "is UP" in self.run("scontrol", "ping", timeout_s=10, check=False).stdout

    def _launch(self, daemon: Daemon) -> None:
        """Start a daemon as a child of init, in a session of its own, and record which process it is."""
        environment = {
            "PATH": SYSTEM_PATH,
            "HOME": "/root",
            "LC_ALL": "C",
            "SLURM_CONF": str(self.layout.base / "etc" / "slurm.conf"),
            # libmariadb's name for the default socket of "localhost": slurmdbd has no setting for it.
            "MYSQL_UNIX_PORT": str(self.layout.mysql_socket),
            MARK_CLUSTER: self.layout.run.name,
            MARK_DAEMON: daemon.name,
        }
        _rotate(daemon.log)
        script = 'out=$1; shift; umask 022; setsid "$@" </dev/null >"$out" 2>&1 & echo $!'
        argv = ["sh", "-c", script, "sh", str(daemon.log.with_suffix(".out")), *daemon.argv]
        done = subprocess.run(
            argv, env=environment, cwd=self.layout.run, stdout=subprocess.PIPE, text=True, check=True
        )
        pid = int(done.stdout)
        ticks = _start_ticks(pid)
        record = ProcessRecord(pid=pid, start_ticks=-1 if ticks is None else ticks, boot_id=_boot_id())
        _write(self._record_path(daemon.name), json.dumps(asdict(record)))

    def _start(self, daemon: Daemon) -> bool:
        """Make sure that a daemon runs and answers; True if it had to be started."""
        if self._live_pid(daemon.name) is not None:
            if _wait(daemon.answers, 5.0):
                return False
            self._stop(daemon.name)
        self._say(f"starting {daemon.name}")
        self._launch(daemon)
        if not _wait(lambda: self._live_pid(daemon.name) is None or daemon.answers(), START_TIMEOUT_S):
            raise self._daemon_error(daemon, f"does not answer after {START_TIMEOUT_S:g} s")
        if self._live_pid(daemon.name) is None:
            raise self._daemon_error(daemon, "ended at once")
        return True

    def _daemon_error(self, daemon: Daemon, what: str) -> PrivateSlurmError:
        """The error for a daemon that would not start, with what it said."""
        log = (
            daemon.log
            if daemon.log.exists() and daemon.log.stat().st_size
            else daemon.log.with_suffix(".out")
        )
        return PrivateSlurmError(
            f"{daemon.name} was started ({shlex.join(daemon.argv)}) and {what}. The end of {log}:\n{_tail(log)}\n"
            "Mend what it complains of and run `up` again; `down --purge` starts from nothing."
        )

    def _stop(self, name: str) -> None:
        """Stop a daemon that we started; SIGKILL if it does not go by itself."""
        record = self._record(name)
        if record is not None and record.alive():
            self._say(f"stopping {name}")
            _kill(record.pid, signal.SIGTERM)
            if not _wait(lambda: not record.alive(), STOP_TIMEOUT_S, 0.05):
                _kill(record.pid, signal.SIGKILL)
                _wait(lambda: not record.alive(), STOP_TIMEOUT_S, 0.05)
        self._record_path(name).unlink(missing_ok=True)

    # -- up ------------------------------------------------------------------------------------------------

    def up(
        self,
        *,
        nodes: int | None = None,
        gpus_per_node: int | None = None,
        cpus_per_node: int | None = None,
        set_values: Mapping[str, str | None] | None = None,
    ) -> bool:
        """Bring the cluster up, or repair it; True if anything had to be done.

        What is None stays as it was recorded (or takes its default the first time). `set_values` adds lines to
        slurm.conf; a value of None or "" takes an earlier one back.
        """
        known = self.settings()
        sizes = {"nodes": nodes, "gpus_per_node": gpus_per_node, "cpus_per_node": cpus_per_node}
        wanted = replace(
            known or Settings(),
            overrides=_new_overrides(known.overrides if known else {}, set_values or {}),
            **{name: value for name, value in sizes.items() if value is not None},
        )
        if wanted == known and self._is_current(known) and self.status().up:
            return False
        _require_root("up")
        with _lock(RUN_ROOT / f"{self.layout.run.name}.lock"):
            _ensure_packages(self._say)
            self._bring_up(wanted, known)
        return True

    def _is_current(self, settings: Settings) -> bool:
        """True if the files in DIR/etc are what the settings (and this version of the tool) ask for."""
        if settings.first_port is None or _missing_packages():
            return False
        for name, text in _render(settings, self.layout).items():
            path = self.layout.root / "etc" / name
            try:
                if name != "slurmdbd.conf" and path.read_text() != text:
                    return False
            except OSError:
                return False
        return True

    def _bring_up(self, wanted: Settings, known: Settings | None) -> None:
        """Everything between "not up" and "a job has run", each step only where it is needed."""
        if known is None:
            self._stop_all()  # somebody removed DIR under a running cluster
        self._make_directories(wanted)
        settings = self._with_ports(wanted)
        if known is None:
            self._remember(settings)
        self._configure(settings)
        for daemon in self._daemons(settings)[:3]:
            self._start(daemon)
        self._ensure_accounts()
        for daemon in self._daemons(settings)[3:]:
            self._start(daemon)
        self._await_nodes(settings.node_names)
        self._run_test_job(settings)
        self._remember(settings)

    def _remember(self, settings: Settings) -> None:
        _write(self.layout.root / "cluster.json", json.dumps(asdict(settings), indent=1) + "\n")

    def _make_directories(self, settings: Settings) -> None:
        """Create DIR and what the daemons expect in it; slurmd stops if its spool directory is missing."""
        root, run = self.layout.root, self.layout.run
        if root.exists() and any(root.iterdir()) and not (root / "cluster.json").exists():
            raise PrivateSlurmError(
                f"--dir {root}: exists, is not empty and holds no private Slurm. Name a new or empty directory."
            )
        run.mkdir(parents=True, exist_ok=True)
        for name in ("etc", "state", "log", "dev", *(f"spool/{node}" for node in settings.node_names)):
            (root / name).mkdir(parents=True, exist_ok=True)
        if not self.layout.base.is_symlink() or self.layout.base.readlink() != root:
            self.layout.base.unlink(missing_ok=True)
            self.layout.base.symlink_to(root)
        for index in range(settings.gpus_per_node):
            _make_device(root / "dev" / f"gpu{index}")
        key = root / "etc" / "munge.key"
        if not key.exists():
            _write(key, secrets.token_hex(512), 0o400)
        self._create_database()

    def _create_database(self) -> None:
        """Create mariadbd's data directory; a half-made one from an interrupted `up` is made again."""
        data = self.layout.root / "db"
        if (data / "complete").exists():
            return
        self._say("creating the accounting database")
        self._stop("mariadbd")
        shutil.rmtree(data, ignore_errors=True)
        argv = ["mariadb-install-db", "--no-defaults", "--user=root", f"--datadir={self.layout.base}/db"]
        argv += ["--auth-root-authentication-method=socket", "--auth-root-socket-user=root", "--skip-test-db"]
        done = self.run(*argv, timeout_s=300, check=False)
        if done.returncode != 0:
            raise PrivateSlurmError(f"`{shlex.join(argv)}` failed:\n{(done.stdout + done.stderr)[-2000:]}")
        _write(data / "complete", "")

    def _with_ports(self, settings: Settings) -> Settings:
        """Settings with ports that we hold or can have; all daemons stop if the ports must change."""
        with _lock(RUN_ROOT / "ports.lock"):
            if not self._ports_usable(settings):
                self._stop_all()
                settings = replace(settings, first_port=self._choose_ports(settings.port_count))
            text = f"{settings.first_port} {settings.port_count}"
            _write(self.layout.run / "ports", text)
        return settings

    def _ports_usable(self, settings: Settings) -> bool:
        """True if ports are chosen and each is free or held by our own daemon."""
        if settings.first_port is None:
            return False
        owned = (d for d in self._daemons(settings) if d.port is not None)
        return all(self._live_pid(d.name) is not None or _port_is_free(d.port or 0) for d in owned)

    def _choose_ports(self, count: int) -> int:
        """First of `count` free consecutive ports that no other private Slurm has put down for itself."""
        taken: set[int] = set()
        for path in RUN_ROOT.glob("*/ports"):
            if path.parent != self.layout.run:
                first, size = map(int, path.read_text().split())
                taken |= set(range(first, first + size))
        starts = range(PORT_RANGE.start, PORT_RANGE.stop - count, count)
        shift = int(self.layout.run.name, 16) % len(starts)
        for start in (*starts[shift:], *starts[:shift]):
            block = range(start, start + count)
            if not taken & set(block) and all(map(_port_is_free, block)):
                return start
        raise PrivateSlurmError(
            f"No {count} free ports in a row in {PORT_RANGE.start}-{PORT_RANGE.stop}. Stop something, or lower --nodes."
        )

    def _configure(self, settings: Settings) -> None:
        """Write changed configuration files; daemons that read them stop, to be started again."""
        etc = self.layout.root / "etc"
        changed = set()
        for name, text in _render(settings, self.layout).items():
            path = etc / name
            if not path.exists() or path.read_text() != text:
                _write(path, text, 0o600 if name == "slurmdbd.conf" else 0o644)
                changed.add(name)
        if "slurmdbd.conf" in changed:
            self._stop("slurmdbd")
        if changed - {"slurmdbd.conf"}:
            for path in sorted(self.layout.run.glob("slurmd.*.proc")):
                self._stop(path.stem)
            self._stop("slurmctld")

    def _ensure_accounts(self) -> None:
        """Cluster, account, users and the qualities of service low < high; all may exist already."""
        steps = [["add", "cluster", CLUSTER_NAME], ["add", "account", ACCOUNT, f"Cluster={CLUSTER_NAME}"]]
        steps += [
            ["add", "qos", "low", "preemptmode=requeue"],
            ["add", "qos", "high", "preempt=low", "priority=100"],
        ]
        for user in _users():
            steps.append(["add", "user", user, f"Account={ACCOUNT}", "AdminLevel=Admin"])
            steps.append(["modify", "user", user, "set", "qos=normal,low,high", "defaultqos=normal"])
        for step in steps:
            self._sacctmgr(*step)

    def _sacctmgr(self, *words: str) -> None:
        """Change the accounting database; what is already so is fine."""
        done = self.run("sacctmgr", "-i", *words, check=False)
        said = done.stdout + done.stderr
        if done.returncode != 0 and not re.search(r"already exists|Nothing (new )?(added|modified)", said):
            log = _tail(self.layout.root / "log" / "slurmdbd.log")
            raise PrivateSlurmError(f"`sacctmgr {' '.join(words)}` failed: {said.strip()}\n{log}")

    def _await_nodes(self, names: Sequence[str], timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until nodes take jobs; nodes that are down or drained are resumed."""
        if not _wait(lambda: self._nudge_nodes(names), timeout_s, 0.25):
            states = self.node_states()
            bad = [name for name in names if not _is_ready(states.get(name, "unknown"))]
            logs = "\n".join(
                f"{name}: {states.get(name)}\n{_tail(self._node_log(name), 6)}" for name in bad[:2]
            )
            reasons = self.run("sinfo", "-R", "-o", "%n %E", check=False).stdout.strip()
            raise PrivateSlurmError(f"Not ready after {timeout_s:g} s: {', '.join(bad)}.\n{logs}\n{reasons}")

    def _node_log(self, name: str) -> Path:
        return self.layout.root / "log" / f"slurmd.{name}.log"

    def _nudge_nodes(self, names: Sequence[str]) -> bool:
        """True if all nodes are ready; resumes those that wait for an administrator."""
        states = self.node_states()
        waiting = [name for name in names if not _is_ready(states.get(name, "unknown"))]
        for name in waiting:
            if states.get(name, "").rstrip("*") in RESUMABLE_STATES:
                self.run("scontrol", "update", f"nodename={name}", "state=resume", check=False)
        return not waiting

    def _run_test_job(self, settings: Settings) -> None:
        """Run one job over all nodes and wait until accounting has seen its end; not while others use the nodes."""
        if self.run("squeue", "-h").stdout.strip():
            self._say("jobs are in the queue: no test job")
            return
        self._say("running a test job")
        wrap = ("--output=/dev/null", "--job-name=slurm-up", "--time=1", "--wrap=srun true")
        job = self.run("sbatch", "--parsable", f"--nodes={settings.nodes}", "--chdir=/", *wrap).stdout.strip()
        state = ""

        def ended() -> bool:
            nonlocal state
            state = self.run("sacct", "-X", "-n", "-P", "-j", job, "-o", "State").stdout.strip()
            return state not in ("", "PENDING", "RUNNING", "COMPLETING")

        _wait(ended, START_TIMEOUT_S)
        if state != "COMPLETED":
            raise PrivateSlurmError(
                f"The test job {job} over {settings.nodes} nodes is {state or 'unknown'} after {START_TIMEOUT_S:g} s, "
                f"not COMPLETED.\n{_tail(self.layout.root / 'log' / 'slurmctld.log')}\n"
                "Look into the log directory; `down` and `up` restart everything."
            )

    # -- down ----------------------------------------------------------------------------------------------

    def down(self, *, purge: bool = False) -> None:
        """Cancel all jobs and stop every process of this cluster; with `purge` remove DIR as well."""
        _require_root("down")
        root = self.layout.root
        if purge and root.exists() and any(root.iterdir()) and not (root / "cluster.json").exists():
            raise PrivateSlurmError(
                f"down --purge: {root} holds no private Slurm. Remove it yourself if you mean it."
            )
        with _lock(RUN_ROOT / f"{self.layout.run.name}.lock"):
            self._stop_all()
            shutil.rmtree(self.layout.run, ignore_errors=True)
            if purge:
                shutil.rmtree(root, ignore_errors=True)
        (RUN_ROOT / f"{self.layout.run.name}.lock").unlink(missing_ok=True)

    def _stop_all(self) -> None:
        """Stop jobs, then daemons in the order in which nobody misses the next, then whatever is left."""
        if self._live_pid("slurmctld"):
            self.run("scancel", "--partition=debug", timeout_s=10, check=False)
        nodes = sorted(path.stem for path in self.layout.run.glob("slurmd.*.proc"))
        for node in nodes:
            self._kill_node(node.removeprefix("slurmd."))
        for name in ("slurmctld", "slurmdbd", "mariadbd", "munged"):
            self._stop(name)
        if not _wait(self._kill_leftovers, STOP_TIMEOUT_S, 0.2):
            left = sorted(self._marked_pids() | self._job_pids())
            raise PrivateSlurmError(f"Processes {left} of the private Slurm do not end, even on SIGKILL.")

    def _kill_leftovers(self) -> bool:
        """True if no process of this cluster is left; kills those that are."""
        left = _with_descendants(self._marked_pids() | self._job_pids())
        for pid in left:
            _kill(pid, signal.SIGKILL)
        return not left

    # -- accidents, for tests ------------------------------------------------------------------------------

    def fail_node(self, name: str) -> None:
        """What a power cut does to a node: slurmd and all its jobs' processes die, and the node is marked down."""
        self._check_node(name)
        self._kill_node(name)
        self.run("scontrol", "update", f"nodename={name}", "state=down", "reason=fail_node")

    def _kill_node(self, name: str) -> None:
        """Kill a node's slurmd, slurmstepds and job processes, none of them with a chance to say goodbye."""
        doomed = self._marked_pids(f"slurmd.{name}") | self._job_pids(name)
        for pid in _with_descendants(doomed):
            _kill(pid, signal.SIGKILL)
        _wait(lambda: self._live_pid(f"slurmd.{name}") is None, STOP_TIMEOUT_S, 0.05)
        self._record_path(f"slurmd.{name}").unlink(missing_ok=True)

    def restore_node(self, name: str) -> None:
        """Start a node's slurmd again and wait until it takes jobs."""
        settings = self._check_node(name)
        self._start(next(d for d in self._daemons(settings) if d.name == f"slurmd.{name}"))
        self._await_nodes([name])

    def _check_node(self, name: str) -> Settings:
        """The settings, if they have such a node."""
        settings = self._known_settings()
        if name not in settings.node_names:
            raise PrivateSlurmError(f"No node {name!r}: there are {', '.join(settings.node_names)}.")
        return settings

    def stop_controller(self) -> None:
        """Stop slurmctld; running jobs go on, squeue and sbatch fail."""
        self._stop("slurmctld")

    def start_controller(self) -> None:
        """Start slurmctld and wait until all nodes have reported to it."""
        settings = self._known_settings()
        self._start(self._slurmctld(settings.first_port))
        live = [name for name in settings.node_names if self._live_pid(f"slurmd.{name}")]
        self._await_nodes(live)

    def stop_accounting(self) -> None:
        """Stop slurmdbd; sacct fails, and slurmctld keeps what it would have told it."""
        self._stop("slurmdbd")

    def start_accounting(self) -> None:
        """Start slurmdbd and wait until it answers."""
        self._start(self._slurmdbd(self._known_settings().first_port))


def _is_ready(state: str) -> bool:
    """True for a node that responds and takes or runs jobs ("idle", not "idle*" or "down")."""
    return state in READY_STATES


def _rotate(log: Path) -> None:
    """Put a log that has grown large aside before its daemon starts."""
    if log.exists() and log.stat().st_size > LOG_LIMIT_BYTES:
        log.replace(log.with_suffix(".log.old"))


def _new_overrides(known: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    """Recorded overrides with changes applied; an empty change takes a setting back."""
    touched = {key.lower() for key in changes}
    kept = {key: value for key, value in known.items() if key.lower() not in touched}
    return kept | {key: value for key, value in changes.items() if value}


def _users() -> list[str]:
    """Users that may submit: root, and whoever called sudo."""
    names = ["root", getpass.getuser(), os.environ.get("SUDO_USER", "")]
    known = {entry.pw_name for entry in pwd.getpwall()}
    return [name for name in dict.fromkeys(names) if name in known]


def _require_root(verb: str) -> None:
    """Raise unless we are root: daemons for several users need it, and so does apt."""
    if os.geteuid() != 0:
        command = shlex.join(["sudo", sys.executable, str(Path(__file__).resolve()), verb])
        raise CannotRunHereError(
            f"`{verb}` starts and stops daemons and needs root; you are not. Run:\n  {command}"
        )


# ---------------------------------------------------------------------------------------------------- command line


def _parser() -> argparse.ArgumentParser:
    """The command line."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--dir", type=Path, default=DEFAULT_DIR, help="where the cluster lives (default: %(default)s)"
    )
    common.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser = argparse.ArgumentParser(
        prog="private_slurm.py", description="A private multi-node Slurm on one machine."
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    up = verbs.add_parser("up", parents=[common], help="bring it up, or repair it")
    up.add_argument("--nodes", type=int, help="virtual nodes (default: as before, at first 4)")
    up.add_argument("--gpus-per-node", type=int, help="fake GPUs on each (default: as before, at first 8)")
    up.add_argument(
        "--cpus-per-node", type=int, help="CPUs that each claims (default: as before, at first 8)"
    )
    up.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a line for slurm.conf, kept for later `up`s; KEY= takes it back; may be repeated",
    )
    down = verbs.add_parser("down", parents=[common], help="cancel all jobs and stop everything")
    down.add_argument("--purge", action="store_true", help="and remove the directory with all its history")
    verbs.add_parser("status", parents=[common], help="say what runs; exit 1 if jobs could not")
    verbs.add_parser("env", parents=[common], help="print what to export")
    return parser


def _parse_set(items: Sequence[str]) -> dict[str, str | None]:
    """KEY=VALUE words as a mapping."""
    pairs = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not equals:
            raise CannotRunHereError(f"--set {item}: no '=' in it. Write --set KEY=VALUE.")
        pairs[key.strip()] = value.strip() or None
    return pairs


def _print_json(value: Mapping[str, Any]) -> None:
    print(json.dumps(value, indent=1))


def _up(cluster: Cluster, options: argparse.Namespace) -> int:
    """The verb `up`."""
    began = time.monotonic()
    changed = cluster.up(
        nodes=options.nodes,
        gpus_per_node=options.gpus_per_node,
        cpus_per_node=options.cpus_per_node,
        set_values=_parse_set(options.set),
    )
    if options.json:
        _print_json({"changed": changed, **asdict(cluster.status())})
        return 0
    took = f"{time.monotonic() - began:.1f} s"
    settings = cluster._known_settings()
    size = f"{settings.nodes} nodes x {settings.gpus_per_node} fake GPUs"
    print(
        f"Slurm is up ({size}, {took})." if changed else f"Slurm was already up ({size}); verified in {took}."
    )
    print(f"To use it:\n  export SLURM_CONF={shlex.quote(str(cluster.slurm_conf))}\n  sinfo")
    return 0


def _down(cluster: Cluster, options: argparse.Namespace) -> int:
    """The verb `down`."""
    cluster.down(purge=options.purge)
    if options.json:
        _print_json({"dir": str(cluster.layout.root), "purged": options.purge})
    else:
        print(f"Slurm is down; {cluster.layout.root} is {'removed' if options.purge else 'kept'}.")
    return 0


def _status(cluster: Cluster, options: argparse.Namespace) -> int:
    """The verb `status`."""
    status = cluster.status()
    if options.json:
        _print_json(asdict(status))
        return 0 if status.up else 1
    print(f"{'up' if status.up else 'NOT up'}: {status.dir}")
    for name, pid in status.daemons.items():
        state = status.nodes.get(name.removeprefix("slurmd."), "")
        print(f"  {name:14} {f'pid {pid}' if pid else 'not running':14} {state}".rstrip())
    for problem in status.problems:
        print(f"  problem: {problem}")
    return 0 if status.up else 1


def _env(cluster: Cluster, options: argparse.Namespace) -> int:
    """The verb `env`."""
    if options.json:
        _print_json(cluster.env())
    else:
        for name, value in cluster.env().items():
            print(f"export {name}={shlex.quote(value)}")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb. Exit 0: done. 1: it failed, or `status` found a problem. 2: bad usage, or impossible here."""
    options = _parser().parse_args(argv)
    cluster = Cluster(options.dir, say=lambda text: print(f"private-slurm: {text}", file=sys.stderr))
    verbs: Mapping[str, Callable[[Cluster, argparse.Namespace], int]] = {
        "up": _up,
        "down": _down,
        "status": _status,
        "env": _env,
    }
    try:
        return verbs[options.verb](cluster, options)
    except PrivateSlurmError as error:
        print(f"private-slurm: {error}", file=sys.stderr)
        return 2 if isinstance(error, CannotRunHereError) else 1


if __name__ == "__main__":
    sys.exit(main())
