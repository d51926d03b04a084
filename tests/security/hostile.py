"""Makes a run directory as a stranger could: control characters and markup in every text of its records."""

from __future__ import annotations

import json
import shutil
import unicodedata
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.golden.test_recorded_runs import HERE, REWRITTEN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PAYLOAD = "\x1b]0;PWNED\x07\x1b[31m\u202e\u2066\u200f\x9b2J\x7f\x00\r[/red][bold]`|<b>&$\\x~^#%{"
IDENTIFIERS = ("cell_id", "cell", "submission", "job_id", "kind", "name", "directory", "job")


def bad_characters(text: str) -> list[str]:
    """Characters that a terminal or a reader would obey instead of showing them, by Unicode's own categories."""
    obeyed = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    return sorted({char for char in text if unicodedata.category(char) in obeyed and char not in "\n\t"})


def hostile_run(name: str, folder: Path, *, with_names: bool) -> Path:
    """A copy of a recorded run with the payload after every text that a record may hold and still be read.

    Args:
        name: Folder in ``tests/golden/runs``.
        folder: Where the copy goes.
        with_names: Poison names and identifiers, too: then much is refused, with messages that quote them.
    """
    run = shutil.copytree(HERE / "runs" / name, folder / name)
    for pattern, rewrite in REWRITTEN.items():
        for path in run.glob(pattern):
            path.write_text(
                _poisoned(path.read_text(), rewrite, with_names=with_names, is_lines=path.suffix == ".jsonl")
            )
    for path in run.glob("cells/*/repeat-*/attempt-*/attempt.json"):
        (path.parent / "node-0.log").write_text(f"before\n{PAYLOAD}\nafter\n")
        (path.parent / f"node-{PAYLOAD.replace('/', '').replace(chr(0), '')}.log").write_text("its name\n")
    return run


def _poisoned(text: str, rewrite: Callable[[str], str], *, with_names: bool, is_lines: bool) -> str:
    if is_lines:
        return "".join(f"{_record(line, rewrite, with_names=with_names)}\n" for line in text.splitlines())
    return _record(text, rewrite, with_names=with_names)


def _record(text: str, rewrite: Callable[[str], str], *, with_names: bool) -> str:
    try:
        data = json.loads(text)
    except ValueError:
        return text + PAYLOAD.replace("\r", "")  # a damaged record, as recorded
    places = [place for place in _texts(data) if with_names or place[-1] not in IDENTIFIERS]
    return json.dumps(_with_payload(data, places, rewrite))


def _with_payload(data: Any, places: list[tuple[Any, ...]], rewrite: Callable[[str], str]) -> Any:
    """The record with the payload at all places where it is still read; halves are tried where the whole is not."""
    if not places:
        return data
    tried = deepcopy(data)
    for *parents, last in places:
        parent = tried
        for step in parents:
            parent = parent[step]
        parent[last] += PAYLOAD
    try:
        rewrite(json.dumps(tried))
    except ValueError:
        half = len(places) // 2
        return _with_payload(_with_payload(data, places[:half], rewrite), places[half:], rewrite) if half else data
    return tried


def _texts(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The place of every text in a JSON value."""
    if isinstance(value, str):
        yield path
    elif isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _texts(item, (*path, key))
