from __future__ import annotations

import re
from pathlib import Path

from sweep.core.attempts.outcome_rules import OUTCOME_RULES
from sweep.core.cells.batch import BatchKind
from sweep.core.cells.rules import DEVICE_RULES, RULES, SETTINGS_RULES

PAGE = (Path(__file__).parents[3] / "docs" / "semantics.md").read_text(encoding="utf-8")


def table(header: str) -> list[list[str]]:
    """The cells of the table under a header line, row by row."""
    lines = PAGE[PAGE.index(header) :].split("\n\n", 1)[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_page_lists_every_rule_in_the_order_of_the_book() -> None:
    named = [row[0].strip("`") for row in table("| rule | broken by |")]
    assert named == ["auto_degree", "whole_batch", *RULES, *DEVICE_RULES, *SETTINGS_RULES, "values"]


def test_the_page_says_of_every_outcome_what_follows_from_it() -> None:
    rows = [
        [str(outcome), str(rule.max_retries), str(rule.disposition), f"`{rule.shown_as}`"]
        for outcome, rule in OUTCOME_RULES.items()
    ]
    assert table("| outcome | retries | in the end | in tables |") == rows


def test_the_page_defines_every_batch_rule() -> None:
    assert [row[0].strip("`") for row in table("| batch rule |")] == list(BatchKind)


def test_the_page_is_one_page() -> None:
    assert len(PAGE.splitlines()) < 130
    assert not re.search(r"\b(TODO|FIXME)\b", PAGE)
