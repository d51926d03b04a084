"""Names of jobs, whatever a grid or a cluster is called."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweep.core.jobs.submission import safe_name


@given(st.text(max_size=200))
def test_any_text_becomes_a_name_that_no_shell_or_file_system_reads_otherwise(text: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}", safe_name(text))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("weak_scaling-slurm-20261129T1200Z", "weak_scaling-slurm-20261129T1200Z"),
        ("a b; rm -rf $HOME", "a-b-rm--rf-HOME"),
        ("../../etc", "etc"),
        ("--wrap", "wrap"),
        ("\n", "sweep"),
    ],
)
def test_names_keep_what_is_harmless(text: str, name: str) -> None:
    assert safe_name(text) == name
