"""What docs/grids.md shows can be composed, and what it lists is complete."""

import re
import shlex
from pathlib import Path

import pytest

from sweep.config import available, load
from sweep.config.keys import ROOT_KEYS
from sweep.core.cells.axes import AXES
from sweep.core.grids.combination import DERIVED
from sweep.core.grids.conditions import Condition
from sweep.core.grids.grid import expand

DOC = (Path(__file__).parents[3] / "docs" / "grids.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"```yaml\n# (\S+\.yaml)\n(.*?)```", DOC, flags=re.DOTALL))
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", DOC, flags=re.DOTALL) for line in block.splitlines()]


@pytest.fixture
def own(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS)
def test_a_documented_command_has_cells(command):
    words = [word for word in shlex.split(command, comments=True)[3:] if word != "plan"]
    assert expand(load(words).grid).cells


@pytest.mark.parametrize("scale", ["laptop", "paper"])
@pytest.mark.parametrize("file", [name for name in FILES if name.startswith("grid/")])
def test_a_documented_grid_has_cells_at_both_scales(file, scale, own):
    assert expand(load([f"+grid={Path(file).stem}", "cluster=slurm", f"scale={scale}"], config_dir=own).grid).cells


def test_the_documented_grid_is_what_its_comments_say(own):
    grid = load(["+grid=my_grid", "cluster=slurm"], config_dir=own).grid
    assert grid.axes["nodes"] == (1, 2, 4, 8, 16)
    assert grid.zips == ({"model": ("llama2_7b", "llama2_13b"), "reshard_after_forward": (False, True)},)
    assert expand(grid).rejected_by_rule()["exclude"] == 5


def test_the_documented_model_can_be_used(own):
    assert (
        load(["+grid=weak_scaling", "cluster=local", "model=my_model"], config_dir=own).grid.models["my_model"].hidden
    )


def test_there_are_examples_of_every_kind():
    assert len(COMMANDS) >= 4
    assert {Path(name).parent.name for name in FILES} == {"grid", "model"}


@pytest.mark.parametrize("name", [*AXES, *ROOT_KEYS, *DERIVED, *available("grid")])
def test_every_axis_key_and_grid_is_documented(name):
    assert f"`{name}`" in DOC


def test_the_documented_conditions_are_conditions():
    (line,) = [line for line in DOC.splitlines() if line.endswith("Nothing else is allowed: no calls, no")]
    shown = re.findall(r"`([^`]+)`", line)
    assert len(shown) == 3
    for text in shown:
        Condition(text, {*AXES, *DERIVED})
