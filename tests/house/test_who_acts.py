"""Only the executor acts on jobs in flight, only the submitter submits, and status runs on ports that cannot act."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
USECASES = ROOT / "sweep" / "usecases"
ACTS = {
    "scheduler": {"submit", "cancel", "close"},
    "run_dir": {
        "publish_sweep_file",
        "publish_submission",
        "publish_away",
        "withdraw",
        "drop_cancel_request",
    },
    "ledger": {"append"},
    "blame": {"add"},
}
"""Methods of ports that change the world, by the name that holds the port."""
ACTORS = {
    "executor.py": {"cancel", "withdraw", "drop_cancel_request", "append", "add"},
    "submit.py": {"submit", "publish_submission"},
    "contact.py": {"publish_away"},
    "plan.py": {"publish_sweep_file"},
}
"""Who may call which: what acts on jobs in flight is the executor's."""
READ_ONLY = ("JobReports", "Accounting", "ClusterFacts", "Diagnosis", "ClusterView", "RunProgress", "RunRecords")
"""The ports of ``status``."""


def test_only_the_executor_acts_on_jobs_in_flight_and_only_the_submitter_submits() -> None:
    found: dict[str, set[str]] = defaultdict(set)
    for path in USECASES.glob("*.py"):  # doctor's own probe job is no attempt
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                port = _last_name(node.func.value).lstrip("_")
                if node.func.attr in ACTS.get(port, ()):
                    found[path.name].add(node.func.attr)
    assert dict(found) == ACTORS


def test_settlement_calls_no_port() -> None:
    for path in (ROOT / "sweep" / "core" / "settlement").glob("*.py"):
        imported = [
            node.module or "" for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)
        ]
        assert not [name for name in imported if name.startswith("sweep.") and not name.startswith("sweep.core")], path


def test_status_runs_on_ports_that_cannot_act() -> None:
    ports = ast.parse((ROOT / "sweep" / "ports.py").read_text())
    classes = {node.name: node for node in ports.body if isinstance(node, ast.ClassDef)}
    acting = set().union(*ACTS.values())
    for name in READ_ONLY:
        methods = {node.name for node in classes[name].body if isinstance(node, ast.FunctionDef)}
        bases = {base.id for base in classes[name].bases if isinstance(base, ast.Name)}
        assert not methods & acting, name
        assert bases <= {"Protocol", *READ_ONLY}, name
    acting_ports = {"Scheduler", "RunDirectory", "Ledger", "BlameBook"}
    assert acting_ports <= classes.keys()
    for module in ("status.py", "observe.py", "answers.py"):
        names = {node.id for node in ast.walk(ast.parse((USECASES / module).read_text())) if isinstance(node, ast.Name)}
        assert not names & acting_ports, module


def _last_name(node: ast.expr) -> str:
    """The last name of ``self._ports.scheduler``: ``scheduler``."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
