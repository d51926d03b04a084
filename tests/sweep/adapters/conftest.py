from __future__ import annotations

from pathlib import Path

import pytest

from tests.sweep.adapters.fake_slurm import FakeSlurm, fake_slurm


@pytest.fixture
def slurm(tmp_path: Path) -> FakeSlurm:
    folder = tmp_path / "bin"
    folder.mkdir()
    return fake_slurm(folder)
