"""An axis is declared once: one line in a copy of the sources, and every part of the tool knows the axis."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.commands import STUB, Ended, Shell, rows, stub_cluster

ROOT = Path(__file__).parents[2]
ADR = ROOT / "docs" / "adr" / "0019-an-axis-is-declared-once.md"
TINY = ["model=debug_1m", "seq_len=64", "trainer.steps=6", "trainer.warmup_steps=2"]

pytestmark = pytest.mark.slow


@dataclass(frozen=True, kw_only=True)
class Added:
    """One line that declares an axis.

    Attributes:
        file: The file that it is written into.
        before: The text that it is written before.
        line: The line.
        axis: Name of the axis.
        default: Its value where nothing names it, as JSON.
        other: Another value.
        part: Key of ``cell.json`` that holds the field; empty: the cell itself.
    """

    file: str
    before: str
    line: str
    axis: str
    default: object
    other: object
    part: str = ""


FIELD = Added(
    file="cell.py",
    before="    trainer: TrainerSettings",
    line="    fused_loss: bool = False",
    axis="fused_loss",
    default=False,
    other=True,
)
SETTING = Added(
    file="trainer_settings.py",
    before="    def __post_init__",
    line="    label_smoothing: float = field(default=0.0, metadata=axis(check=BELOW_ONE))",
    axis="trainer.label_smoothing",
    default=0.0,
    other=0.25,
    part="trainer",
)
DEGREE = Added(
    file="parallelism.py",
    before="    schedule: Schedule | None",
    line="    ep: int = field(default=1, metadata=axis(is_degree=True))",
    axis="ep",
    default=1,
    other=2,
    part="parallelism",
)


def copy_with(added: Added, folder: Path) -> Path:
    """A copy of the shipped code in which that line, and nothing else, is new."""
    copy = folder / "copy"
    for name in ("sweep", "trainer", "analysis", "conf"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    path = copy / "sweep" / "core" / "cells" / added.file
    text = path.read_text()
    assert text.count(added.before) == 1
    path.write_text(text.replace(added.before, f"{added.line}\n{added.before}"))
    return copy


def shell_of(code: Path, folder: Path) -> Shell:
    """Runs the command line of that code, and the stub trainer with it."""
    folder.mkdir()
    stub_cluster(folder / "conf", "stub", base="local")
    environment = {**os.environ, "PYTHONPATH": f"{code}", "PYTHONSAFEPATH": "1", "COLUMNS": "300"}
    return Shell(folder=folder, env=environment, config_dir=folder / "conf")


def plan(shell: Shell, *arguments: str) -> Ended:
    return shell.run("plan", "+grid=weak_scaling", "cluster=stub", "nodes=2", *TINY, *arguments)


def ids_of(done: Ended) -> list[str]:
    assert done.code == 0, done.err
    return [cell["cell"] for cell in json.loads(done.out)["cells"]]


@pytest.mark.parametrize("added", [FIELD, SETTING, DEGREE], ids=lambda added: added.axis)
def test_one_line_puts_an_axis_into_plan_cell_json_the_id_conditions_and_the_table(
    added: Added, tmp_path: Path
) -> None:
    assert STUB.is_file()
    shell = shell_of(copy_with(added, tmp_path), tmp_path / "new")
    both = f"{added.axis}=[{json.dumps(added.default)},{json.dumps(added.other)}]"
    done = plan(shell, "--json", both)
    cells = {str(cell["axes"][added.axis]): cell["cell"] for cell in json.loads(done.out)["cells"]}
    assert list(cells) == [str(added.default), str(added.other)], done.err
    known = ids_of(plan(shell_of(ROOT, tmp_path / "old"), "--json"))
    assert known == [cells[str(added.default)]], "the id of a cell that leaves the axis at its default stays"
    assert cells[str(added.other)] not in known

    assert added.axis in plan(shell, both).out.splitlines()[0], "plan shows it to people"
    left_out = plan(shell, "--json", both, f"exclude=['{added.axis} == {added.other}']")
    assert ids_of(left_out) == known
    refused = plan(shell, f"{added.axis}=many")
    assert refused.code == 2
    assert f"{added.axis}='many' is not" in refused.err

    done = shell.run("+grid=weak_scaling", "cluster=stub", "nodes=2", *TINY, both)
    assert done.code == 0, done.err
    run_dir = shell.folder / "runs" / "weak_scaling-stub"
    for value, cell_id in cells.items():
        (path,) = run_dir.glob(f"cells/{cell_id}/repeat-01/attempt-01/cell.json")
        cell = json.loads(path.read_text())["cell"]
        assert str((cell[added.part] if added.part else cell)[added.axis.rpartition(".")[2]]) == value
    table = rows(run_dir)
    assert list(table[0])[:2] == [added.axis, "series"], "a varied axis has the first column"
    assert {row["cell"]: row[added.axis].lower() for row in table} == {
        cell_id: value.lower() for value, cell_id in cells.items()
    }


def test_a_new_degree_is_a_factor_of_the_gpus_and_the_trainer_refuses_it_until_its_mesh_has_it(tmp_path: Path) -> None:
    copy = copy_with(DEGREE, tmp_path)
    shell = shell_of(copy, tmp_path / "new")
    done = plan(shell, "--json", "ep=[1,2,4]")
    found = json.loads(done.out)
    assert [(cell["ep"], cell["dp_shard"]) for cell in found["cells"]] == [(1, 2), (2, 1)]
    (rejection,) = found["rejections"]
    assert rejection["reason"].startswith("dp_shard=auto: 2 GPUs cannot be divided by ep=4")
    code = (
        "from sweep.core.cells.parallelism import Parallelism; from trainer.parallel.mesh import sizes; "
        "sizes(Parallelism(ep=2), Parallelism(ep=2).world_size)"
    )
    done_there = subprocess.run(
        [sys.executable, "-c", code], env=dict(shell.env), cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "= 1 ranks; there are 2" in done_there.stderr


def test_a_mesh_dimension_touches_at_most_five_files_and_the_page_names_them() -> None:
    section = ADR.read_text().split("## A mesh dimension")[1].split("\n## ")[0]
    files = re.findall(r"^\d\. `([^`]+)`", section, re.M)
    assert 1 <= len(files) <= 5
    assert not [name for name in files if "NAME" not in name and not (ROOT / name).is_file()]
    # Each of them names a dimension that is there.
    present = [ROOT / name.replace("NAME", "context_parallel") for name in files]
    assert not [path for path in present if not re.search(r"\bcp\b", path.read_text())]
