"""The checks of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from sweep.adapters.doctor.machine import file_system, packages, port_range, shadowing
from sweep.usecases.doctor.checks import CheckStatus


def test_a_file_system_is_tried_and_left_clean(tmp_path: Path) -> None:
    assert file_system(tmp_path).status is CheckStatus.OK
    assert list(tmp_path.iterdir()) == []
    missing = file_system(tmp_path / "missing")
    assert (missing.status, bool(missing.mend)) == (CheckStatus.PROBLEM, True)


def test_packages_in_different_folders_are_a_problem(tmp_path: Path) -> None:
    assert packages().status is CheckStatus.OK
    assert packages(tmp_path).status is CheckStatus.PROBLEM


@pytest.mark.parametrize("name", ["trainer.py", "analysis/__init__.py"])
def test_a_file_with_a_packages_name_in_the_working_directory_is_a_warning(tmp_path: Path, name: str) -> None:
    assert shadowing(tmp_path).status is CheckStatus.OK
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    found = shadowing(tmp_path)
    assert found.status is CheckStatus.WARNING
    assert str(tmp_path / name) in found.fact


@pytest.mark.parametrize(
    ("ports", "status"),
    [((20000, 29999), CheckStatus.OK), ((32000, 33000), CheckStatus.WARNING), ((50000, 51000), CheckStatus.WARNING)],
)
def test_rendezvous_ports_lie_outside_the_systems(tmp_path: Path, ports: tuple[int, int], status: CheckStatus) -> None:
    ephemeral = tmp_path / "range"
    ephemeral.write_text("32768\t60999\n")
    assert port_range(ports, ephemeral).status is status
    assert port_range(ports, tmp_path / "none").status is CheckStatus.OK
