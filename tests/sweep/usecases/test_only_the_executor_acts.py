"""Only named modules call the acting members of ports, and an observation runs on ports that have none."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import sweep
from sweep import ports

ROOT = Path(sweep.__file__).parent
READING = (
    ports.JobReports,
    ports.Accounting,
    ports.ClusterFacts,
    ports.Diagnosis,
    ports.RunProgress,
    ports.RunRecords,
    ports.Clock,
)
ACTING = (ports.Scheduler, ports.RunDirectory, ports.Ledger, ports.BlameBook)
READS_OF_ACTING = {"keeps_jobs", "read"}
"""Members of ports that act which change nothing."""
MAY_ACT = {
    "usecases/executor.py": {"append", "add", "cancel", "find", "withdraw", "drop_cancel_request", "publish_away"},
    "usecases/submit.py": {"submit", "find", "publish_submission"},
    "usecases/plan.py": {"publish_sweep_file"},
}


def members(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def acting_members() -> set[str]:
    reading = set().union(*map(members, READING))
    return set().union(*map(members, ACTING)) - reading - READS_OF_ACTING


def calls(path: Path) -> Iterator[str]:
    """Members that are called of something that a module was given: ``self._ports.run_dir.withdraw(name)``."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = ast.unparse(node.func.value)
            if any(word in owner for word in PORT_NAMES):
                yield node.func.attr


PORT_NAMES = ("scheduler", "run_dir", "ledger", "blame", "ports", "records", "view")


def test_the_acting_members_are_those_that_this_test_knows() -> None:
    assert acting_members() == {
        *("submit", "find", "cancel", "close"),
        *("publish_sweep_file", "publish_submission", "withdraw", "publish_away", "drop_cancel_request"),
        *("append", "add"),
    }


def test_only_the_executor_and_those_that_submit_act() -> None:
    found: dict[str, set[str]] = {}
    for path in sorted((ROOT / "usecases").glob("*.py")):
        acts = set(calls(path)) & acting_members()
        if acts:
            found[path.relative_to(ROOT).as_posix()] = acts
    assert found == MAY_ACT


def test_the_settlement_is_given_no_port() -> None:
    for path in (ROOT / "core" / "settlement").glob("*.py"):
        assert "sweep.ports" not in path.read_text(), path


def test_an_observation_runs_on_ports_that_have_no_acting_member() -> None:
    """By its annotations, and those of all that it hands its ports to."""
    for name in ("observe", "answers"):
        tree = ast.parse((ROOT / "usecases" / f"{name}.py").read_text())
        imported = {
            alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module == "sweep.ports"
            for alias in node.names
        }
        assert imported <= {"ClusterView", "RunRecords", "SchedulerError"}
    view = {
        kind
        for kind in READING
        for field in inspect.get_annotations(ports.ClusterView).values()
        if kind.__name__ in field
    }
    assert view == {ports.JobReports, ports.Accounting, ports.ClusterFacts, ports.Diagnosis}
    for kind in (*view, ports.RunRecords):
        assert not members(kind) & acting_members()
