"""Defines the daemons of a private Slurm, and starts, finds and stops them."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from tools.slurmbox.errors import PrivateSlurmError
from tools.slurmbox.process import (
    SYSTEM_PATH,
    ProcessRecord,
    environ,
    kill,
    link,
    pids,
    tail,
    wait_until,
    with_descendants,
    write_file,
)
from tools.slurmbox.settings import Layout, Settings

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 15.0
LOG_LIMIT_BYTES = 20_000_000
MARK = "PRIVATE_SLURM"

# Starts a program as a child of init in a session of its own, and prints its pid.
DETACH = 'out=$1; shift; umask 022; setsid "$@" </dev/null >"$out" 2>&1 & echo $!'


@dataclass(frozen=True, kw_only=True, slots=True)
class Daemon:
    """One daemon: its command, its port, and a command that succeeds when it answers (None: there is none)."""

    name: str
    argv: tuple[str, ...]
    port: int | None = None
    probe: tuple[str, ...] | None = None


def all_daemons(settings: Settings, layout: Layout) -> list[Daemon]:
    """Every daemon, in the order in which they must start; accounting needs the first three."""
    nodes = [_slurmd(layout, name, settings.base_port + 2 + at) for at, name in enumerate(settings.node_names)]
    return [_munged(layout), _mariadbd(layout), _slurmdbd(settings), _slurmctld(settings, layout), *nodes]


def _munged(layout: Layout) -> Daemon:
    """munged, as root; with --force, because it rejects a key below a directory that a developer owns."""
    argv = ["munged", "--foreground", "--force", "--num-threads=2"]
    argv += [f"--socket={layout.munge_socket}", f"--key-file={layout.base}/etc/munge.key"]
    argv += [f"--pid-file={layout.run}/munged.pid", f"--seed-file={layout.run}/munged.seed"]
    return Daemon(name="munged", argv=tuple(argv), probe=("munge", "-n", f"--socket={layout.munge_socket}"))


def database_options(layout: Layout) -> list[str]:
    """The options of every start of mariadbd, including the one that creates the database.

    mariadbd removes all temporary tables in its tmpdir when it starts; in /tmp these may be another server's.
    """
    return ["--no-defaults", "--user=root", f"--datadir={layout.base}/db", f"--tmpdir={layout.base}/tmp"]


def _mariadbd(layout: Layout) -> Daemon:
    """mariadbd, as root and without a TCP port: only root can log in, by its Unix identity."""
    argv = ["mariadbd", *database_options(layout), "--skip-networking"]
    argv += [f"--socket={layout.mysql_socket}", f"--pid-file={layout.run}/mariadbd.pid"]
    argv += ["--innodb-buffer-pool-size=64M", "--innodb-lock-wait-timeout=900"]
    argv += ["--innodb-flush-log-at-trx-commit=2", "--performance-schema=OFF"]
    ping = ("mariadb-admin", "--no-defaults", f"--socket={layout.mysql_socket}", "--user=root", "ping")
    return Daemon(name="mariadbd", argv=tuple(argv), probe=ping)


def _slurmdbd(settings: Settings) -> Daemon:
    """The accounting daemon; it reads its configuration from the folder of SLURM_CONF."""
    ask = ("sacctmgr", "-n", "-P", "show", "cluster", "format=cluster")
    return Daemon(name="slurmdbd", argv=("slurmdbd", "-D"), port=settings.base_port + 1, probe=ask)


def _slurmctld(settings: Settings, layout: Layout) -> Daemon:
    """The controller; `scontrol ping` exits 1 while it is down."""
    argv = ("slurmctld", "-D", "-f", f"{layout.base}/etc/slurm.conf")
    return Daemon(name="slurmctld", argv=argv, port=settings.base_port, probe=("scontrol", "ping"))


def _slurmd(layout: Layout, node: str, port: int) -> Daemon:
    """One node's slurmd; the node's state shows that it answers, for all nodes by one call."""
    argv = ("slurmd", "-D", "-N", node, "-f", f"{layout.base}/etc/slurm.conf")
    return Daemon(name=f"slurmd.{node}", argv=argv, port=port)


class Keeper:
    """Starts, finds and stops the processes of one cluster, and no others.

    A record (pid, start time, boot) identifies a daemon. The working directory identifies a process that a daemon
    started: each daemon gets a directory of its own, and slurmstepd inherits it. A mark in the environment is not
    enough, because slurmstepd overwrites the beginning of its environment with its title. Jobs are found by the
    variables that slurmstepd puts into their environment.
    """

    def __init__(
        self,
        layout: Layout,
        run: Callable[[tuple[str, ...]], subprocess.CompletedProcess[str]],
        say: Callable[[str], None],
    ) -> None:
        self._layout = layout
        self._run = run
        self._say = say

    def _record_path(self, name: str) -> Path:
        return self._layout.run / f"{name}.proc"

    def _record(self, name: str) -> ProcessRecord | None:
        """The process last started as daemon `name`."""
        try:
            return ProcessRecord(**json.loads(self._record_path(name).read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def recorded(self, prefix: str = "") -> list[str]:
        """Names of daemons that were started and not stopped, running or not."""
        return sorted(path.stem for path in self._layout.run.glob(f"{prefix}*.proc"))

    def live_pid(self, name: str) -> int | None:
        """Pid of daemon `name` if it runs."""
        record = self._record(name)
        return record.pid if record and record.alive() else None

    def answers(self, daemon: Daemon) -> bool:
        """True if the daemon's probe succeeds now."""
        return daemon.probe is None or self._run(daemon.probe).returncode == 0

    def start(self, daemon: Daemon) -> None:
        """Make sure that a daemon runs and answers; restart one that runs and does not answer."""
        if self.live_pid(daemon.name) is not None:
            if wait_until(lambda: self.answers(daemon), 5.0):
                return
            self.stop(daemon.name)
        self._say(f"starting {daemon.name}")
        self._launch(daemon)
        if not wait_until(lambda: not self.live_pid(daemon.name) or self.answers(daemon), START_TIMEOUT_S):
            raise self._error(daemon, f"does not answer after {START_TIMEOUT_S:g} s")
        if self.live_pid(daemon.name) is None:
            raise self._error(daemon, "ended immediately")

    def _launch(self, daemon: Daemon) -> None:
        """Start a daemon, detached from this process, and record its process."""
        environment = {
            "PATH": SYSTEM_PATH,
            "HOME": "/root",
            "LC_ALL": "C",
            "SLURM_CONF": f"{self._layout.base}/etc/slurm.conf",
            # libmariadb's socket for "localhost"; slurmdbd.conf has no setting for it.
            "MYSQL_UNIX_PORT": str(self._layout.mysql_socket),
            MARK: self._layout.run.name,
        }
        place = self._layout.run / daemon.name
        place.mkdir(exist_ok=True)
        log = self._layout.log(daemon.name)
        if log.exists() and log.stat().st_size > LOG_LIMIT_BYTES:
            log.replace(log.with_suffix(".log.old"))
        argv = ["sh", "-c", DETACH, "sh", str(log.with_suffix(".out")), *daemon.argv]
        done = subprocess.run(argv, env=environment, cwd=place, stdout=subprocess.PIPE, text=True, check=True)
        record = ProcessRecord.of(int(done.stdout))
        write_file(self._record_path(daemon.name), json.dumps(asdict(record)))

    def _error(self, daemon: Daemon, what: str) -> PrivateSlurmError:
        """The error for a daemon that did not start, with its output."""
        out = self._layout.log(daemon.name).with_suffix(".out")
        return PrivateSlurmError(
            f"{daemon.name} was started (`{shlex.join(daemon.argv)}`) and {what}. Its output ({out}):\n{tail(out)}\n"
            "Correct what it reports and run `up` again; `down --purge` and `up` start from nothing."
        )

    def stop(self, name: str) -> None:
        """Stop a daemon by SIGTERM, or by SIGKILL if it does not end."""
        record = self._record(name)
        if record is not None and record.alive():
            self._say(f"stopping {name}")
            kill(record.pid, signal.SIGTERM)
            if not wait_until(lambda: not record.alive(), STOP_TIMEOUT_S, 0.05):
                kill(record.pid)
                wait_until(lambda: not record.alive(), STOP_TIMEOUT_S, 0.05)
        self._record_path(name).unlink(missing_ok=True)

    def kill_node(self, node: str) -> None:
        """Kill a node's slurmd, slurmstepds and job processes, none of which can report its end."""
        name = f"slurmd.{node}"
        live = self.live_pid(name)
        daemons = self._daemon_pids(name) | ({live} if live else set())
        for pid in daemons:
            # Otherwise a slurmstepd could report the end of a job's process that was killed before it.
            kill(pid, signal.SIGSTOP)
        for pid in with_descendants(daemons | self._job_pids(node)):
            kill(pid)
        wait_until(lambda: self.live_pid(name) is None, STOP_TIMEOUT_S, 0.05)
        self._record_path(name).unlink(missing_ok=True)

    def kill_leftovers(self) -> list[int]:
        """Kill every process of this cluster that still runs; returns their pids."""
        found = with_descendants(self._daemon_pids() | self._job_pids())
        for pid in found:
            kill(pid)
        return sorted(found)

    def _daemon_pids(self, name: str | None = None) -> set[int]:
        """Daemons and their slurmstepds, of one daemon or of all."""
        place = f"{self._layout.run}/{name or ''}"
        found = set()
        for pid in pids():
            cwd = link(pid, "cwd")
            here = cwd == place if name else cwd.startswith(place)
            marked = name is None and environ(pid).get(MARK) == self._layout.run.name
            if marked or (here and Path(link(pid, "exe")).name.startswith("slurm")):
                found.add(pid)
        return found

    def _job_pids(self, node: str | None = None) -> set[int]:
        """Processes of this cluster's jobs, on one node or on all."""
        confs = {str(self._layout.slurm_conf), f"{self._layout.base}/etc/slurm.conf"}
        found = set()
        for pid in pids():
            environment = environ(pid)
            on_node = environment.get("SLURMD_NODENAME")
            if on_node and environment.get("SLURM_CONF") in confs and node in (None, on_node):
                found.add(pid)
        return found
