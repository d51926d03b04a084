from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweep.core.attempt import AttemptKey, Outcome
from sweep.core.ledger import (
    CancelRequested,
    Ended,
    Event,
    History,
    Refused,
    Released,
    Reopened,
    Reserved,
    Submitted,
    fold,
    parse_event,
    read_lines,
    render_event,
)


def key(attempt: int = 1, *, repeat: int = 1, cell: str = "c") -> AttemptKey:
    return AttemptKey(cell_id=cell, repeat=repeat, attempt=attempt)


def reserved(name: str, *keys: AttemptKey, time: float = 1.0) -> Reserved:
    return Reserved(time=time, submission=name, tasks=keys, gpu_hours=8.0, gpus=16)


def submitted(name: str, *jobs: str) -> Submitted:
    return Submitted(time=2.0, submission=name, jobs=jobs)


def ended(attempt: AttemptKey, outcome: Outcome = Outcome.SUCCEEDED, reason: str = "") -> Ended:
    return Ended(time=9.0, key=attempt, outcome=outcome, reason=reason, gpu_seconds=64.0, evidence={"state": "X"})


KEYS = st.builds(AttemptKey, cell_id=st.sampled_from(["a", "b"]), repeat=st.integers(1, 2), attempt=st.integers(1, 3))
TIMES = st.floats(min_value=0, max_value=2e9)
NAMES = st.sampled_from(["s1", "s2", "s3"])
EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(
        Reserved,
        time=TIMES,
        submission=NAMES,
        tasks=st.lists(KEYS, max_size=3).map(tuple),
        gpu_hours=TIMES,
        gpus=st.integers(1, 2048),
    ),
    st.builds(Submitted, time=TIMES, submission=NAMES, jobs=st.lists(st.text(max_size=5), max_size=3).map(tuple)),
    st.builds(Refused, time=TIMES, submission=NAMES, reason=st.text(max_size=9)),
    st.builds(Released, time=TIMES, submission=NAMES, reason=st.text(max_size=9)),
    st.builds(
        Ended,
        time=TIMES,
        key=KEYS,
        outcome=st.sampled_from(Outcome),
        reason=st.text(max_size=9),
        gpu_seconds=st.none() | TIMES,
        evidence=st.dictionaries(st.text(max_size=3), st.none() | st.integers() | st.text(max_size=3), max_size=2),
    ),
    st.builds(CancelRequested, time=TIMES, keys=st.lists(KEYS, max_size=2).map(tuple)),
    st.builds(
        Reopened,
        time=TIMES,
        repeats=st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(1, 2)), max_size=2).map(tuple),
    ),
)


# --- lines


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
    }


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
    events, problems = read_lines(torn)
    assert events == [reserved("s1", key()), ended(key())]
    assert [problem.split(" cannot")[0] for problem in problems] == ["ledger line 2", "ledger line 4", "ledger line 6"]
    assert "the rest was kept" in problems[0]


@given(st.lists(EVENTS, max_size=6), st.data())
def test_a_ledger_cut_anywhere_gives_the_events_before_the_cut(events: list[Event], data: st.DataObject) -> None:
    text = "".join(render_event(event) + "\n" for event in events)
    cut = data.draw(st.integers(0, len(text)))
    found, problems = read_lines(text[:cut].split("\n"))
    assert found == events[: len(found)]
    whole = text[:cut].count("\n")
    assert len(found) in (whole, whole + 1)
    assert len(problems) <= 1


# --- the history


def test_an_attempt_goes_from_reservation_to_its_end() -> None:
    history = fold([reserved("s1", key())])
    attempt = history.attempt(key())
    assert attempt is not None
    assert (attempt.in_flight, attempt.job_id, attempt.gpus, attempt.gpu_hours) == (True, None, 16, 8.0)
    history.apply(submitted("s1", "42"))
    assert (attempt.in_flight, attempt.job_id) == (True, "42")
    history.apply(ended(key(), Outcome.NODE_FAIL, "n7"))
    assert (attempt.in_flight, attempt.outcome, attempt.reason) == (False, Outcome.NODE_FAIL, "n7")
    assert (attempt.gpu_seconds, attempt.ended_at, attempt.evidence) == (64.0, 9.0, {"state": "X"})
    assert history.problems == []


def test_jobs_belong_to_attempts_by_array_index() -> None:
    history = fold([reserved("s1", key(cell="a"), key(cell="b")), submitted("s1", "7_0", "7_1")])
    assert [(a.index, a.key.cell_id, a.job_id) for a in history.submissions["s1"]] == [(0, "a", "7_0"), (1, "b", "7_1")]
    assert [attempt.key.cell_id for attempt in history.in_flight()] == ["a", "b"]


def test_a_refused_submission_is_over_and_cost_nothing() -> None:
    history = fold([reserved("s1", key()), Refused(time=3.0, submission="s1", reason="Invalid partition")])
    attempt = history.attempt(key())
    assert attempt is not None
    assert (attempt.outcome, attempt.reason) == (Outcome.REJECTED_BY_SCHEDULER, "Invalid partition")
    assert attempt.gpu_seconds == 0.0


def test_a_released_reservation_did_not_happen_but_its_number_is_spent() -> None:
    history = fold([reserved("s1", key()), Released(time=3.0, submission="s1", reason="crash")])
    repeat = history.of("c", 1)
    assert (repeat.last, repeat.highest_number, repeat.succeeded) == (None, 1, None)
    assert list(history.in_flight()) == []


def test_a_cancel_is_remembered_before_the_attempt_is_over() -> None:
    history = fold([reserved("s1", key()), CancelRequested(time=2.0, keys=(key(),))])
    attempt = history.attempt(key())
    assert attempt is not None
    assert attempt.is_cancel_requested
    assert attempt.in_flight


@pytest.mark.parametrize("later", [Outcome.LOST, Outcome.CANCELLED, Outcome.OOM_DEVICE])
def test_a_finished_measurement_stands_whatever_is_said_later(later: Outcome) -> None:
    history = fold([reserved("s1", key()), ended(key()), ended(key(), later)])
    attempt = history.attempt(key())
    assert attempt is not None
    assert attempt.outcome is Outcome.SUCCEEDED
    assert history.of("c", 1).succeeded is attempt


def test_a_measurement_that_turns_up_late_counts() -> None:
    history = fold([reserved("s1", key()), ended(key(), Outcome.LOST), ended(key())])
    assert history.of("c", 1).succeeded is not None


# --- contradictions lose nothing and are told


def test_an_end_whose_reservation_is_lost_still_counts_and_spends_its_number() -> None:
    history = fold([ended(key(3))])
    repeat = history.of("c", 1)
    assert repeat.succeeded is not None
    assert repeat.highest_number == 3
    assert history.problems == ["attempt c/1/3 ended but was never reserved"]


def test_a_reservation_that_comes_late_takes_up_what_was_said_before() -> None:
    history = fold([submitted("s1", "7", "8"), ended(key(1, cell="a"))])
    assert list(history.unreserved) == ["s1"]
    history.apply(reserved("s1", key(1, cell="a"), key(1, cell="b")))
    assert history.unreserved == {}
    first, second = history.submissions["s1"]
    assert (first.outcome, first.job_id, first.gpus, first.index) == (Outcome.SUCCEEDED, "7", 16, 0)
    assert (second.in_flight, second.job_id) == (True, "8")
    assert len(history.of("a", 1).attempts) == 1


def test_attempts_are_in_the_order_of_their_numbers_even_where_a_reservation_comes_late() -> None:
    history = fold(
        [
            reserved("s2", key(2)),
            ended(key(2), Outcome.NODE_FAIL),
            reserved("s1", key(1)),
            ended(key(1), Outcome.LOST),
        ]
    )
    last = history.of("c", 1).last
    assert last is not None
    assert last.key == key(2)


def test_a_job_that_turns_up_after_its_release_is_in_flight_again() -> None:
    gone = Released(time=3.0, submission="s1", reason="not found")
    history = fold([reserved("s1", key()), gone, submitted("s1", "7")])
    assert [attempt.job_id for attempt in history.in_flight()] == ["7"]
    assert history.problems == ["attempt c/1/1 was given up, yet is job 7"]


def test_a_job_that_turns_up_after_its_refusal_is_in_flight_again() -> None:
    no = Refused(time=3.0, submission="s1", reason="no")
    history = fold([reserved("s1", key()), no, submitted("s1", "7")])
    assert [attempt.job_id for attempt in history.in_flight()] == ["7"]


@pytest.mark.parametrize("event", [Released, Refused])
def test_what_is_a_job_is_neither_released_nor_refused(event: type[Released] | type[Refused]) -> None:
    history = fold([reserved("s1", key()), submitted("s1", "7"), event(time=3.0, submission="s1", reason="?")])
    assert [attempt.job_id for attempt in history.in_flight()] == ["7"]
    assert len(history.problems) == 1


def test_a_release_does_not_undo_a_measurement() -> None:
    history = fold([reserved("s1", key()), ended(key()), Released(time=3.0, submission="s1", reason="?")])
    attempt = history.attempt(key())
    assert attempt is not None
    assert not attempt.released
    assert attempt.reason == ""
    assert history.problems == ["attempt c/1/1 did happen, yet was released"]


def test_an_attempt_that_ends_after_its_release_did_happen() -> None:
    gone = Released(time=3.0, submission="s1", reason="not found")
    history = fold([reserved("s1", key()), gone, ended(key(), Outcome.NODE_FAIL)])
    last = history.of("c", 1).last
    assert last is not None
    assert last.outcome is Outcome.NODE_FAIL
    assert history.problems == ["attempt c/1/1 was released, yet ended"]


def test_a_number_that_two_submissions_reserve_is_told_and_ends_in_both() -> None:
    history = fold([reserved("s1", key()), reserved("s2", key())])
    assert history.problems == ["attempt c/1/1 was reserved by s1 and by s2"]
    history.apply(ended(key()))
    assert list(history.in_flight()) == []


def test_a_second_flight_of_a_repeat_is_told() -> None:
    history = fold([reserved("s1", key(1)), reserved("s2", key(2))])
    assert history.problems == ["attempt c/1/2 was reserved while c/1/1 was in flight"]
    assert len(list(history.in_flight())) == 2


def test_a_submission_reserved_twice_counts_once() -> None:
    history = fold([reserved("s1", key()), reserved("s1", key())])
    assert len(history.of("c", 1).attempts) == 1
    assert history.problems == ["submission s1 was reserved twice"]


def test_fewer_jobs_than_attempts_are_told_and_the_rest_stays_unknown() -> None:
    history = fold([reserved("s1", key(cell="a"), key(cell="b")), submitted("s1", "7")])
    assert [attempt.job_id for attempt in history.in_flight()] == ["7", None]
    assert history.problems == ["submission s1 was given 1 jobs for 2 attempts"]


def test_a_cancel_of_what_was_never_reserved_is_told() -> None:
    assert fold([CancelRequested(time=1.0, keys=(key(),))]).problems == [
        "attempt c/1/1 was cancelled but never reserved"
    ]


def test_nothing_is_known_of_what_was_never_run() -> None:
    history = History()
    assert history.attempt(key()) is None
    assert (history.of("c", 1).last, history.of("c", 1).highest_number) == (None, 0)
    assert history.repeats == {}


# --- reopening


def test_reopening_counts_retries_anew() -> None:
    before = [reserved("s1", key(1)), ended(key(1), Outcome.OOM_DEVICE)]
    history = fold([*before, Reopened(time=5.0, repeats=(("c", 1),))])
    assert history.of("c", 1).reopened_after == 1
    assert history.of("c", 1).ended(Outcome.OOM_DEVICE) == 0


def test_an_attempt_in_flight_is_not_what_was_reopened() -> None:
    before = [reserved("s1", key(1)), ended(key(1), Outcome.LOST), reserved("s2", key(2))]
    history = fold([*before, Reopened(time=5.0, repeats=(("c", 1),)), ended(key(2), Outcome.OOM_DEVICE)])
    assert history.of("c", 1).reopened_after == 1
    assert history.of("c", 1).ended(Outcome.OOM_DEVICE) == 1


def test_reopening_what_was_never_run_changes_nothing() -> None:
    assert fold([Reopened(time=5.0, repeats=(("c", 1),))]).of("c", 1).reopened_after == 0


# --- properties of the fold


def _facts(history: History) -> object:
    return {repeat: [replace(attempt) for attempt in past.attempts] for repeat, past in history.repeats.items()}, {
        repeat: past.reopened_after for repeat, past in history.repeats.items()
    }


@given(st.lists(EVENTS, max_size=12))
def test_any_events_fold_and_in_two_parts_as_in_one(events: list[Event]) -> None:
    whole = fold(events)
    parts = fold(events[: len(events) // 2])
    for event in events[len(events) // 2 :]:
        parts.apply(event)
    assert _facts(parts) == _facts(whole)
    assert parts.problems == whole.problems


@given(st.lists(EVENTS, max_size=12))
def test_a_line_that_was_written_twice_counts_once(events: list[Event]) -> None:
    assert _facts(fold([event for event in events for _ in range(2)])) == _facts(fold(events))


@given(st.lists(EVENTS, max_size=12), st.lists(EVENTS, max_size=12))
def test_no_measurement_is_ever_lost(events: list[Event], more: list[Event]) -> None:
    def measured(history: History) -> set[AttemptKey]:
        return {
            attempt.key
            for past in history.repeats.values()
            for attempt in past.attempts
            if attempt.outcome is Outcome.SUCCEEDED
        }

    written = {event.key for event in events if isinstance(event, Ended) and event.outcome is Outcome.SUCCEEDED}
    assert measured(fold(events)) == written
    assert measured(fold([*events, *more])) >= written


@given(st.lists(EVENTS, max_size=16))
def test_a_number_once_reserved_stays_spent(events: list[Event]) -> None:
    history = History()
    highest: dict[tuple[str, int], int] = {}
    for event in events:
        history.apply(event)
        for repeat, past in history.repeats.items():
            assert past.highest_number >= highest.get(repeat, 0)
            highest[repeat] = past.highest_number
            numbers = [attempt.key.attempt for attempt in past.attempts]
            assert numbers == sorted(numbers)
