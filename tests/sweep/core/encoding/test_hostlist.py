from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from submitit.slurm.slurm import _parse_node_list

from sweep.core.encoding.hostlist import expand_hostlist

FORMS = [
    "",
    "login",
    "a,b",
    "node[1-3]",
    "node[1,3,5]",
    "node[01-03,7],login1",
    "node[008-011]",
    "gpu-a[1-2]-r[3-4],x",
    "rack[0-1][2-3]",
    "node[1-2].cluster.example,other-3",
    "127.0.0.1,127.0.0.1",
    "n[09-11,100]-ib",
]


@pytest.mark.parametrize("text", FORMS)
def test_a_list_is_read_as_submitit_reads_it(text: str) -> None:
    assert list(expand_hostlist(text)) == _parse_node_list(text)


_names = st.from_regex(r"[a-z]([a-z0-9.-]{0,5}[a-z0-9])?", fullmatch=True)
_numbers = st.integers(0, 40)
_ranges = st.tuples(_numbers, st.integers(0, 5), st.integers(1, 4)).map(
    lambda t: f"{t[0]:0{t[2]}}-{t[0] + t[1]:0{t[2]}}"
)
_brackets = st.lists(_ranges | _numbers.map(str), min_size=1, max_size=3).map(lambda parts: f"[{','.join(parts)}]")
_groups = st.lists(_names | _brackets, max_size=3).flatmap(lambda rest: _names.map(lambda name: name + "".join(rest)))


@given(st.lists(_groups, max_size=4).map(",".join))
def test_any_list_is_read_as_submitit_reads_it(text: str) -> None:
    assert list(expand_hostlist(text)) == _parse_node_list(text)


@pytest.mark.parametrize("text", ["n[1-3", "n]", "a,,b", ",a", "n[a-b]", "n[]", "n[3-1]", "n[1-2-3]", "n[[1]]"])
def test_what_is_no_list_is_an_error_and_never_a_host(text: str) -> None:
    with pytest.raises(ValueError, match="is not a"):
        expand_hostlist(text)
