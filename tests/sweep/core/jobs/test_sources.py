from __future__ import annotations

from pathlib import PurePosixPath

import pytest

from sweep.core.jobs.environment import hash_sources, is_source

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
