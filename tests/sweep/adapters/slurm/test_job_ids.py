"""The reading of job ids in each form that squeue and sacct print."""

from __future__ import annotations

import pytest

from sweep.adapters.slurm.fields import arrays_in, parse_row_id


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("42", ("42", ["42"], False)),
        ("42_7", ("42", ["42_7"], True)),
        ("42_[0-2,5%2]", ("42", ["42_0", "42_1", "42_2", "42_5"], True)),
        ("42_[3-9:3%1]", ("42", ["42_3", "42_6", "42_9"], True)),
        ("42_[2,5,7-9,...]", ("42", ["42_2", "42_5", "42_7", "42_8", "42_9"], False)),
        ("42_[4,7,22...%2]", ("42", ["42_4", "42_7"], False)),
        ("42_[4,7,2", ("42", ["42_4", "42_7"], False)),
        ("42_[", ("42", [], False)),
        ("42.batch", None),
        ("42_7.extern", None),
        ("42+1", None),
        ("JOBID", None),
        ("", None),
    ],
)
def test_each_form_of_a_job_id_is_read(text: str, named: object) -> None:
    assert parse_row_id(text) == named


def test_the_arrays_of_a_column_are_listed_once() -> None:
    assert arrays_in("42_0\n42_[1-3]\nbanner\n7\n42\n") == ["42", "7"]
