"""submitit's private names that the Slurm adapter depends on: each with the shape that it must have.

A failure here names what a new version of submitit changed. Mend sweep/adapters/slurm/submitit_executor.py, and only
then raise the upper bound in pyproject.toml.
"""

from __future__ import annotations

import inspect
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
import submitit
from packaging.requirements import Requirement
from submitit.core.utils import FailedSubmissionError
from submitit.slurm.slurm import SlurmExecutor, SlurmJob, _make_sbatch_string

from sweep.adapters.slurm.commands import SlurmCommands
from sweep.adapters.slurm.script import sbatch_parameters
from sweep.adapters.slurm.submitit_executor import LaunchExecutor
from sweep.core.settings.spec import GpuFlag, SlurmSpec
from tests.fakes import submission_of

OVERRIDDEN = {
    "affinity": "classmethod ()",
    "_submitit_command_str": "property",
    "_submit_command": "method (self, command)",
    "_get_job_id_from_submission_command": "staticmethod (string)",
}
CALLED = {
    "__init__": "method (self, folder, max_num_timeout, max_pickle_size_gb, python)",
    "update_parameters": "method (self, **kwargs)",
    "_make_submission_file_text": "method (self, command, uid)",
    "_make_submission_command": "method (self, submission_file_path)",
}


def shape_of(name: str) -> str:
    """How a class attribute of SlurmExecutor is defined: its kind and its parameters."""
    found = next((vars(cls)[name] for cls in SlurmExecutor.__mro__ if name in vars(cls)), None)
    if found is None:
        return "missing"
    if isinstance(found, property):
        return "property"
    kind = type(found).__name__ if isinstance(found, classmethod | staticmethod) else "method"
    signature = inspect.signature(getattr(SlurmExecutor, name))
    prefix: dict[object, str] = {inspect.Parameter.VAR_KEYWORD: "**", inspect.Parameter.VAR_POSITIONAL: "*"}
    names = [f"{prefix.get(parameter.kind, '')}{parameter.name}" for parameter in signature.parameters.values()]
    return f"{kind} ({', '.join(names)})"


@pytest.mark.parametrize(("name", "shape"), [*OVERRIDDEN.items(), *CALLED.items()])
def test_each_private_name_has_the_shape_that_the_adapter_depends_on(name: str, shape: str) -> None:
    assert shape_of(name) == shape, f"submitit {submitit.__version__} changed SlurmExecutor.{name}"


def test_the_adapter_overrides_nothing_that_is_not_listed() -> None:
    inherited = {name for cls in SlurmExecutor.__mro__ for name in vars(cls)} - set(vars(object))
    own = {name for name in vars(LaunchExecutor) if not name.startswith("__") and not name.startswith("_abc")}
    assert own & inherited == set(OVERRIDDEN)


@pytest.mark.parametrize("flag", list(GpuFlag))
def test_each_parameter_that_the_adapter_sets_is_one_of_submitits(flag: GpuFlag) -> None:
    spec = SlurmSpec(gpu_flag=flag, partition="p", account="a", qos="q", constraint="c", exclude="n", mem="0")
    accepted = inspect.signature(_make_sbatch_string).parameters
    assert set(sbatch_parameters(submission_of(1), spec)) <= set(accepted)
    # The adapter sets this one past update_parameters(), which refuses it.
    assert "map_count" in accepted


def test_a_job_can_be_made_from_an_id_that_sbatch_gave() -> None:
    assert SlurmJob(folder="/shared", job_id="42", tasks=[0]).job_id == "42"


def test_the_inherited_reading_of_sbatchs_answer_finds_an_id_or_raises() -> None:
    assert SlurmExecutor._get_job_id_from_submission_command("your job 42 is queued") == "42"
    with pytest.raises(FailedSubmissionError):
        SlurmExecutor._get_job_id_from_submission_command("ok")


def test_making_an_executor_touches_no_file(tmp_path: Path) -> None:
    submission = submission_of(1, run_dir=str(tmp_path / "run"))
    LaunchExecutor(submission, SlurmSpec(), python="python", commands=SlurmCommands({}))
    assert list(tmp_path.iterdir()) == []


def test_the_installed_submitit_is_within_the_declared_bounds() -> None:
    project = tomllib.loads((Path(__file__).parents[4] / "pyproject.toml").read_text())["project"]
    declared = next(item for item in map(Requirement, project["dependencies"]) if item.name == "submitit")
    assert version("submitit") in declared.specifier
    assert any(bound.operator == "<" for bound in declared.specifier), "private names need an upper bound"
