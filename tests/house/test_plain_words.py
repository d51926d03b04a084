"""Docstrings open plainly, and names are the field's terms."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tools.house_metrics import bad_openings, modules

ROOT = Path(__file__).parents[2]
SHIPPED = modules(ROOT)
ALL = modules(ROOT, ("sweep", "trainer", "analysis", "tests", "tools"))

PRIVATE = {
    "barred": "withdrawn or adopted",
    "endings": "recorded outcomes",
    "flying": "in flight",
    "inturn": "gradient accumulation",
    "restraint": "admission",
    "said": "message, or who reports it",
    "sightings": "observation",
    "standing": "state",
    "told": "message, or who reports it",
    "whereabouts": "rank progress",
}
"""Words of no name, with what to say instead."""
RENAMED = {
    "Gone": "AbsenceTimer",
    "Look": "Observation",
    "split_matrices": "apply_tensor_parallel",
    "is_barred": "withdraw_or_adopt",
    "last_words": "logged_end",
}
"""Old names, with the new ones."""


def test_no_docstring_opens_with_what_or_whether() -> None:
    found = [f"{place.path}:{place.line} {place.name}" for place in bad_openings(SHIPPED)]
    assert not found, "\n".join(["say the subject first:", *found])


def test_no_name_is_of_the_private_dialect() -> None:
    found: dict[str, set[str]] = defaultdict(set)
    for module in ALL:
        if Path(module.path) == Path(__file__).relative_to(ROOT):
            continue
        for name in _names(module.tree):
            parts = {part.lower() for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)} | {name.lower()}
            for word in sorted(parts & PRIVATE.keys()):
                found[module.path].add(f"{name} ({PRIVATE[word]})")
            if name.lstrip("_") in RENAMED:
                found[module.path].add(f"{name} ({RENAMED[name.lstrip('_')]})")
    assert not found, "\n".join(f"{path}: {', '.join(sorted(names))}" for path, names in sorted(found.items()))


def test_a_public_class_has_a_name_of_its_own() -> None:
    places: dict[str, set[str]] = defaultdict(set)
    for module in SHIPPED:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].add(module.path)
    assert not (shared := {name: sorted(at) for name, at in places.items() if len(at) > 1}), shared


def _names(tree: ast.AST) -> Iterator[str]:
    """Every name that the code defines or uses, a module's in an import included."""
    for node in ast.walk(tree):
        for field in ("id", "attr", "arg", "name", "module", "asname"):
            if isinstance(name := getattr(node, field, None), str):
                yield from name.split(".")
