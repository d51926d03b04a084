"""Likeness of failures, blame: pure parts of what holds attempts back."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest

from sweep.core.attempt import Outcome
from sweep.core.blame import Blame, bad_nodes, evidence_of, excludable, standing
from sweep.core.restraint import alike


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("rank 0 in step 3: KeyError: 'x'", "rank 12 in step 45: KeyError: 'x'"),
        ("rank 0 in step 9: boom", "rank 0 in step 1000: boom"),
        ("size 64", "size 128"),
        ("size 512", "size 1024"),
        ("cell 89c35e1f02ab77d4: KeyError", "cell abcdefabcdefabcd: KeyError"),
        (
            "No such file: '/r/a/cells/89c35e1f02ab77d4/repeat-01/attempt-01/cell.json'",
            "No such file: '/r/b-c/cells/abcdefabcdefabcd/repeat-02/attempt-11/cell.json'",
        ),
        ("cells/89c35e1f02ab77d4/repeat-01/x.pt is damaged", "cells/11aa/repeat-01/y.pt is damaged"),
        ("<Thing at 0x7f3a>: boom", "<Thing at 0xdeadbeef01>: boom"),
        ("connect to 10.0.0.1:29400 failed", "connect to 10.12.0.100:9400 failed"),
        ("file 123e4567-e89b-12d3-a456-426614174000", "file aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"),
    ],
)
def test_failures_are_alike_whatever_their_ranks_numbers_ids_and_places(one: str, other: str) -> None:
    assert alike(one) == alike(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [("rank 0: KeyError: 'x'", "rank 0: KeyError: 'y'"), ("read/write error", "read/seek error")],
)
def test_failures_that_say_something_else_are_not_alike(one: str, other: str) -> None:
    assert alike(one) != alike(other)


def _blame(node: str, cell: str, time: float = 1000.0) -> Blame:
    return Blame(node=node, time=time, cell_id=cell, run="r", outcome=Outcome.NODE_FAIL, reason="NODE_FAIL")


def test_one_cell_that_fails_everywhere_proves_nothing_about_a_node() -> None:
    blames = [_blame("n1", "a"), _blame("n1", "a"), _blame("n2", "a"), _blame("n2", "b")]
    assert bad_nodes(blames, now=1001.0, after=2, expiry_h=1.0) == ("n2",)


def test_blame_expires() -> None:
    blames = [_blame("n1", "a"), _blame("n1", "b", time=1000.0 + 3600)]
    assert bad_nodes(blames, now=1000.0 + 3599, after=2, expiry_h=1.0) == ("n1",)
    assert bad_nodes(blames, now=1000.0 + 3600, after=2, expiry_h=1.0) == ()
    assert list(standing(blames, now=1000.0 + 3600, expiry_h=1.0)) == ["n1"]


def test_the_evidence_shows_the_latest_reason_and_the_number_of_cells() -> None:
    later = replace(_blame("n1", "b", time=2000.0), reason="Xid 79", outcome=Outcome.DEVICE_ERROR)
    assert evidence_of(standing([_blame("n1", "a"), later], now=2001.0, expiry_h=1.0)) == [
        ("n1", 2, "DEVICE_ERROR: Xid 79")
    ]


def test_blame_survives_its_file_and_damage_is_an_error() -> None:
    assert Blame.parse(_blame("n1", "a").render()) == _blame("n1", "a")
    for line in ("", "{", "[]", '{"node": "n1"}', '{"node": "n1", "time": "soon", "cell_id": "a"}'):
        with pytest.raises(ValueError):  # noqa: PT011 - any damage will do, whatever it is called
            Blame.parse(line)


def test_only_known_nodes_are_excluded_and_enough_are_left() -> None:
    known = {"n1", "n2", "n3"}

    def of(*wanted: str, needed: int, usable: Collection[str] = known) -> tuple[str, ...]:
        return excludable(wanted, known=known, usable=usable, needed=needed)

    assert of("n2", "gone", "n2", needed=2) == ("n2",)
    assert of("n3", "n1", needed=2) == ("n3",), "the first named is the most important"
    assert of("n1", needed=3) == ()
    assert of("n2", "n3", needed=1, usable={"n2", "n3"}) == ("n2",), "n1 is down, or excluded by the site already"
    assert of("n1", "n2", needed=1, usable={"n2", "n3"}) == ("n1", "n2"), "one that is down is no loss"
    assert excludable(("n1",), known=(), usable=(), needed=1) == (), "a cluster that cannot be asked excludes nothing"
