"""Brings the private Slurm of one directory up, repairs it, breaks it on purpose, and takes it down."""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tools.slurmbox import ports
from tools.slurmbox.accounts import Accounts
from tools.slurmbox.daemons import START_TIMEOUT_S, STOP_TIMEOUT_S, Keeper, all_daemons
from tools.slurmbox.directory import claim_directory, create_database, has_database, make_directories
from tools.slurmbox.errors import CannotRunHereError, PrivateSlurmError
from tools.slurmbox.packages import ensure_packages, missing_packages
from tools.slurmbox.process import SYSTEM_PATH, locked, tail, wait_until, write_file
from tools.slurmbox.settings import (
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
TEST_JOB = "slurm-up"
SET_NOT_KEPT = "The settings of --set are not kept: `up` without --set uses those from before."
READY_STATES = frozenset({"idle", "mixed", "allocated", "completing", "reserved", "planned"})
RESUMABLE_STATES = frozenset({"down", "drained", "draining", "fail", "failing", "error"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Status:
    """The state now. `problems` is empty exactly when the cluster can run jobs; the pid of a dead daemon is None."""

    dir: str
    slurm_conf: str
    up: bool
    daemons: dict[str, int | None]
    nodes: dict[str, str]
    problems: list[str]


def _silent(_: str) -> None:
    """Report nothing."""


class Cluster:
    """The private Slurm in one directory. Creating the object touches nothing."""

    def __init__(self, directory: Path, say: Callable[[str], None] = _silent) -> None:
        self.layout = Layout.of(directory)
        self._say = say
        self._accounts = Accounts(self.layout, self.run)
        self._keeper = Keeper(self.layout, lambda argv: self.run(*argv, timeout_s=10, check=False), say)

    # Reading

    def env(self) -> dict[str, str]:
        """Variables to add to the environment of a process that uses this cluster."""
        return {"SLURM_CONF": str(self.layout.slurm_conf)}

    def settings(self) -> Settings:
        """The settings of the last `up`.

        Raises:
            PrivateSlurmError: If there was none.
        """
        settings = read_settings(self.layout)
        if settings is None:
            raise PrivateSlurmError(f"There is no private Slurm in {self.layout.root}. Run `up` first.")
        return settings

    def run(self, *argv: str, timeout_s: float = 60.0, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run one of Slurm's commands on this cluster, without the caller's SLURM_* variables."""
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
        """State of every node as sinfo prints it ("idle", "down*"); empty if the controller does not answer."""
        done = self.run("sinfo", "-h", "-N", "-o", "%N %T", timeout_s=10, check=False)
        if done.returncode != 0:
            return {}
        return {name: state for name, state in map(str.split, done.stdout.splitlines())}

    def status(self) -> Status:
        """Check daemons, controller, accounting and nodes, and change nothing."""
        settings = read_settings(self.layout)
        daemons: dict[str, int | None] = {}
        nodes: dict[str, str] = {}
        if settings is None:
            problems = [f"there is no private Slurm in {self.layout.root}"]
        elif settings.first_port is None:
            problems = ["the first `up` did not complete; run it again"]
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
        """The reasons why the cluster cannot be used, the most basic one first."""
        problems = [f"{name} is not running" for name, pid in daemons.items() if pid is None]
        if problems and not nodes:
            return problems  # daemons that need the dead ones would only time out
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
        """Bring the cluster up, or repair it; returns True if there was anything to do.

        A size of None stays as it was recorded, or takes its default the first time. `set_values` adds lines to
        slurm.conf; a value of None or "" removes an earlier line.
        """
        asked = {"nodes": nodes, "gpus_per_node": gpus_per_node, "cpus_per_node": cpus_per_node}
        sizes = {name: value for name, value in asked.items() if value is not None}
        if self._is_up_as(self._wanted(sizes, set_values or {})):
            return False
        _require_root("up", self.layout.root)
        with locked(self.layout.lock):
            wanted = self._wanted(sizes, set_values or {})  # read again: another `up` may just have ended
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
        """The recorded settings (or the defaults) with the requested changes."""
        known = read_settings(self.layout) or Settings()
        return replace(known, overrides=changed_overrides(known.overrides, changes), **sizes)

    def _is_up_as(self, wanted: Settings) -> bool:
        """True if the cluster runs with exactly these settings, as this version renders them."""
        if wanted != read_settings(self.layout) or wanted.first_port is None or missing_packages():
            return False
        readable = {k: v for k, v in render(wanted, self.layout).items() if k != "slurmdbd.conf"}
        if not all(self._has_file(name, text) for name, text in readable.items()) or not self.status().up:
            return False
        return os.geteuid() != 0 or self._accounts.exist()  # another user may have come with sudo

    def _has_file(self, name: str, text: str) -> bool:
        """True if DIR/etc/NAME holds exactly this text."""
        path = self.layout.root / "etc" / name
        return path.exists() and path.read_text() == text

    def _bring_up(self, wanted: Settings) -> None:
        """Take each step from "not up" to "a job has run" that is needed."""
        if read_settings(self.layout) is None:
            self._stop_all()  # somebody may have removed DIR under a running cluster
            claim_directory(self.layout, wanted)
        make_directories(self.layout, wanted)
        if not has_database(self.layout):
            self._say("creating the accounting database")
            self._keeper.stop("mariadbd")
            create_database(self.layout, self.run)
        settings = self._with_ports(wanted)
        self._configure(settings)
        daemons = all_daemons(settings, self.layout)
        for daemon in daemons[:3]:
            self._keeper.start(daemon)
        self._accounts.ensure()
        for daemon in daemons[3:]:
            self._keeper.start(daemon)
        self._await_nodes(settings.node_names)
        self._run_test_job(settings)
        write_settings(self.layout, settings)

    def _with_ports(self, settings: Settings) -> Settings:
        """The settings with ports that this cluster has or can get; all daemons stop if the ports must change."""
        with locked(RUN_ROOT / "ports.lock"):
            if not self._ports_usable(settings):
                self._stop_all()
                first = ports.choose_ports(self.layout.run, settings.port_count)
                settings = replace(settings, first_port=first)
            ports.reserve(self.layout.run, settings.base_port, settings.port_count)
        return settings

    def _ports_usable(self, settings: Settings) -> bool:
        """True if ports are chosen and each is free or used by this cluster's own daemon."""
        if settings.first_port is None:
            return False
        idle = (d for d in all_daemons(settings, self.layout) if not self._keeper.live_pid(d.name))
        return all(ports.port_is_free(daemon.port) for daemon in idle if daemon.port is not None)

    def _configure(self, settings: Settings) -> None:
        """Write changed configuration files, and stop the daemons that read them, to be started again."""
        changed = {n: t for n, t in render(settings, self.layout).items() if not self._has_file(n, t)}
        for name, text in changed.items():
            mode = 0o600 if name == "slurmdbd.conf" else 0o644  # slurmdbd requires it
            write_file(self.layout.root / "etc" / name, text, mode)
        if "slurmdbd.conf" in changed:
            self._keeper.stop("slurmdbd")
        if changed.keys() - {"slurmdbd.conf"}:
            for name in [*self._keeper.recorded("slurmd."), "slurmctld"]:
                self._keeper.stop(name)

    def _await_nodes(self, names: Sequence[str]) -> None:
        """Wait until nodes accept jobs; resume those that are down or drained."""
        if wait_until(lambda: self._nudge_nodes(names), START_TIMEOUT_S, 0.25):
            return
        states = self.node_states()
        bad = [name for name in names if not _is_ready(states.get(name, "unknown"))]
        reasons = self.run("sinfo", "-h", "-R", "-o", "%n: %E", check=False).stdout.strip()
        logs = "\n".join(f"log of {name}:\n{self._tail(f'slurmd.{name}', 6)}" for name in bad[:2])
        raise PrivateSlurmError(
            f"{START_TIMEOUT_S:g} s after their start these nodes do not accept jobs: "
            f"{', '.join(f'{name} ({states.get(name)})' for name in bad)}.\n{reasons}\n{logs}\n"
            "Correct what the logs report and run `up` again."
        )

    def _nudge_nodes(self, names: Sequence[str]) -> bool:
        """Resume nodes that wait for an administrator; True if all nodes are ready."""
        states = self.node_states()
        waiting = [name for name in names if not _is_ready(states.get(name, "unknown"))]
        for name in waiting:
            if states.get(name, "").rstrip("*") in RESUMABLE_STATES:
                self.run("scontrol", "update", f"nodename={name}", "state=resume", check=False)
        return not waiting

    def _run_test_job(self, settings: Settings) -> None:
        """Run a job on all nodes until accounting has its end; skipped while other jobs are in the queue."""
        queue = [line.split() for line in self.run("squeue", "-h", "-o", "%i %j").stdout.splitlines()]
        if any(not name.startswith(TEST_JOB) for _, name in queue):
            self._say("jobs are in the queue: no test job")
            return
        for leftover, _ in queue:  # from an `up` that was interrupted
            self.run("scancel", leftover, check=False)
        self._say("running a test job")
        # A unique name: a controller that was killed may give out the same job ids again.
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
                f"{self._tail('slurmctld')}\nCorrect what the log reports, then `down` and `up`."
            )

    def _state_in_accounting(self, job_name: str) -> str:
        """The state of the job of this name in accounting; empty if accounting does not know the job yet."""
        return self.run("sacct", "-X", "-n", "-P", f"--name={job_name}", "-o", "State").stdout.strip()

    # Down

    def down(self, *, purge: bool = False) -> None:
        """Cancel all jobs and stop every process of this cluster; `purge` removes DIR as well."""
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
        """Stop the jobs, then each daemon before those that it needs, then every process that is left."""
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

    # Faults, for tests

    def fail_node(self, name: str, *, is_noticed: bool = True) -> None:
        """Do to a node what a power cut does: kill slurmd and all job processes; once noticed, the node is down."""
        self._check_node(name)
        self._keeper.kill_node(name)
        if is_noticed:
            self.run("scontrol", "update", f"nodename={name}", "state=down", "reason=fail_node")

    def restore_node(self, name: str) -> None:
        """Start a node's slurmd again and wait until the node accepts jobs."""
        self._check_node(name)
        self._start(f"slurmd.{name}")
        self._await_nodes([name])

    def stop_controller(self) -> None:
        """Stop slurmctld; running jobs go on, squeue and sbatch fail."""
        self._keeper.stop("slurmctld")

    def start_controller(self) -> None:
        """Start slurmctld and wait until all running nodes have reported to it."""
        self._start("slurmctld")
        names = self.settings().node_names
        self._await_nodes([name for name in names if self._keeper.live_pid(f"slurmd.{name}")])

    def stop_accounting(self) -> None:
        """Stop slurmdbd: sacct fails, and slurmctld keeps its records for later."""
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
    """True for a node that responds and accepts or runs jobs ("idle", not "idle*" or "down")."""
    return state in READY_STATES


def _require_root(verb: str, root: Path) -> None:
    """Raise unless root runs this process: slurmd runs jobs as their users, and apt installs packages."""
    if os.geteuid() != 0:
        command = ["sudo", sys.executable, str(SCRIPT), verb, "--dir", str(root)]
        raise CannotRunHereError(
            f"`{verb}` starts and stops daemons as root, and user {os.geteuid()} is not. Run:\n  {shlex.join(command)}"
        )
