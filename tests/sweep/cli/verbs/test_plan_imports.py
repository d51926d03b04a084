"""What ``plan`` imports, counted: the time that it takes is measured by ``benchmarks/plan_imports.py``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import contextlib, io, json, sys
from sweep.cli.main import main
with contextlib.redirect_stdout(io.StringIO()):
    assert main(["plan", "+grid=weak_scaling", "cluster=local"]) == 0
print(json.dumps({name: getattr(module, "__file__", None) for name, module in sys.modules.items()}))
"""
MOST_MODULES = 81
MOST_LINES = 8450
"""Of our own modules. Python compiles about a hundred lines in a millisecond where their bytecode is not cached."""


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    """Names and files of all modules that one plan has imported at its end."""
    folder = tmp_path_factory.mktemp("plan")
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=folder, capture_output=True, text=True, check=True)
    found: dict[str, str | None] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    "package",
    [
        "sweep.usecases.orchestrate",
        "sweep.usecases.reconcile",
        "sweep.usecases.session",
        "sweep.usecases.submit",
        "sweep.adapters.slurm",
        "sweep.adapters.local",
        "sweep.adapters.doctor",
        "sweep.adapters.files.run_directory",
        "sweep.launch",
        "trainer",
        "analysis",
        "submitit",
        "tenacity",
        "psutil",
        "msgspec",
        "rich",
        "torch",
        "numpy",
        "pandas",
        "scipy",
        "matplotlib",
        "asyncio",
        "multiprocessing",
    ],
)
def test_plan_does_not_import(imported: dict[str, str | None], package: str) -> None:
    assert [name for name in imported if f"{name}.".startswith(f"{package}.")] == []


def test_plan_imports_few_of_our_modules_and_lines(imported: dict[str, str | None]) -> None:
    ours = {name: file for name, file in imported.items() if name.partition(".")[0] == "sweep" and file}
    lines = {name: len(Path(file).read_text().splitlines()) for name, file in ours.items()}
    longest = sorted(lines.items(), key=lambda item: -item[1])[:10]
    assert len(lines) <= MOST_MODULES, sorted(lines)
    assert sum(lines.values()) <= MOST_LINES, longest
