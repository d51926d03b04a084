"""The reading of exit codes, times and node lists."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from sweep.adapters.slurm.fields import parse_exit_code, parse_nodes, parse_time


@pytest.fixture
def five_hours_west() -> Iterator[None]:
    before = os.environ.get("TZ")
    os.environ["TZ"] = "UTC+5"
    time.tzset()
    yield
    os.environ.pop("TZ")
    if before is not None:
        os.environ["TZ"] = before
    time.tzset()


@pytest.mark.parametrize(
    ("text", "codes"), [("0:0", 0), ("3:0", 3), ("0:9", 137), ("1:15", 143), ("", None), ("x:y", None)]
)
def test_the_exit_code_of_a_signal_is_the_shells(text: str, codes: int | None) -> None:
    assert parse_exit_code(text) == codes


@pytest.mark.parametrize("text", ["", "N/A", "NONE", "None", "Unknown", "0"])
def test_an_unknown_time_is_none(text: str) -> None:
    assert parse_time(text) is None


@pytest.mark.usefixtures("five_hours_west")
def test_an_iso_time_is_local() -> None:
    assert parse_time("2026-11-29T16:26:40") == 1795987600.0
    assert parse_time("1795987600") == 1795987600.0


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("node1", ("node1",)),
        ("gpu[01-03,7],login1", ("gpu01", "gpu02", "gpu03", "gpu7", "login1")),
        ("(null)", ()),
        ("None assigned", ()),
        ("gpu[1-", ("gpu[1-",)),
    ],
)
def test_host_lists_are_expanded_and_other_text_is_kept(text: str, nodes: tuple[str, ...]) -> None:
    assert parse_nodes(text) == nodes
