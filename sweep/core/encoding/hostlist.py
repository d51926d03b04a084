"""Slurm's short form of a node list (``gpu[01-03,7],login1``) written out."""

from __future__ import annotations

import re

_GROUP = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def expand_hostlist(text: str) -> tuple[str, ...]:
    """Every host of a list, in its order; brackets may occur several times in a name, and after one another.

    Raises:
        ValueError: If the list is no such list.
    """
    groups = _GROUP.findall(text)
    if ",".join(groups) != text:
        raise ValueError(
            f"{text!r} is not a node list as Slurm writes it: names like node[01-03,7] with commas between."
        )
    return tuple(host for group in groups for host in _expand(group))


def _expand(group: str) -> list[str]:
    found = _BRACKETS.search(group)
    if found is None:
        return [group]
    before, after = group[: found.start()], _expand(group[found.end() :])
    return [before + number + rest for number in _numbers(found[1]) for rest in after]


def _numbers(text: str) -> list[str]:
    numbers: list[str] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        first, last = (match[1], match[2] or match[1]) if match else ("1", "0")
        if int(first) > int(last):
            raise ValueError(f"[{text}] is not a list of numbers and ranges like 1-3,7.")
        numbers += [f"{number:0{len(first)}}" for number in range(int(first), int(last) + 1)]
    return numbers
