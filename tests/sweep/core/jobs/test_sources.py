from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

from sweep.adapters.files.sources_snapshot import read_sources
from sweep.core.jobs.sources import hash_sources, is_source
from sweep.launch.launcher import sources_in

FILES = [("sweep/a.py", b"1"), ("trainer/b.py", b"2")]


def test_the_order_of_files_does_not_change_the_hash() -> None:
    assert hash_sources(FILES) == hash_sources(reversed(FILES))
    assert len(hash_sources(FILES)) == 16


@pytest.mark.parametrize(
    "other",
    [
        [("sweep/a.py", b"1"), ("trainer/b.py", b"3")],
        [("sweep/a.py", b"1"), ("trainer/c.py", b"2")],
        [("sweep/a.py", b"1")],
        [("sweep/a.py", b"1trainer/b.py2")],
        [("sweep/a.py", b""), ("trainer/b.py", b"12")],
    ],
)
def test_any_change_changes_the_hash(other: list[tuple[str, bytes]]) -> None:
    assert hash_sources(other) != hash_sources(FILES)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("sweep/core/cell.py", True),
        ("sweep/conf/grid/weak.yaml", True),
        ("sweep/py.typed", False),
        ("sweep/__pycache__/cell.cpython-311.pyc", False),
        ("sweep/__pycache__/cell.py", False),
    ],
)
def test_modules_and_configuration_are_sources(name: str, expected: bool) -> None:
    assert is_source(PurePosixPath(name)) is expected


def test_launcher_and_orchestrator_see_the_same_sources() -> None:
    root = Path(__file__).parents[4]
    assert dict(sources_in(root)) == read_sources(root)
    assert "trainer/__init__.py" in dict(sources_in(root))


def test_a_snapshot_that_is_not_there_has_no_sources(tmp_path: Path) -> None:
    assert list(sources_in(tmp_path / "gone")) == []
