"""Runs the command line in tests: as a real process, in a folder of its own, on clusters that run the stub trainer."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from sweep.core.records.layout import LEDGER_FILE

STUB = Path(__file__).parent / "stubs" / "stub_trainer.py"


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A command that has ended."""

    code: int
    out: str
    err: str


@dataclass(frozen=True, kw_only=True)
class Shell:
    """Runs ``python -m sweep`` in a folder of its own.

    Attributes:
        folder: Working directory; runs/ is made below it.
        env: Environment.
        config_dir: A folder of clusters for ``--config-dir``.
    """

    folder: Path
    env: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    config_dir: Path | None = None

    @property
    def environment(self) -> dict[str, str]:
        """The environment, with the user's state (blame of nodes) kept below the test's own folder."""
        return {**self.env, "XDG_STATE_HOME": str(self.folder / "state")}

    def command(self, *arguments: str) -> list[str]:
        flags = [] if self.config_dir is None else ["--config-dir", str(self.config_dir)]
        verb, rest = ([arguments[0]], arguments[1:]) if arguments and arguments[0].isalpha() else ([], arguments)
        return [sys.executable, "-m", "sweep", *verb, *flags, *rest]

    def run(self, *arguments: str, timeout_s: float = 240) -> Ended:
        done = subprocess.run(
            self.command(*arguments), cwd=self.folder, env=self.environment, capture_output=True, text=True,
            check=False, timeout=timeout_s, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        return Ended(code=done.returncode, out=done.stdout, err=done.stderr)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(*arguments), cwd=self.folder, env=self.environment, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def status(self, run_dir: Path) -> dict[str, object]:
        done = self.run("status", "--json", f"run_dir={run_dir}")
        assert done.code == 0, done.err
        found: dict[str, object] = json.loads(done.out)
        return found


def stub_cluster(
    folder: Path,
    name: str,
    *,
    base: str,
    mode: str = "ok",
    seconds: float = 0,
    environment: Mapping[str, str] | None = None,
    **changes: object,
) -> str:
    """Write a cluster file that runs the stub trainer instead of torchrun; returns its name."""
    (folder / "cluster").mkdir(parents=True, exist_ok=True)
    body = {
        "description": "the stub trainer, for tests",
        "name": name,
        "scheduler": base,
        "scale": "laptop",
        "gpus_per_node": 1,
        "device": "cpu",
        "walltime_min": 5,
        "poll_interval_s": 0.3,
        "result_grace_s": 3.0,
        "lost_after_s": 20.0,
        "hang_grace_s": 2.0,
        "launch": {
            "runner": "direct",
            "entry": [str(STUB)],
            "environment": {"STUB_MODE": mode, "STUB_SECONDS": str(seconds), **(environment or {})},
            "rendezvous_host": "127.0.0.1",
            "stop_grace_s": 2.0,
        },
        **changes,
    }
    (folder / "cluster" / f"{name}.yaml").write_text(json.dumps(body))  # JSON is YAML
    return name


def rows(run_dir: Path, grid: str = "weak_scaling") -> list[dict[str, str]]:
    """The table of a run, row by row."""
    with (run_dir / "tables" / f"{grid}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def events(run_dir: Path, kind: str) -> list[dict[str, object]]:
    """Ledger events of one kind; an incomplete last line does not count."""
    text = (run_dir / LEDGER_FILE).read_text() if (run_dir / LEDGER_FILE).exists() else ""
    lines = text[: text.rfind("\n") + 1].splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def is_alive(pid: int) -> bool:
    """True if a process runs; a zombie does not."""
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False


def wait_for(check: Callable[[], bool], seconds: float, name: str) -> None:
    """Wait until a check is true; fail after so many seconds."""
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, f"not within {seconds} s: {name}"
        time.sleep(0.1)


def processes_of(run_dir: Path) -> list[str]:
    """Command lines of living processes that work for a run directory."""
    found = []
    for process in psutil.process_iter(["cmdline", "status", "pid"]):
        arguments = process.info["cmdline"] or []
        is_ours = any(str(run_dir) in word for word in arguments) and process.info["pid"] != os.getpid()
        if is_ours and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(" ".join(arguments))
    return found
