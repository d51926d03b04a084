"""The pictures in docs/architecture.md are true: their arrows are the imports, and what they name is there.

A failure prints the picture as it should be.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
PICTURED = ("sweep.core", "sweep.adapters", "trainer", "analysis")
"""Packages with a picture of their own, under the heading "Inside ..."."""

_BLOCK = re.compile(r"^## (?P<heading>[^\n]+)\n(?:(?!^## ).)*?^```mermaid\n(?P<picture>.*?)^```", re.M | re.S)
_NODE = re.compile(r'(\w+)\["([^"]+)"\]')
_ARROW = re.compile(r"(\w+) (-->|-\.->) ([\w& ]+)$", re.M)


def pictures() -> dict[str, str]:
    """Mermaid text by the heading of its section."""
    return {match["heading"]: match["picture"] for match in _BLOCK.finditer(PAGE)}


@cache
def graph() -> grimp.ImportGraph:
    """The shipped modules and their imports; those under TYPE_CHECKING count, too."""
    return grimp.build_graph("sweep", "trainer", "analysis", cache_dir=None)


@cache
def imports() -> tuple[tuple[str, str], ...]:
    """Pairs of modules of which the first imports the second."""
    return tuple((one, other) for one in graph().modules for other in graph().find_modules_directly_imported_by(one))


def room_of(module: str, package: str | None) -> str | None:
    """The box that a module belongs to: in a package's own picture, or in the picture of the whole (None)."""
    parts = module.split(".")
    if parts[-1] in ("__main__", "__init__"):
        return None
    if package is None:
        return parts[0] if parts[0] != "sweep" else ".".join(parts[:2]) if len(parts) > 1 else None
    return module.removeprefix(f"{package}.").split(".")[0] if module.startswith(f"{package}.") else None


def rooms_of_code(package: str | None) -> set[str]:
    return {room for module in graph().modules if (room := room_of(module, package))}


def arrows_of_code(package: str | None) -> set[tuple[str, str]]:
    pairs = {(room_of(one, package), room_of(other, package)) for one, other in imports()}
    return {(one, other) for one, other in pairs if one and other and one != other}


def arrows_of(picture: str) -> set[tuple[str, str]]:
    labels = boxes_of(picture)
    return {
        (labels.get(one, one), labels.get(other.strip(), other.strip()))
        for one, _, others in _ARROW.findall(picture)
        for other in others.split("&")
    }


def boxes_of(picture: str) -> dict[str, str]:
    """Rooms by their ids in the picture; a label begins with the room's name."""
    return {name: label.partition("<br>")[0] for name, label in _NODE.findall(picture)}


def drawn(arrows: set[tuple[str, str]]) -> str:
    """Mermaid lines: a dotted arrow is one that other arrows lead along already."""
    after: dict[str, set[str]] = {}
    for one, other in arrows:
        after.setdefault(one, set()).add(other)

    def reaches(one: str, other: str) -> bool:
        return any(step == other or reaches(step, other) for step in after.get(one, ()))

    lines = []
    for one in sorted(after):
        skips = {other for other in after[one] if any(reaches(step, other) for step in after[one])}
        for sign, others in (("-->", after[one] - skips), ("-.->", skips)):
            if others:
                lines.append(f"    {_id(one)} {sign} {' & '.join(map(_id, sorted(others)))}")
    return "\n".join(lines)


def _id(room: str) -> str:
    return room.replace(".", "_")


def picture_of(package: str | None) -> str:
    return pictures()["The whole" if package is None else f"Inside {package}"]


@pytest.mark.parametrize("package", [None, *PICTURED])
def test_boxes_are_the_rooms(package: str | None) -> None:
    assert set(boxes_of(picture_of(package)).values()) == rooms_of_code(package)


@pytest.mark.parametrize("package", [None, *PICTURED])
def test_arrows_are_the_imports_between_rooms(package: str | None) -> None:
    real = arrows_of_code(package)
    assert arrows_of(picture_of(package)) == real, f"the arrows should be:\n{drawn(real)}"


def test_the_way_of_a_cell_names_only_what_is_there() -> None:
    picture = pictures()["One cell's way, from YAML to CSV"]
    named = re.findall(r"\b(?:sweep|trainer|analysis)(?:\.\w+)+", picture.replace("sweep.json", ""))
    assert len(named) >= 10
    assert not [name for name in named if not _exists(name)]


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda page: page.name
)
def test_modules_and_files_that_a_page_names_are_there(page: Path) -> None:
    text = page.read_text()
    # `trainer.steps` is an axis, `sweep.json` a file of a run directory.
    names = set(re.findall(r"`((?:sweep|analysis)(?:\.\w+)+|trainer(?:\.\w+){2,})`", text)) - {"sweep.json"}
    paths = set(re.findall(r"`((?:sweep|trainer|analysis|tests|tools|conf|benchmarks|docs)/[\w./-]+)`", text))
    assert not [name for name in names if not _exists(name)]
    assert not [path for path in paths if not (ROOT / path).exists() and "/NAME" not in path]


def _exists(name: str) -> bool:
    """True if there is such a module, or such a name at the top of one."""
    path = ROOT.joinpath(*name.split("."))
    if path.is_dir() or path.with_suffix(".py").exists():
        return True
    module = path.parent.with_suffix(".py")
    if not module.exists():
        return False
    defined = (getattr(node, "name", "") for node in ast.parse(module.read_text()).body)
    return path.name in defined
