"""What is given away: the tables' modes, the scanner for secrets, and the names that double-blind review hides."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from analysis import __main__ as command
from analysis.given_away import Anonymiser, secrets_of
from analysis.trace.__main__ import main as reduce_traces
from tests.analysis.factory import RunDir

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def modes(folder: Path) -> set[int]:
    return {stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.usefixtures("open_umask")
@pytest.mark.parametrize(
    ("folder_mode", "file_mode"), [(None, 0o600), (0o700, 0o600), (0o755, 0o600), (0o750, 0o640), (0o770, 0o640)]
)
def test_tables_are_as_private_as_the_folder_that_they_go_into(
    tmp_path: Path, folder_mode: int | None, file_mode: int
) -> None:
    run, out = RunDir(tmp_path / "run"), tmp_path / "out"
    run.measure([0.1] * 20, axes={"nodes": 1})
    if folder_mode is not None:
        out.mkdir()
        out.chmod(folder_mode)
    assert command.main([str(run.path), "--out", str(out)]) == 0
    assert modes(out) == {file_mode}
    if folder_mode is None:
        assert stat.S_IMODE(out.stat().st_mode) == 0o700


@pytest.mark.usefixtures("open_umask")
@pytest.mark.parametrize(("folder_mode", "file_mode"), [(None, 0o600), (0o755, 0o600), (0o750, 0o640)])
def test_a_profile_is_as_private_as_the_folder_that_it_goes_into(
    tmp_path: Path, folder_mode: int | None, file_mode: int
) -> None:
    trace, out = tmp_path / "trace.json", tmp_path / "out"
    trace.write_text("{}")
    if folder_mode is not None:
        out.mkdir()
        out.chmod(folder_mode)
    reduce_traces([str(trace), "--out", str(out), "--node", "n1"])
    assert modes(out) == {file_mode}


def test_names_and_paths_are_replaced_the_same_in_every_text() -> None:
    hide = Anonymiser(users=["jane", "root"], hosts=["gpu[01-02].cluster.example", "login1", "localhost"])
    first = hide.text("jane@login1: /home/jane/runs/a/sweep.json on gpu01.cluster.example, then gpu[01-02]; gpu012")
    assert first == "user-1@host-3: /path-1/sweep.json on host-1, then host-1,host-2; gpu012"
    assert hide.text('"/home/jane/runs/a/x.log" gpu02 root localhost') == '"/path-1/x.log" host-2 root localhost'
    assert hide.text("/scratch/jane/x janet jane_1") == "/path-2/x janet user-1_1"


@pytest.mark.parametrize(
    "text", ["/usr/bin/python3", "https://example.org/a/b", "tokens/s and 3/4", "cells/ab/repeat-01/attempt-01/x.json"]
)
def test_what_tells_nothing_of_anybody_stays(text: str) -> None:
    assert Anonymiser(users=["jane"], hosts=["gpu01"]).text(text) == text


def test_the_scanner_names_lines_and_kinds_and_shows_no_secret() -> None:
    text = "fine\nurl: https://me:" + "hunter2@x/y\nWANDB_KEY=abc\nthe value is s3cret-value-1\n"
    assert secrets_of(text, {"GH_PAT": "s3cret-value-1"}) == [
        "line 2: a password in an address",
        "line 3: what WANDB_KEY is set to",
        "line 4: the value of GH_PAT",
    ]
