from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from sweep.core.attempts.attempt import AttemptKey, Outcome
from sweep.core.attempts.history import History, fold
from sweep.core.attempts.ledger import (
    CancelRequested,
    Ended,
    Event,
    Refused,
    Released,
    Reopened,
    Reserved,
    Submitted,
    parse_lines,
    render_event,
)
from sweep.core.attempts.outcome_rules import OUTCOME_RULES, Disposition, OutcomeRule
from sweep.core.decisions.plan import TO_SUBMIT, Action, ActionKind, decide


class Story:
    """The events of one repeat, told attempt by attempt."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.number = 0

    def reserve(self, job: str | None = "7") -> Story:
        self.number += 1
        name = f"s{self.number}"
        self.events.append(Reserved(time=1.0, submission=name, tasks=(self.key,), gpu_hours=1.0, gpus=8))
        if job is not None:
            self.events.append(Submitted(time=2.0, submission=name, jobs=(job,)))
        return self

    def end(self, outcome: Outcome, reason: str = "", *blamed: str) -> Story:
        self.reserve()
        evidence = {"blamed": list(blamed)}
        return self.say(
            Ended(time=3.0, key=self.key, outcome=outcome, reason=reason, gpu_seconds=None, evidence=evidence)
        )

    def release(self) -> Story:
        self.reserve(job=None)
        return self.say(Released(time=3.0, submission=f"s{self.number}", reason="crash"))

    def refuse(self) -> Story:
        self.reserve(job=None)
        return self.say(Refused(time=3.0, submission=f"s{self.number}", reason="Invalid account"))

    def reopen(self) -> Story:
        return self.say(Reopened(time=4.0, repeats=(("c", 1),)))

    def say(self, event: Event) -> Story:
        self.events.append(event)
        return self

    @property
    def key(self) -> AttemptKey:
        return AttemptKey(cell_id="c", repeat=1, attempt=self.number)

    def decision(self) -> Action:
        (action,) = decide(["c"], repeats=1, history=fold(self.events))
        return action


def shown(action: Action) -> tuple[ActionKind, int, str]:
    return action.kind, action.attempt, action.reason


def test_what_was_not_run_yet_is_submitted_once_for_each_repeat_in_the_order_of_the_cells() -> None:
    actions = decide(["b", "a"], repeats=2, history=History())
    assert [(action.cell_id, action.repeat, action.attempt) for action in actions] == [
        ("b", 1, 1),
        ("b", 2, 1),
        ("a", 1, 1),
        ("a", 2, 1),
    ]
    assert {(action.kind, action.reason, action.outcome) for action in actions} == {
        (ActionKind.SUBMIT, "not run yet", None)
    }


def test_a_cell_that_two_points_name_is_submitted_once() -> None:
    assert len(decide(["a", "b", "a"], repeats=1, history=History())) == 2


def test_a_reservation_is_waited_for_even_before_it_has_a_job() -> None:
    action = Story().reserve(job=None).decision()
    assert shown(action) == (ActionKind.WAIT, 1, "reserved as s1, not yet known to the scheduler")


def test_a_job_is_waited_for() -> None:
    assert shown(Story().reserve("42").decision()) == (ActionKind.WAIT, 1, "in flight as job 42")


def test_a_measurement_is_done_whatever_else_happened() -> None:
    story = Story().end(Outcome.NODE_FAIL).end(Outcome.SUCCEEDED).reopen()
    assert shown(story.decision()) == (ActionKind.DONE, 2, "measured")


def test_a_measurement_is_done_even_while_another_attempt_is_in_flight() -> None:
    story = Story().reserve().reserve()
    story.say(Ended(time=3.0, key=story.key, outcome=Outcome.SUCCEEDED, reason="", gpu_seconds=None))
    assert shown(story.decision()) == (ActionKind.DONE, 2, "measured")


def test_of_two_attempts_in_flight_both_are_waited_for() -> None:
    story = Story().reserve("7").reserve("8")
    assert shown(story.decision()) == (ActionKind.WAIT, 1, "in flight as job 7")
    story.say(
        Ended(
            time=3.0,
            key=AttemptKey(cell_id="c", repeat=1, attempt=1),
            outcome=Outcome.LOST,
            reason="",
            gpu_seconds=None,
        )
    )
    assert shown(story.decision()) == (ActionKind.WAIT, 2, "in flight as job 8")


def test_an_attempt_whose_cancel_was_asked_is_waited_for() -> None:
    story = Story().reserve()
    story.say(CancelRequested(time=3.0, keys=(story.key,)))
    assert story.decision().kind is ActionKind.WAIT


@pytest.mark.parametrize("outcome", [outcome for outcome, rule in OUTCOME_RULES.items() if rule.max_retries])
def test_what_a_retry_can_cure_is_tried_as_often_as_its_rule_says_and_then_given_up(outcome: Outcome) -> None:
    most = OUTCOME_RULES[outcome].max_retries
    story = Story()
    for used in range(1, most + 1):
        action = story.end(outcome, "n7").decision()
        assert shown(action) == (ActionKind.RETRY, used + 1, f"{outcome}: retry {used} of {most} (n7)")
        assert action.outcome is outcome
    action = story.end(outcome, "n7").decision()
    assert shown(action) == (ActionKind.GIVE_UP, most + 1, f"{outcome} {most + 1} times: n7")


@pytest.mark.parametrize(
    ("outcome", "kind"),
    [
        (Outcome.OOM_DEVICE, ActionKind.EXPLAINED),
        (Outcome.OOM_HOST, ActionKind.EXPLAINED),
        (Outcome.TRAINER_ERROR, ActionKind.GIVE_UP),
        (Outcome.REJECTED_BY_SCHEDULER, ActionKind.GIVE_UP),
        (Outcome.CANCELLED, ActionKind.HOLD),
    ],
)
def test_what_would_fail_again_is_not_tried_again(outcome: Outcome, kind: ActionKind) -> None:
    action = Story().end(outcome, "why").decision()
    assert shown(action) == (kind, 1, f"{outcome}: why")
    assert action.outcome is outcome


@pytest.mark.parametrize("outcome", Outcome)
def test_every_outcome_leads_to_a_decision_with_a_reason(outcome: Outcome) -> None:
    assert Story().end(outcome).decision().reason


@pytest.mark.parametrize("disposition", Disposition)
def test_every_disposition_has_its_action(disposition: Disposition) -> None:
    rules = {**OUTCOME_RULES, Outcome.LOST: OutcomeRule(max_retries=0, disposition=disposition, shown_as="x")}
    history = fold(Story().end(Outcome.LOST).events)
    (action,) = decide(["c"], repeats=1, history=history, rules=rules)
    assert action.kind not in (*TO_SUBMIT, ActionKind.WAIT)


def test_a_refused_submission_is_given_up_in_the_schedulers_words() -> None:
    action = Story().refuse().decision()
    assert shown(action) == (ActionKind.GIVE_UP, 1, "REJECTED_BY_SCHEDULER: Invalid account")


def test_each_outcome_counts_its_own_retries() -> None:
    story = Story().end(Outcome.COMM_FAILURE).end(Outcome.COMM_FAILURE).end(Outcome.NODE_FAIL)
    assert shown(story.decision()) == (ActionKind.RETRY, 4, "NODE_FAIL: retry 1 of 5")


def test_a_reservation_that_was_released_counts_for_nothing_but_its_number() -> None:
    assert shown(Story().release().decision()) == (ActionKind.SUBMIT, 2, "not run yet")
    story = Story().end(Outcome.LOST).end(Outcome.LOST).release().release()
    assert shown(story.decision()) == (ActionKind.RETRY, 5, "LOST: retry 2 of 2")


def test_what_was_given_up_is_tried_again_when_it_is_asked_for() -> None:
    story = Story().end(Outcome.OOM_DEVICE).reopen()
    assert shown(story.decision()) == (ActionKind.RETRY, 2, "asked for again after OOM_DEVICE")
    assert shown(story.release().decision()) == (ActionKind.RETRY, 3, "asked for again after OOM_DEVICE")
    assert shown(story.end(Outcome.OOM_DEVICE).decision()) == (ActionKind.EXPLAINED, 3, "OOM_DEVICE")


def test_a_reopened_repeat_has_all_its_retries_again() -> None:
    story = Story().end(Outcome.LOST).end(Outcome.LOST).end(Outcome.LOST)
    assert story.decision().kind is ActionKind.GIVE_UP
    story.reopen().end(Outcome.LOST)
    assert shown(story.decision()) == (ActionKind.RETRY, 5, "LOST: retry 1 of 2")


def test_reopening_while_an_attempt_is_in_flight_does_not_repeat_that_one() -> None:
    story = Story().end(Outcome.CANCELLED).reserve().reopen()
    story.say(Ended(time=3.0, key=story.key, outcome=Outcome.OOM_DEVICE, reason="", gpu_seconds=None))
    assert story.decision().kind is ActionKind.EXPLAINED


def test_an_end_whose_reservation_is_lost_does_not_submit_its_number_again() -> None:
    story = Story().end(Outcome.NODE_FAIL)
    (action,) = decide(["c"], repeats=1, history=fold(story.events[2:]))
    assert (action.kind, action.attempt) == (ActionKind.RETRY, 2)


def test_a_retry_keeps_away_from_every_node_blamed_since_the_repeat_was_last_reopened() -> None:
    story = Story().end(Outcome.DEVICE_ERROR, "", "n1").end(Outcome.DEVICE_ERROR, "", "n2")
    assert story.decision().avoid == ("n2", "n1")
    assert story.end(Outcome.PREEMPTED).decision().avoid == ("n2", "n1"), "what came between changes nothing"
    assert story.end(Outcome.COMM_FAILURE, "", "n3").decision().avoid == ("n2", "n1"), "its rule avoids no nodes"
    assert story.reopen().decision().avoid == ()
    assert story.end(Outcome.NODE_FAIL, "", "n4").decision().avoid == ("n4",)


def test_every_outcomes_own_factor_lengthens_the_walltime() -> None:
    rules = {**OUTCOME_RULES, Outcome.PREEMPTED: replace(OUTCOME_RULES[Outcome.PREEMPTED], walltime_factor=1.5)}

    def minutes(story: Story, longest: int | None = None) -> int:
        history = fold(story.events)
        (action,) = decide(
            ["c"], repeats=1, history=history, rules=rules, walltime_min=10, longest_walltime_min=longest
        )
        return action.walltime_min

    story = Story().end(Outcome.PREEMPTED)
    assert minutes(story) == 15
    assert minutes(story.end(Outcome.TIMEOUT)) == 30
    assert minutes(story.end(Outcome.PREEMPTED)) == 45
    assert minutes(story, longest=40) == 40
    assert minutes(story.reopen()) == 10


@contextmanager
def _numbers_are_new(seen: set[AttemptKey], keys: tuple[AttemptKey, ...]) -> Iterator[None]:
    assert not seen & set(keys), "an attempt number was used twice"
    seen.update(keys)
    yield


class Sweeps(RuleBasedStateMachine):
    """An orchestrator that obeys the plan, a scheduler that does what it likes, and crashes between any two lines."""

    waiting = Bundle("waiting")
    running = Bundle("running")

    @initialize()
    def begin(self) -> None:
        self.lines: list[bytes] = []
        self.used: set[AttemptKey] = set()
        self.in_flight: set[AttemptKey] = set()
        self.measured: set[tuple[str, int]] = set()
        self.submissions: dict[str, tuple[AttemptKey, ...]] = {}

    def history(self) -> History:
        """What an orchestrator knows that has just been started."""
        events, problems = parse_lines(self.lines)
        assert problems == []
        history = fold(events)
        assert history.problems == []
        return history

    def write(self, event: Event) -> None:
        self.lines.append(render_event(event).encode())

    def actions(self) -> list[Action]:
        return decide(["a", "b"], repeats=2, history=self.history())

    @rule(target=waiting, take=st.integers(1, 4))
    def obey(self, take: int) -> object:
        wanted = [action for action in self.actions() if action.kind in TO_SUBMIT][:take]
        if not wanted:
            return multiple()
        keys = tuple(AttemptKey(cell_id=a.cell_id, repeat=a.repeat, attempt=a.attempt) for a in wanted)
        for key in keys:
            assert all((key.cell_id, key.repeat) != (other.cell_id, other.repeat) for other in self.in_flight)
            assert (key.cell_id, key.repeat) not in self.measured
        with _numbers_are_new(self.used, keys):
            name = f"s{len(self.submissions)}"
            self.submissions[name] = keys
            self.in_flight.update(keys)
            self.write(Reserved(time=1.0, submission=name, tasks=keys, gpu_hours=1.0, gpus=1))
        return name

    @rule(target=running, name=consumes(waiting))
    def accept(self, name: str) -> object:
        keys = self.submissions[name]
        self.write(Submitted(time=2.0, submission=name, jobs=tuple(f"{name}_{i}" for i in range(len(keys)))))
        return multiple(*keys)

    @rule(name=consumes(waiting), happened=st.booleans())
    def refuse_or_release(self, name: str, happened: bool) -> None:
        kind = Refused if happened else Released
        self.write(kind(time=2.0, submission=name, reason="no"))
        self.in_flight.difference_update(self.submissions[name])

    @rule(key=running)
    def cancel(self, key: AttemptKey) -> None:
        self.write(CancelRequested(time=2.0, keys=(key,)))

    @rule(key=consumes(running), outcome=st.sampled_from(Outcome))
    def end(self, key: AttemptKey, outcome: Outcome) -> None:
        self.write(Ended(time=3.0, key=key, outcome=outcome, reason="", gpu_seconds=None))
        self.in_flight.discard(key)
        if outcome is Outcome.SUCCEEDED:
            self.measured.add((key.cell_id, key.repeat))

    @rule(repeat=st.tuples(st.sampled_from(["a", "b"]), st.integers(1, 2)))
    def reopen(self, repeat: tuple[str, int]) -> None:
        self.write(Reopened(time=4.0, repeats=(repeat,)))

    @invariant()
    def there_is_one_action_for_every_repeat(self) -> None:
        found = {(action.cell_id, action.repeat): action for action in self.actions()}
        assert set(found) == {(cell, repeat) for cell in "ab" for repeat in (1, 2)}
        for repeat, action in found.items():
            if repeat in self.measured:
                assert action.kind is ActionKind.DONE
            elif any((key.cell_id, key.repeat) == repeat for key in self.in_flight):
                assert action.kind is ActionKind.WAIT
            else:
                assert action.kind not in (ActionKind.DONE, ActionKind.WAIT)

    @invariant()
    def the_history_knows_what_is_in_flight(self) -> None:
        assert {attempt.key for attempt in self.history().in_flight()} == self.in_flight


Sweeps.TestCase.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
TestSweeps = Sweeps.TestCase
