"""Errors that NCCL's watchdog has noted, and the settings for them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.processes import torchrun
from trainer.device import nccl


@dataclass
class FakeBackend:
    name: str

    def get_error(self) -> FakeBackend:
        return self


def test_the_message_names_the_kind_of_an_nccl_backends_error() -> None:
    well = FakeBackend("SUCCESS")
    assert nccl.first_error([]) == nccl.first_error([well, well]) == ""
    assert "time-out" in nccl.first_error([well, FakeBackend("TIMEOUT")])
    assert nccl.first_error([FakeBackend("NEW")]) == "NEW"
    kinds: Any = torch._C._distributed_c10d.ErrorType  # type: ignore[attr-defined]  # not in torch's stubs
    for kind in kinds.__members__:
        assert kind == "SUCCESS" or " " in nccl.first_error([FakeBackend(kind)])


def test_nccl_notes_errors_instead_of_aborting_unless_the_user_has_set_it() -> None:
    environ: dict[str, str] = {}
    nccl.set_error_handling(environ)
    assert environ == {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "2", "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0"}
    for name in ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING"):
        environ = {name: "1", "TORCH_NCCL_RETHROW_CUDA_ERRORS": "1"}
        nccl.set_error_handling(environ)
        assert environ == {name: "1", "TORCH_NCCL_RETHROW_CUDA_ERRORS": "1"}
    torn_down = {"TORCHELASTIC_RUN_ID": "x", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}
    nccl.set_error_handling(torn_down)
    assert torn_down["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "3"


@pytest.mark.torchrun
def test_a_value_that_torchrun_sets_by_itself_is_not_taken_for_the_users(tmp_path: Path) -> None:
    name = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
    program = tmp_path / "rank.py"
    program.write_text(
        "import os\nfrom trainer.device import nccl\n"
        f"before = os.environ[{name!r}]\nnccl.set_error_handling(os.environ)\nprint(before, os.environ[{name!r}])\n"
    )
    done = torchrun(1, str(program))
    assert done.stdout.split() == ["1", "2"], done.stderr
