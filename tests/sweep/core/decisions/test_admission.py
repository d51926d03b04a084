"""Likeness of failures, blame, and that nothing waits for what never comes: pure parts of what holds attempts back."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweep.core.attempts.attempt import AttemptKey, Outcome
from sweep.core.attempts.blame import Blame, bad_nodes, evidence_of, excludable, unexpired
from sweep.core.attempts.history import History, fold
from sweep.core.attempts.ledger import CancelRequested, Ended, Event, Reopened, Reserved, Submitted
from sweep.core.attempts.outcome_rules import OUTCOME_RULES
from sweep.core.cells.cell import cell_id
from sweep.core.decisions.admission import AdmissionBounds, admitted, alike, passes_with_time
from sweep.core.decisions.plan import TO_SUBMIT, Action, ActionKind, decide
from sweep.core.settings.policy import Policy
from sweep.core.settings.site import SizeLimit
from tests.fakes import TINY, tiny_cell


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
    assert list(unexpired(blames, now=1000.0 + 3600, expiry_h=1.0)) == ["n1"]


def test_the_evidence_shows_the_latest_reason_and_the_number_of_cells() -> None:
    later = replace(_blame("n1", "b", time=2000.0), reason="Xid 79", outcome=Outcome.DEVICE_ERROR)
    assert evidence_of(unexpired([_blame("n1", "a"), later], now=2001.0, expiry_h=1.0)) == [
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


OTHER = replace(TINY, name="other")
CELLS = {
    cell_id(cell): cell
    for cell in [
        tiny_cell(nodes=2),
        tiny_cell(nodes=1, gpus_per_node=4),
        *(tiny_cell(nodes=4, seq_len=length) for length in (32, 64)),
        *(tiny_cell(nodes=nodes, model=OTHER) for nodes in (1, 8)),
    ]
}


def _ended(name: str, outcomes: Sequence[Outcome], *, is_held: bool, is_reopened: bool) -> Iterator[Event]:
    """One cell's attempts, all over; what was cancelled or asked for again since."""
    for number, outcome in enumerate(outcomes, start=1):
        key, submission = AttemptKey(cell_id=name, repeat=1, attempt=number), f"{name}-{number}"
        yield Reserved(time=1.0, submission=submission, tasks=(key,), gpu_hours=0.5, gpus=CELLS[name].gpus)
        yield Submitted(time=1.0, submission=submission, jobs=(submission,))
        yield Ended(time=2.0, key=key, outcome=outcome, reason="boom", gpu_seconds=600.0)
    if is_held:
        yield CancelRequested(time=3.0, keys=(), repeats=((name, 1),))
    if is_reopened:
        yield Reopened(time=4.0, repeats=((name, 1),))


HISTORIES = st.tuples(
    *(
        st.builds(
            _ended,
            st.just(name),
            st.lists(st.sampled_from(Outcome), max_size=3),
            is_held=st.booleans(),
            is_reopened=st.booleans(),
        )
        for name in CELLS
    )
).map(lambda histories: fold(event for events in histories for event in events))
LIMITS = st.none() | st.integers(1, 8)
POLICIES = st.builds(
    Policy,
    canary=st.booleans(),
    pause_after=st.integers(0, 3),
    infer_oom=st.booleans(),
    max_concurrent_jobs=LIMITS,
    max_concurrent_gpus=LIMITS,
    budget_gpu_hours=st.none() | st.floats(0.1, 20.0),
)
LONG_AFTER = 1e9
"""By then every back-off has run out."""
BOUNDS = st.builds(
    AdmissionBounds,
    now=st.just(LONG_AFTER),
    maintenance_at=st.none() | st.floats(LONG_AFTER, LONG_AFTER + 3600.0),
    free_tasks=st.none() | st.integers(1, 8),
    canary_helps=st.booleans(),
    most_jobs=LIMITS,
    size_limits=st.lists(st.builds(SizeLimit, name=st.just("QOS"), nodes=LIMITS, gpus=LIMITS), max_size=1),
    ruled_out=st.dictionaries(st.sampled_from(sorted(CELLS)), st.just(("oom_predicted", "too large")), max_size=2),
)


@given(history=HISTORIES, policy=POLICIES, bounds=BOUNDS)
def test_with_nothing_in_flight_there_is_something_to_submit_or_nothing_waits(
    history: History, policy: Policy, bounds: AdmissionBounds
) -> None:
    actions = decide(CELLS, repeats=1, history=history, rules=OUTCOME_RULES, walltime_min=60)
    held = admitted(actions, CELLS, history, policy, bounds)
    waits = [action for action in held if action.kind is ActionKind.LATER]
    assert not waits or any(action.kind in TO_SUBMIT for action in held), waits


@given(
    history=HISTORIES, policy=POLICIES, bounds=BOUNDS, now=st.floats(2.0, 4000.0), later_s=st.floats(0.0, LONG_AFTER)
)
def test_time_alone_changes_nothing_where_no_back_off_runs_and_no_maintenance_comes(
    history: History, policy: Policy, bounds: AdmissionBounds, now: float, later_s: float
) -> None:
    actions = decide(CELLS, repeats=1, history=history, rules=OUTCOME_RULES, walltime_min=60)

    def at(time: float) -> list[Action]:
        return admitted(actions, CELLS, history, policy, replace(bounds, now=time))

    first = at(now)
    assert passes_with_time(first, bounds) or at(now + later_s) == first


def test_what_never_fits_the_limit_on_gpus_is_no_canary_that_others_wait_for() -> None:
    small, large = tiny_cell(nodes=2), tiny_cell(nodes=4)
    cells = {cell_id(cell): cell for cell in (small, large)}
    history = fold(())
    actions = decide(cells, repeats=1, history=history)
    held = admitted(actions, cells, history, Policy(max_concurrent_gpus=1), AdmissionBounds(now=0.0))
    assert [(action.kind, action.hole) for action in held] == [(ActionKind.PAUSED, "over_limit")] * 2
    assert "it needs 2 GPUs; max_concurrent_gpus=1 never lets it run" in held[0].reason
