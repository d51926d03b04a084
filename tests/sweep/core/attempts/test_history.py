from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweep.core.attempts.attempt import AttemptKey, Outcome
from sweep.core.attempts.history import History, fold
from sweep.core.attempts.ledger import (
    CancelRequested,
    Ended,
    Event,
    Refused,
    Released,
    Reopened,
    Skipped,
)
from tests.events import EVENTS, ended, key, reserved, submitted


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
def test_a_finished_measurement_stands_whatever_is_reported_later(later: Outcome) -> None:
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


def test_a_reservation_that_comes_late_takes_up_what_was_reported_before() -> None:
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


def test_a_number_that_two_submissions_reserve_is_reported_and_ends_in_both() -> None:
    history = fold([reserved("s1", key()), reserved("s2", key())])
    assert history.problems == ["attempt c/1/1 was reserved by s1 and by s2"]
    history.apply(ended(key()))
    assert list(history.in_flight()) == []


def test_a_second_flight_of_a_repeat_is_reported() -> None:
    history = fold([reserved("s1", key(1)), reserved("s2", key(2))])
    assert history.problems == ["attempt c/1/2 was reserved while c/1/1 was in flight"]
    assert len(list(history.in_flight())) == 2


def test_a_submission_reserved_twice_counts_once() -> None:
    history = fold([reserved("s1", key()), reserved("s1", key())])
    assert len(history.of("c", 1).attempts) == 1
    assert history.problems == ["submission s1 was reserved twice"]


def test_fewer_jobs_than_attempts_are_reported_and_the_rest_stays_unknown() -> None:
    history = fold([reserved("s1", key(cell="a"), key(cell="b")), submitted("s1", "7")])
    assert [attempt.job_id for attempt in history.in_flight()] == ["7", None]
    assert history.problems == ["submission s1 was given 1 jobs for 2 attempts"]


def test_a_cancel_of_what_was_never_reserved_is_reported() -> None:
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


def test_what_was_skipped_and_is_asked_for_again_is_not_skipped_any_more() -> None:
    repeats = (("c", 1),)
    skipped = Skipped(time=4.0, repeats=repeats, kind="paused", reason="three failed")
    assert fold([skipped]).of("c", 1).skipped == ("paused", "three failed")
    assert fold([skipped, Reopened(time=5.0, repeats=repeats)]).of("c", 1).skipped is None


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
