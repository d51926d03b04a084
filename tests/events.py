"""Events of a ledger, for tests."""

from __future__ import annotations

from hypothesis import strategies as st

from sweep.core.attempts.attempt import AttemptKey, Outcome, Phase, StopKind
from sweep.core.attempts.ledger import (
    CancelRequested,
    Ended,
    Event,
    Refused,
    Released,
    Reopened,
    Requeued,
    Reserved,
    Sighted,
    Skipped,
    StopRequested,
    Submitted,
    Withdrawn,
)


def key(attempt: int = 1, *, repeat: int = 1, cell: str = "c") -> AttemptKey:
    return AttemptKey(cell_id=cell, repeat=repeat, attempt=attempt)


def reserved(name: str, *keys: AttemptKey, time: float = 1.0) -> Reserved:
    return Reserved(time=time, submission=name, tasks=keys, gpu_hours=8.0, gpus=16)


def submitted(name: str, *jobs: str) -> Submitted:
    return Submitted(time=2.0, submission=name, jobs=jobs)


def ended(attempt: AttemptKey, outcome: Outcome = Outcome.SUCCEEDED, reason: str = "") -> Ended:
    return Ended(time=9.0, key=attempt, outcome=outcome, reason=reason, gpu_seconds=64.0, evidence={"state": "X"})


CELLS = st.sampled_from(["a" * 16, "b" * 16])
KEYS = st.builds(AttemptKey, cell_id=CELLS, repeat=st.integers(1, 2), attempt=st.integers(1, 3))
TIMES = st.floats(min_value=0, max_value=2e9)
JOBS = st.from_regex(r"[0-9]{1,9}(_[0-9]{1,3})?", fullmatch=True)
NAMES = st.sampled_from(["s1", "s2", "s3"])
REPEATS = st.lists(st.tuples(CELLS, st.integers(1, 2)), max_size=2).map(tuple)
EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(
        Reserved,
        time=TIMES,
        submission=NAMES,
        tasks=st.lists(KEYS, max_size=3).map(tuple),
        gpu_hours=TIMES,
        gpus=st.integers(1, 2048),
    ),
    st.builds(Submitted, time=TIMES, submission=NAMES, jobs=st.lists(JOBS, max_size=3).map(tuple)),
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
    st.builds(CancelRequested, time=TIMES, keys=st.lists(KEYS, max_size=2).map(tuple), repeats=REPEATS),
    st.builds(
        Reopened,
        time=TIMES,
        repeats=REPEATS,
    ),
    st.builds(StopRequested, time=TIMES, key=KEYS, kind=st.sampled_from(StopKind), reason=st.text(max_size=9)),
    st.builds(Requeued, time=TIMES, key=KEYS, gpu_seconds=TIMES),
    st.builds(Sighted, time=TIMES, keys=st.lists(KEYS, max_size=2).map(tuple), phase=st.sampled_from(Phase)),
    st.builds(Withdrawn, time=TIMES, key=KEYS, reason=st.text(max_size=9)),
    st.builds(Skipped, time=TIMES, repeats=REPEATS, kind=st.text(max_size=9), reason=st.text(max_size=9)),
)
