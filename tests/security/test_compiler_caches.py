"""Compilers read and run what lies in their caches: a cache that another user can write is never used."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from sweep.core.jobs.node_command import CACHES
from sweep.launch.launcher import open_cache
from tests.stubs.jobs import stub_launch, submission
from tests.sweep.launch.launches import error_of, folder, launch

if TYPE_CHECKING:
    from pathlib import Path

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a folder of a second user")


def caches(folder: Path) -> dict[str, str]:
    return {name: str(folder / below) for name, below in CACHES.items()}


def test_caches_that_are_made_are_the_users_alone(tmp_path: Path) -> None:
    assert open_cache(caches(tmp_path)) == ""
    assert {(tmp_path / below).stat().st_mode & 0o777 for below in CACHES.values()} == {0o700}


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770])
def test_a_cache_that_others_can_write_is_refused(tmp_path: Path, mode: int) -> None:
    (tmp_path / "inductor").mkdir()
    (tmp_path / "inductor").chmod(mode)
    assert "others can write it" in open_cache(caches(tmp_path))


@needs_root
@pytest.mark.parametrize("name", CACHES)
def test_a_job_does_not_start_with_a_cache_of_another_user(tmp_path: Path, name: str) -> None:
    planted = tmp_path / "planted"
    planted.mkdir()
    os.chown(planted, NOBODY, NOBODY)
    made = submission(tmp_path, stub_launch("works"))
    done = launch(made, **{name: str(planted)})
    assert done.returncode == 2
    assert f"{name}={planted} belongs to another user" in error_of(folder(made)).message
