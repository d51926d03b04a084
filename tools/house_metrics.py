"""Prints measures of the shipped code: ``python tools/house_metrics.py [TREE ...]``, one column for each tree.

It counts lines by package, modules by room (a folder of modules), the longest modules and functions, the places that
name the axis ``seq_len``, and docstrings that open with "What" or "Whether". docs/adr/0022-the-house.md has these
numbers for the version before the rooms and for the one after; the tests in tests/house hold the limits.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGES = ("sweep", "trainer", "analysis")
MAX_MODULES_OF_ROOM = 14
MAX_MODULE_LINES = 350
MAX_P90_MODULE_LINES = 250
MAX_FUNCTION_LINES = 50
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_OPENS_BADLY = re.compile(r"(What|Whether)\b")


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A line of a file, and what is found there.

    Attributes:
        path: File, relative to the tree.
        line: Line number, from 1.
        name: Name of what stands there.
        lines: Length in lines.
    """

    path: str
    line: int
    name: str
    lines: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Module:
    """A module of the shipped code."""

    path: str
    text: str
    tree: ast.Module

    @property
    def lines(self) -> int:
        """Lines of the file."""
        return len(self.text.splitlines())

    @property
    def room(self) -> str:
        """The folder that it lies in, relative to the tree."""
        return self.path.rpartition("/")[0]


def modules(tree: Path, packages: tuple[str, ...] = PACKAGES) -> list[Module]:
    """All modules of packages below a folder; of the shipped three unless others are named."""
    paths = sorted(path for package in packages for path in (tree / package).rglob("*.py"))
    texts = {path: path.read_text() for path in paths}
    return [Module(path=str(path.relative_to(tree)), text=text, tree=ast.parse(text)) for path, text in texts.items()]


def rooms(found: list[Module]) -> Counter[str]:
    """Modules by folder; ``__init__.py`` is none."""
    return Counter(module.room for module in found if not module.path.endswith("__init__.py"))


def functions(found: list[Module]) -> list[Place]:
    """All functions and methods, from ``def`` to the last line; decorators do not count."""
    return [
        Place(
            path=module.path, line=node.lineno, name=node.name, lines=(node.end_lineno or node.lineno) - node.lineno + 1
        )
        for module in found
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def docstrings(module: Module) -> Iterator[tuple[int, str]]:
    """Line and text of each docstring, those beside the fields of a class included."""
    for node in ast.walk(module.tree):
        for at, statement in enumerate(getattr(node, "body", ()) if isinstance(node, _DOCUMENTED) else ()):
            is_first_or_beside_field = at == 0 or isinstance(node, ast.ClassDef | ast.Module)
            value = statement.value if isinstance(statement, ast.Expr) else None
            if is_first_or_beside_field and isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield statement.lineno, value.value


def bad_openings(found: list[Module]) -> list[Place]:
    """Docstrings that open with "What" or "Whether"."""
    return [
        Place(path=module.path, line=line, name=text.strip().splitlines()[0], lines=text.count("\n") + 1)
        for module in found
        for line, text in docstrings(module)
        if _OPENS_BADLY.match(text.strip())
    ]


def places_of(found: list[Module], word: str) -> Counter[str]:
    """How often each module's code has a name, an argument, or a whole string that is the word."""
    return Counter(module.path for module in found for node in ast.walk(module.tree) if _is_named(node, word))


def _is_named(node: ast.AST, word: str) -> bool:
    values = (getattr(node, field, None) for field in ("id", "attr", "arg", "value", "name"))
    return any(value == word for value in values if isinstance(value, str))


def code_lines(module: Module) -> int:
    """Number of lines with code: no blank line, no comment, no docstring."""
    lines = module.text.splitlines()
    numbers = {at for at, line in enumerate(lines, 1) if line.strip() and not line.lstrip().startswith("#")}
    for first, docstring in docstrings(module):
        numbers -= set(range(first, first + docstring.count("\n") + 1))
    return len(numbers)


def percentile_90(values: list[int]) -> int:
    """The smallest value that at least nine in ten do not exceed."""
    return sorted(values)[max(0, -(-len(values) * 9 // 10) - 1)]


def measures(tree: Path) -> dict[str, str]:
    """Each measure by its name, as text."""
    found = modules(tree)
    lengths = [module.lines for module in found]
    by_room = rooms(found)
    parts = functions(found)
    places = places_of(found, "seq_len")
    longest_module = max(found, key=lambda module: module.lines)
    longest_part = max(parts, key=lambda place: place.lines)
    by_package = {
        package: sum(module.lines for module in found if module.path.startswith(f"{package}/")) for package in PACKAGES
    }
    largest_room, size = by_room.most_common(1)[0]
    return {
        **{f"lines of {package}": f"{lines:,}" for package, lines in by_package.items()},
        "lines in all": f"{sum(lengths):,}",
        "lines of code, without docstrings, comments and blanks": f"{sum(map(code_lines, found)):,}",
        "modules": str(len(found)),
        "rooms": str(len(by_room)),
        "modules of the largest room": f"{size} ({largest_room})",
        "rooms above 14 modules": str(sum(count > MAX_MODULES_OF_ROOM for count in by_room.values())),
        "lines of a module, p90": str(percentile_90(lengths)),
        "longest module, lines": f"{longest_module.lines} ({longest_module.path})",
        "modules above 350 lines": str(sum(lines > MAX_MODULE_LINES for lines in lengths)),
        "lines of a function, p90": str(percentile_90([place.lines for place in parts])),
        "longest function, lines": f"{longest_part.lines} ({longest_part.path}: {longest_part.name})",
        "functions above 50 lines": str(sum(place.lines > MAX_FUNCTION_LINES for place in parts)),
        "modules that name seq_len": str(len(places)),
        "places that name seq_len": str(places.total()),
        "docstrings that open with What or Whether": str(len(bad_openings(found))),
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trees", nargs="*", type=Path, default=[Path()], metavar="TREE", help="a checkout (default: .)")
    trees: list[Path] = parser.parse_args().trees
    columns = [measures(tree) for tree in trees]
    print(f"| measure | {' | '.join(str(tree) for tree in trees)} |")
    print("| --- |" + " ---: |" * len(trees))
    for name in columns[0]:
        print(f"| {name} | {' | '.join(column[name] for column in columns)} |")


if __name__ == "__main__":
    main()
