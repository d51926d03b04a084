from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweep.core.attempts.ledger import (
    CancelRequested,
    Event,
    parse_event,
    parse_lines,
    render_event,
)
from tests.events import EVENTS, ended, key, reserved, submitted


@given(EVENTS)
def test_an_event_survives_its_line(event: Event) -> None:
    line = render_event(event)
    assert "\n" not in line
    assert parse_event(line) == event


def test_a_line_keeps_its_format() -> None:
    line = render_event(reserved("s1", key(2, cell="89c3")))
    assert json.loads(line) == {
        "v": 1,
        "event": "reserved",
        "time": 1.0,
        "submission": "s1",
        "tasks": [{"cell_id": "89c3", "repeat": 1, "attempt": 2}],
        "gpu_hours": 8.0,
        "gpus": 16,
        "is_cut": False,
    }


def test_a_cancel_from_before_repeats_were_held_back_is_still_read() -> None:
    line = '{"v": 1, "event": "cancel_requested", "time": 3.0, "keys": [{"cell_id": "c", "repeat": 1, "attempt": 2}]}'
    assert parse_event(line) == CancelRequested(time=3.0, keys=(key(2),))


def test_a_field_that_a_later_version_added_is_left_aside() -> None:
    data = json.loads(render_event(submitted("s1", "7")))
    assert parse_event(json.dumps({**data, "cluster": "new"})) == submitted("s1", "7")


GOOD = json.loads(render_event(ended(key())))
RESERVED = json.loads(render_event(reserved("s1", key())))


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        "5",
        "null",
        '"ended"',
        json.dumps(GOOD) * 2,
        "[" * 100_000,
        json.dumps({**GOOD, "v": 2}),
        json.dumps({name: value for name, value in GOOD.items() if name != "v"}),
        json.dumps({**GOOD, "event": "exploded"}),
        json.dumps({**GOOD, "event": ["ended"]}),
        json.dumps({name: value for name, value in GOOD.items() if name != "event"}),
        json.dumps({name: value for name, value in GOOD.items() if name != "reason"}),
        json.dumps({**GOOD, "outcome": "FINE"}),
        json.dumps({**GOOD, "outcome": None}),
        json.dumps({**GOOD, "key": "c/1/1"}),
        json.dumps({**GOOD, "key": {"cell_id": "c", "repeat": 1}}),
        json.dumps({**GOOD, "key": {"cell_id": "c", "repeat": "1", "attempt": 1}}),
        json.dumps({**GOOD, "key": {"cell_id": "c", "repeat": 1, "attempt": 0}}),
        json.dumps({**GOOD, "time": "today"}),
        json.dumps({**GOOD, "time": True}),
        json.dumps({**GOOD, "time": float("nan")}),
        json.dumps({**GOOD, "gpu_seconds": "many"}),
        json.dumps({**GOOD, "evidence": []}),
        json.dumps({**RESERVED, "tasks": 3}),
        json.dumps({**RESERVED, "tasks": {"c": 1}}),
        json.dumps({**RESERVED, "gpus": 16.5}),
        json.dumps({**RESERVED, "submission": 5}),
        json.dumps({"v": 1, "event": "submitted", "time": 1, "submission": "s", "jobs": "12"}),
        json.dumps({"v": 1, "event": "submitted", "time": 1, "submission": "s", "jobs": [12]}),
        json.dumps({"v": 1, "event": "reopened", "time": 1, "repeats": [["c"]]}),
        json.dumps({"v": 1, "event": "reopened", "time": 1, "repeats": [["c", "1"]]}),
        json.dumps({"v": 1, "event": "refused", "time": 1, "submission": "s", "reason": None}),
    ],
    ids=lambda line: line[:60],
)
def test_a_damaged_line_is_no_event(line: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011  # json's own errors are among them
        parse_event(line)
    assert str(caught.value)


def test_a_torn_tail_and_a_damaged_line_in_the_middle_lose_nothing_else() -> None:
    lines = [render_event(reserved("s1", key())), render_event(submitted("s1", "7")), render_event(ended(key()))]
    torn = [lines[0], lines[1][:20], "", "\0\0\0", lines[2], lines[0][:-3]]
    events, problems = parse_lines([line.encode() for line in torn])
    assert events == [reserved("s1", key()), ended(key())]
    assert [problem.split(" cannot")[0] for problem in problems] == ["ledger line 2", "ledger line 4", "ledger line 6"]
    assert "the rest was kept" in problems[0]


@given(st.lists(EVENTS, max_size=6), st.data())
def test_a_ledger_cut_anywhere_gives_the_events_before_the_cut(events: list[Event], data: st.DataObject) -> None:
    text = "".join(render_event(event) + "\n" for event in events)
    cut = data.draw(st.integers(0, len(text)))
    found, problems = parse_lines(text[:cut].encode().split(b"\n"))
    assert found == events[: len(found)]
    whole = text[:cut].count("\n")
    assert len(found) in (whole, whole + 1)
    assert len(problems) <= 1
