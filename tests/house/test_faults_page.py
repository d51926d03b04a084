"""The tests that docs/faults.md names are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_test_that_the_page_names_is_there() -> None:
    page = (ROOT / "docs" / "faults.md").read_text()
    rows = [row for row in re.findall(r"^\|.*\| (.+) \|$", page, re.M) if row not in ("test", "the same")]
    named = re.findall(r"(\S+): `(\w+)`$", "\n".join(rows), re.M)
    assert len(named) >= 40
    missing = [
        f"{file} {part}" for file, part in named if not re.search(rf"def test_\w*{part}", _text(file.strip("`")))
    ]
    assert not missing


def _text(file: str) -> str:
    """The text of the tests that a row's last column means."""
    if file == "usecases":
        return "".join(path.read_text() for path in (ROOT / "tests" / "sweep" / "usecases").glob("test_*.py"))
    name = file if file.endswith(".py") else f"test_faults_{file}.py"
    return (ROOT / "tests" / "integration" / name).read_text()
