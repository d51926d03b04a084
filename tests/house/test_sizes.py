"""Sizes of the shipped code: modules of a room, lines of a module, lines of a function."""

from __future__ import annotations

from pathlib import Path

from tools.house_metrics import (
    MAX_FUNCTION_LINES,
    MAX_MODULE_LINES,
    MAX_MODULES_OF_ROOM,
    MAX_P90_MODULE_LINES,
    functions,
    modules,
    percentile_90,
    rooms,
)

SHIPPED = modules(Path(__file__).parents[2])


def test_a_room_has_at_most_fourteen_modules() -> None:
    crowded = {room: count for room, count in rooms(SHIPPED).items() if count > MAX_MODULES_OF_ROOM}
    assert not crowded, f"split these rooms by subject: {crowded}"


def test_a_module_has_at_most_350_lines_and_nine_in_ten_at_most_250() -> None:
    long = {module.path: module.lines for module in SHIPPED if module.lines > MAX_MODULE_LINES}
    assert not long, f"split these modules by subject: {long}"
    lines = [module.lines for module in SHIPPED]
    above = {module.path: module.lines for module in SHIPPED if module.lines > MAX_P90_MODULE_LINES}
    assert percentile_90(lines) <= MAX_P90_MODULE_LINES, f"{len(above)} of {len(lines)} modules are above: {above}"


def test_a_function_has_at_most_fifty_lines() -> None:
    long = [f"{at.path}:{at.line} {at.name}: {at.lines}" for at in functions(SHIPPED) if at.lines > MAX_FUNCTION_LINES]
    assert not long, "\n".join(["split these functions:", *long])
