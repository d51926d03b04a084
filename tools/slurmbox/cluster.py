"""The private Slurm in one directory: bring it up, repair it, break it on purpose, take it down."""

from __future__ import annotations

import getpass
import os
import pwd
import re
import secrets
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tools.slurmbox import ports
from tools.slurmbox.daemons import START_TIMEOUT_S, STOP_TIMEOUT_S, Keeper, all_daemons, database_options
from tools.slurmbox.errors import CannotRunHereError, PrivateSlurmError
from tools.slurmbox.packages import ensure_packages, missing_packages
from tools.slurmbox.process import SYSTEM_PATH, locked, tail, wait_until, write_file
from tools.slurmbox.settings import (
    CLUSTER_NAME,
    PARTITION,
    RUN_ROOT,
    Layout,
    Settings,
    changed_overrides,
    read_settings,
    render,
    write_settings,
)

SCRIPT = Path(__file__).resolve().parents[1] / "private_slurm.py"
ACCOUNT = "sweep"
TEST_JOB = "slurm-up"
SET_NOT_KEPT = "What --set asked for is not kept: `up` without it goes back to what was before."
READY_STATES = frozenset({"idle", "mixed", "allocated", "completing", "reserved", "planned"})
RESUMABLE_STATES = frozenset({"down", "drained", "draining", "fail", "failing", "error"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Status:
    """What is true now. `problems` is empty exactly when the cluster can run jobs; a daemon not running has no pid."""

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

    def __init__(self, directory: Path, say: Callable[[str], None] = _silent) -> None:
        self.layout = Layout.of(directory)
        self._say = say
        self._keeper = Keeper(self.layout, lambda argv: self.run(*argv, timeout_s=10, check=False), say)

    # What is known

    def env(self) -> dict[str, str]:
        """Variables to add to a process that is to use this cluster."""
        return {"SLURM_CONF": str(self.layout.slurm_conf)}

    def settings(self) -> Settings:
        """The settings of a cluster that has been brought up before."""
        settings = read_settings(self.layout)
        if settings is None:
            raise PrivateSlurmError(f"There is no private Slurm in {self.layout.root}. Run `up` first.")
        return settings

    def run(self, *argv: str, timeout_s: float = 60.0, check: bool = True) -> subprocess.CompletedProcess[str]:
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
                f"{self._tail('slurmctld')}\nRun `up` to repair the cluster."
            )
        return done

    def node_states(self) -> dict[str, str]:
        """State of every node in sinfo's long words ("idle", "down*"); empty if the controller is silent."""
        done = self.run("sinfo", "-h", "-N", "-o", "%N %T", timeout_s=10, check=False)
        if done.returncode != 0:
            return {}
        return {name: state for name, state in map(str.split, done.stdout.splitlines())}

    def status(self) -> Status:
        """Look at daemons, controller, accounting and nodes; change nothing."""
        settings = read_settings(self.layout)
        daemons: dict[str, int | None] = {}
        nodes: dict[str, str] = {}
        if settings is None:
            problems = [f"there is no private Slurm in {self.layout.root}"]
        elif settings.first_port is None:
            problems = ["the first `up` did not get far; run it again"]
        else:
            daemons = {d.name: self._keeper.live_pid(d.name) for d in all_daemons(settings, self.layout)}
            nodes = self.node_states() if daemons["munged"] and daemons["slurmctld"] else {}
            problems = self._problems(settings, daemons, nodes)
        return Status(
            dir=str(self.layout.root),
            slurm_conf=str(self.layout.slurm_conf),
            up=not problems,
            daemons=daemons,
            nodes=nodes,
            problems=problems,
        )

    def _problems(self, settings: Settings, daemons: Mapping[str, int | None], nodes: Mapping[str, str]) -> list[str]:
        """Why the cluster cannot be used, most basic reason first."""
        problems = [f"{name} is not running" for name, pid in daemons.items() if pid is None]
        if problems and not nodes:
            return problems  # asking those that need the dead ones would only time out
        if not nodes:
            return ["slurmctld does not answer"]
        states = {name: nodes.get(name, "unknown to slurmctld") for name in settings.node_names}
        problems += [f"{name} is {state}" for name, state in states.items() if not _is_ready(state)]
        accounting = next(d for d in all_daemons(settings, self.layout) if d.name == "slurmdbd")
        if daemons["mariadbd"] and daemons["slurmdbd"] and not self._keeper.answers(accounting):
            problems.append("slurmdbd does not answer")
        return problems

    def _tail(self, daemon: str, lines: int = 12) -> str:
        return tail(self.layout.log(daemon), lines)

    # Up

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
        asked = {"nodes": nodes, "gpus_per_node": gpus_per_node, "cpus_per_node": cpus_per_node}
        sizes = {name: value for name, value in asked.items() if value is not None}
        if self._is_up_as(self._wanted(sizes, set_values or {})):
            return False
        _require_root("up", self.layout.root)
        with locked(self.layout.lock):
            wanted = self._wanted(sizes, set_values or {})  # again: another `up` may have just ended
            if self._is_up_as(wanted):
                return False
            ensure_packages(RUN_ROOT / "apt.lock", self._say)
            try:
                self._bring_up(wanted)
            except PrivateSlurmError as error:
                if set_values:
                    raise PrivateSlurmError(f"{error}\n{SET_NOT_KEPT}") from error
                raise
        return True

    def _wanted(self, sizes: Mapping[str, int], changes: Mapping[str, str | None]) -> Settings:
        """Recorded settings (or the defaults) with what was asked for."""
        known = read_settings(self.layout) or Settings()
        return replace(known, overrides=changed_overrides(known.overrides, changes), **sizes)

    def _is_up_as(self, wanted: Settings) -> bool:
        """True if the cluster runs with exactly these settings, rendered as this version renders them."""
        if wanted != read_settings(self.layout) or wanted.first_port is None or missing_packages():
            return False
        readable = {k: v for k, v in render(wanted, self.layout).items() if k != "slurmdbd.conf"}
        if not all(self._has_file(name, text) for name, text in readable.items()) or not self.status().up:
            return False
        return os.geteuid() != 0 or self._has_accounts()  # another user may have come with sudo

    def _has_file(self, name: str, text: str) -> bool:
        """True if DIR/etc/NAME holds exactly this text."""
        path = self.layout.root / "etc" / name
        return path.exists() and path.read_text() == text

    def _bring_up(self, wanted: Settings) -> None:
        """Everything between "not up" and "a job has run", each step only where it is needed."""
        if read_settings(self.layout) is None:
            self._stop_all()  # DIR may have been removed under a running cluster
            self._claim_directory(wanted)
        self._make_directories(wanted)
        settings = self._with_ports(wanted)
        self._configure(settings)
        daemons = all_daemons(settings, self.layout)
        for daemon in daemons[:3]:
            self._keeper.start(daemon)
        self._ensure_accounts()
        for daemon in daemons[3:]:
            self._keeper.start(daemon)
        self._await_nodes(settings.node_names)
        self._run_test_job(settings)
        write_settings(self.layout, settings)

    def _claim_directory(self, settings: Settings) -> None:
        """Make DIR ours, unless something else is in it."""
        root = self.layout.root
        if root.exists() and (not root.is_dir() or any(root.iterdir())):
            raise PrivateSlurmError(
                f"--dir {root}: exists, is not empty and holds no private Slurm. Name a new or empty directory."
            )
        root.mkdir(parents=True, exist_ok=True)
        write_settings(self.layout, replace(settings, overrides={}))  # kept once they have worked

    def _make_directories(self, settings: Settings) -> None:
        """Create what the daemons expect in DIR; slurmd stops if its spool directory is missing."""
        root, base = self.layout.root, self.layout.base
        self.layout.run.mkdir(parents=True, exist_ok=True)
        for name in ("etc", "state", "log", "dev", "tmp", *(f"spool/{node}" for node in settings.node_names)):
            (root / name).mkdir(parents=True, exist_ok=True)
        if not base.is_symlink():
            base.symlink_to(root)
        for index in range(settings.gpus_per_node):
            _make_device(root / "dev" / f"gpu{index}")
        if not (root / "etc" / "munge.key").exists():
            write_file(root / "etc" / "munge.key", secrets.token_hex(512), 0o400)
        self._create_database()

    def _create_database(self) -> None:
        """Create mariadbd's data directory; a half-made one from an interrupted `up` is made again."""
        data = self.layout.root / "db"
        if (data / "complete").exists():
            return
        self._say("creating the accounting database")
        self._keeper.stop("mariadbd")
        shutil.rmtree(data, ignore_errors=True)
        argv = ["mariadb-install-db", *database_options(self.layout)]
        argv += ["--auth-root-authentication-method=socket", "--auth-root-socket-user=root", "--skip-test-db"]
        done = self.run(*argv, timeout_s=300, check=False)
        if done.returncode != 0:
            raise PrivateSlurmError(f"`{shlex.join(argv)}` failed:\n{(done.stdout + done.stderr)[-2000:]}")
        write_file(data / "complete", "")

    def _with_ports(self, settings: Settings) -> Settings:
        """Settings with ports that we hold or can have; all daemons stop if the ports must change."""
        with locked(RUN_ROOT / "ports.lock"):
            if not self._ports_usable(settings):
                self._stop_all()
                first = ports.choose_ports(self.layout.run, settings.port_count)
                settings = replace(settings, first_port=first)
            ports.put_down(self.layout.run, settings.base_port, settings.port_count)
        return settings

    def _ports_usable(self, settings: Settings) -> bool:
        """True if ports are chosen and each is free or held by our own daemon."""
        if settings.first_port is None:
            return False
        idle = (d for d in all_daemons(settings, self.layout) if not self._keeper.live_pid(d.name))
        return all(ports.port_is_free(daemon.port) for daemon in idle if daemon.port is not None)

    def _configure(self, settings: Settings) -> None:
        """Write changed configuration files; daemons that read them stop, to be started again."""
        changed = {n: t for n, t in render(settings, self.layout).items() if not self._has_file(n, t)}
        for name, text in changed.items():
            mode = 0o600 if name == "slurmdbd.conf" else 0o644  # slurmdbd insists
            write_file(self.layout.root / "etc" / name, text, mode)
        if "slurmdbd.conf" in changed:
            self._keeper.stop("slurmdbd")
        if changed.keys() - {"slurmdbd.conf"}:
            for name in [*self._keeper.recorded("slurmd."), "slurmctld"]:
                self._keeper.stop(name)

    def _ensure_accounts(self) -> None:
        """Cluster, account, users and the qualities of service low < high; some may exist already."""
        if self._has_accounts():  # asking is quick, changing is not
            return
        self._sacctmgr("add", "cluster", CLUSTER_NAME)
        self._sacctmgr("add", "account", ACCOUNT, f"Cluster={CLUSTER_NAME}")
        self._sacctmgr("add", "qos", "low", "preemptmode=requeue")
        self._sacctmgr("add", "qos", "high", "preempt=low", "priority=100")
        for user in _users():
            self._sacctmgr("add", "user", user, f"Account={ACCOUNT}", "AdminLevel=Admin")
            words = (f"defaultaccount={ACCOUNT}", "qos=normal,low,high", "defaultqos=normal")
            self._sacctmgr("modify", "user", user, "set", *words)

    def _has_accounts(self) -> bool:
        """True if the users have their account and the qualities of service exist."""
        ask = ("sacctmgr", "-n", "-P", "show")
        users = self.run(*ask, "user", "format=user,defaultaccount").stdout.splitlines()
        qos = self.run(*ask, "qos", "format=name,preempt").stdout.splitlines()
        return {f"{user}|{ACCOUNT}" for user in _users()} <= set(users) and {"low|", "high|low"} <= set(qos)

    def _sacctmgr(self, *words: str) -> None:
        """Change the accounting database; what is already so is fine."""
        done = self.run("sacctmgr", "-i", *words, check=False)
        said = (done.stdout + done.stderr).strip()
        if done.returncode != 0 and not re.search(r"already exists|Nothing (new )?(added|modified)", said):
            raise PrivateSlurmError(f"`sacctmgr {' '.join(words)}` failed: {said}\n{self._tail('slurmdbd')}")

    def _await_nodes(self, names: Sequence[str]) -> None:
        """Wait until nodes take jobs; nodes that are down or drained are resumed."""
        if wait_until(lambda: self._nudge_nodes(names), START_TIMEOUT_S, 0.25):
            return
        states = self.node_states()
        bad = [name for name in names if not _is_ready(states.get(name, "unknown"))]
        reasons = self.run("sinfo", "-h", "-R", "-o", "%n: %E", check=False).stdout.strip()
        logs = "\n".join(f"log of {name}:\n{self._tail(f'slurmd.{name}', 6)}" for name in bad[:2])
        raise PrivateSlurmError(
            f"{START_TIMEOUT_S:g} s after their start these nodes do not take jobs: "
            f"{', '.join(f'{name} ({states.get(name)})' for name in bad)}.\n{reasons}\n{logs}\n"
            "Mend what the logs complain of and run `up` again."
        )

    def _nudge_nodes(self, names: Sequence[str]) -> bool:
        """True if all nodes are ready; resumes those that wait for an administrator."""
        states = self.node_states()
        waiting = [name for name in names if not _is_ready(states.get(name, "unknown"))]
        for name in waiting:
            if states.get(name, "").rstrip("*") in RESUMABLE_STATES:
                self.run("scontrol", "update", f"nodename={name}", "state=resume", check=False)
        return not waiting

    def _run_test_job(self, settings: Settings) -> None:
        """Run a job over all nodes until accounting has seen its end; not while others' jobs are in the queue."""
        queue = [line.split() for line in self.run("squeue", "-h", "-o", "%i %j").stdout.splitlines()]
        if any(not name.startswith(TEST_JOB) for _, name in queue):
            self._say("jobs are in the queue: no test job")
            return
        for leftover, _ in queue:  # from an `up` that was interrupted
            self.run("scancel", leftover, check=False)
        self._say("running a test job")
        # A name of its own: a controller that was killed may hand out the same job ids again.
        name = f"{TEST_JOB}-{secrets.token_hex(4)}"
        options = ("--output=/dev/null", f"--job-name={name}", "--no-requeue", "--time=1", "--chdir=/")
        self.run("sbatch", *options, f"--nodes={settings.nodes}", "--wrap=srun true")
        state = ""

        def has_ended() -> bool:
            nonlocal state
            state = self._state_in_accounting(name)
            return state not in ("", "PENDING", "RUNNING", "COMPLETING")

        if not wait_until(has_ended, START_TIMEOUT_S) or state != "COMPLETED":
            raise PrivateSlurmError(
                f"The test job {name} over {settings.nodes} nodes should be COMPLETED and is {state or 'unknown'}.\n"
                f"{self._tail('slurmctld')}\nMend what the log complains of, then `down` and `up`."
            )

    def _state_in_accounting(self, job_name: str) -> str:
        """What sacct says of the job of this name; empty if it does not know it yet."""
        return self.run("sacct", "-X", "-n", "-P", f"--name={job_name}", "-o", "State").stdout.strip()

    # Down

    def down(self, *, purge: bool = False) -> None:
        """Cancel all jobs and stop every process of this cluster; with `purge` remove DIR as well."""
        _require_root("down", self.layout.root)
        root = self.layout.root
        if purge and root.exists() and any(root.iterdir()) and not self.layout.settings_file.exists():
            raise PrivateSlurmError(f"{root} holds no private Slurm, so --purge leaves it. Remove it by hand.")
        with locked(self.layout.lock):
            self._stop_all()
            shutil.rmtree(self.layout.run, ignore_errors=True)
            if purge:
                shutil.rmtree(root, ignore_errors=True)

    def _stop_all(self) -> None:
        """Stop jobs, then daemons in the order in which nobody misses the next, then whatever is left."""
        if self._keeper.live_pid("slurmctld"):
            self.run("scancel", f"--partition={PARTITION}", timeout_s=10, check=False)
        for name in self._keeper.recorded("slurmd."):
            self._keeper.kill_node(name.removeprefix("slurmd."))
        for name in ("slurmctld", "slurmdbd", "mariadbd", "munged"):
            self._keeper.stop(name)
        if not wait_until(lambda: not self._keeper.kill_leftovers(), STOP_TIMEOUT_S, 0.1):
            raise PrivateSlurmError(
                f"Processes {self._keeper.kill_leftovers()} of the private Slurm outlive SIGKILL for "
                f"{STOP_TIMEOUT_S:g} s: they hang in the kernel. See `ps`; try again, or reboot."
            )

    # Accidents, for tests

    def fail_node(self, name: str, *, is_noticed: bool = True) -> None:
        """What a power cut does to a node: slurmd and all its jobs' processes die; once noticed, it is marked down."""
        self._check_node(name)
        self._keeper.kill_node(name)
        if is_noticed:
            self.run("scontrol", "update", f"nodename={name}", "state=down", "reason=fail_node")

    def restore_node(self, name: str) -> None:
        """Start a node's slurmd again and wait until it takes jobs."""
        self._check_node(name)
        self._start(f"slurmd.{name}")
        self._await_nodes([name])

    def stop_controller(self) -> None:
        """Stop slurmctld; running jobs go on, squeue and sbatch fail."""
        self._keeper.stop("slurmctld")

    def start_controller(self) -> None:
        """Start slurmctld and wait until all nodes that run have reported to it."""
        self._start("slurmctld")
        names = self.settings().node_names
        self._await_nodes([name for name in names if self._keeper.live_pid(f"slurmd.{name}")])

    def stop_accounting(self) -> None:
        """Stop slurmdbd; sacct fails, and slurmctld keeps what it would have told it."""
        self._keeper.stop("slurmdbd")

    def start_accounting(self) -> None:
        """Start slurmdbd and wait until it answers."""
        self._start("slurmdbd")

    def _start(self, name: str) -> None:
        """Start one daemon of a configured cluster."""
        self._keeper.start(next(d for d in all_daemons(self.settings(), self.layout) if d.name == name))

    def _check_node(self, name: str) -> None:
        """Raise if there is no such node."""
        if name not in (names := self.settings().node_names):
            raise PrivateSlurmError(f"There is no node {name!r}; there are {', '.join(names)}.")


def _is_ready(state: str) -> bool:
    """True for a node that responds and takes or runs jobs ("idle", not "idle*" or "down")."""
    return state in READY_STATES


def _make_device(path: Path) -> None:
    """A character device that stands for a GPU: Slurm only looks at it, nothing opens it."""
    if path.exists() and stat.S_ISCHR(path.stat().st_mode):
        return
    path.unlink(missing_ok=True)
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError:  # a container without CAP_MKNOD; Slurm follows the link
        path.symlink_to("/dev/null")


def _users() -> list[str]:
    """Users that may submit: root, and whoever called sudo."""
    names = ["root", getpass.getuser(), os.environ.get("SUDO_USER", "")]
    known = {entry.pw_name for entry in pwd.getpwall()}
    return [name for name in dict.fromkeys(names) if name in known]


def _require_root(verb: str, root: Path) -> None:
    """Raise unless we are root: slurmd runs jobs as their users, and apt installs."""
    if os.geteuid() != 0:
        command = ["sudo", sys.executable, str(SCRIPT), verb, "--dir", str(root)]
        raise CannotRunHereError(
            f"`{verb}` starts and stops daemons as root, and user {os.geteuid()} is not. Run:\n  {shlex.join(command)}"
        )
