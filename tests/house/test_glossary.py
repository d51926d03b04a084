"""README links each word of docs/glossary.md where it first appears."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORDS = re.findall(r"^### (.+)$", (ROOT / "docs" / "glossary.md").read_text(), re.M)
CODE = re.compile(r"```.*?```|`[^`\n]*`|^#.*?$|^\|.*?$", re.S | re.M)
LINK = re.compile(r"\[([^\]]*)\]\(([^)]*)\)")


def prose() -> str:
    """README without code, headings and tables."""
    return CODE.sub("", (ROOT / "README.md").read_text())


@pytest.mark.parametrize("word", WORDS)
def test_readme_links_a_word_of_the_glossary_where_it_first_appears(word: str) -> None:
    text = prose()
    linked = re.compile(rf"\[[^\]]*\]\(docs/glossary\.md#{word.replace(' ', '-')}\)")
    plain = LINK.sub(lambda match: match[0] if linked.fullmatch(match[0]) else match[1], text)
    first = re.search(rf"\b{word}(s|es|ed)?\b", plain)
    if first is None:
        return
    link = linked.search(plain)
    assert link, f"link '{word}' to docs/glossary.md#{word.replace(' ', '-')}"
    before = plain[: link.start()]
    assert not (earlier := re.search(rf".*\b{word}(s|es|ed)?\b.*", before)), (
        f"'{word}' appears before its link: {earlier}"
    )


def test_the_glossary_says_each_word_in_a_line() -> None:
    entries = re.findall(r"^### (.+)\n\n(.+)\n(?=\n|\Z)", (ROOT / "docs" / "glossary.md").read_text(), re.M)
    assert [word for word, _ in entries] == WORDS
    assert all(len(text) <= 120 and text.endswith(".") for _, text in entries)
    for word in ("hole", "envelope", "fingerprint", "repeat", "attempt", "restart", "canary"):
        assert word in WORDS
