"""Every record on disk goes through one codec: what was written is read back, and damage is a RecordError."""

from __future__ import annotations

import json
import math
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sweep.adapters.files.lease import Holder
from sweep.adapters.local.jobs import Launched, LocalJob
from sweep.core.attempts.attempt import AttemptKey, ErrorClass, Outcome, RankError
from sweep.core.attempts.blame import Blame
from sweep.core.attempts.ledger import EVENT_NAMES, parse_event, render_event
from sweep.core.cells.cell import cell_id
from sweep.core.encoding.codec import read
from sweep.core.encoding.names import LATEST_TIME, RelativePath, TimeRange
from sweep.core.encoding.plain import plain, type_hints
from sweep.core.encoding.record import Record, RecordError
from sweep.core.jobs.submission import Claim, Submission
from sweep.core.records.attempt_record import AttemptFile, CellFile, parse_error, render_error
from sweep.core.records.preflight_record import Preflight, Traffic
from sweep.core.records.progress import CancelRequest, Progress, SchedulerAway, Step
from sweep.core.records.result import Result
from sweep.core.records.sweep_file import SweepFile
from sweep.core.settings.policy import Policy
from sweep.launch.exits import RankExit, RankExits
from tests.events import ended, key, reserved
from tests.fakes import CPU, result_of, submission_of, tiny_cell, weak_content

CELL = tiny_cell()
ID = "89c3" * 4
COUNTS = st.integers(1, 999)
KEY = AttemptKey(cell_id=cell_id(CELL), repeat=1, attempt=2)
TRAFFIC = Traffic(op="all_gather", group="dp_shard", ranks=4, nodes=2, count=3, bytes=1 << 20)
LOCAL_JOB = LocalJob(
    job_id="s.0",
    submission="s",
    index=0,
    attempt="cells/c/repeat-01/attempt-01",
    nodes=1,
    gpus_per_node=2,
    device_type="cpu",
    threads_per_rank=None,
    walltime_min=5,
    stop_grace_s=15.0,
    python="",
    sources_dir="/s",
    marker="0123456789abcdef",
    submitted_at=1.0,
    launched=(Launched(pid=7, started_at=2.0),),
)
RECORDS: tuple[Record, ...] = (
    CellFile(cell=CELL, device=CPU, key=KEY, run_name="weak-local"),
    AttemptFile(key=KEY, job_id="7", restart=0, hosts=("n1",), pid=5, started_at=1.0, provenance={"command": ["x"]}),
    Progress(step=3, steps=60, time=5.0, tokens_per_s=None),
    result_of(KEY),
    submission_of((KEY,), exclude=("gpu01",)),
    Claim(job_id="42", time=1.5, host="login1"),
    CancelRequest(cells=(ID, "24a9" * 4)),
    SchedulerAway(since=2.5, words="slurmctld does not answer"),
    Preflight(cell_id=ID, rank=0, world_size=4, peak_memory_bytes=5, peak_by_kind={"a": 5}, collectives=(TRAFFIC,)),
    Holder(host="login1", pid=5, started="boot:7", token="t"),
    LOCAL_JOB,
    RankExits(exits=(RankExit(rank=3, exit_code=-9, time=7.0),)),
    weak_content({KEY.cell_id: CELL}, cluster="local"),
)
STEP = Step(step=1, step_time_s=0.5, tokens=8, loss=None, grad_norm=1.0, is_warmup=False)
BLAME = Blame(node="gpu01", time=1.0, cell_id=ID, run="weak", outcome=Outcome.NODE_FAIL, reason="Xid 79")
ERROR = RankError(rank=1, node_rank=0, time=2.0, error_class=ErrorClass.DEVICE, message="Xid 79")
READERS: Mapping[str, tuple[str, Callable[[str], object]]] = {
    **{type(record).__name__: (record.render(), type(record).parse) for record in RECORDS},
    "Step": (STEP.render(), Step.parse),
    "Blame": (BLAME.render(), Blame.parse),
    "RankError": (render_error(ERROR), parse_error),
    "Ended": (render_event(ended(key())), parse_event),
    "Reserved": (render_event(reserved("s", key())), parse_event),
}
NAMES = pytest.mark.parametrize("name", READERS)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
# What json.dumps writes of it is not JSON, or is none that a float can hold.
TEXTS = JSON.map(json.dumps) | st.text() | st.sampled_from(["1e999", "-1e999", "[" * 5000, "9" * 400, '{"a": 1e999}'])


# --- what was written is read back


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_survives_its_file(record: Record) -> None:
    assert type(record).parse(record.render()) == record


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Valid values of a type."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([st.none() if item is type(None) else values_of(item) for item in arguments])
    if origin is typing.Annotated:
        if isinstance(arguments[1], TimeRange):
            return st.floats(0, LATEST_TIME, exclude_max=True)
        return st.just("cells/c") if hint == RelativePath else st.from_regex(arguments[1].pattern, fullmatch=True)
    if origin is tuple:
        if arguments[-1] is Ellipsis:
            return st.lists(values_of(arguments[0]), max_size=2).map(tuple)
        return st.tuples(*map(values_of, arguments))
    if origin is Mapping:
        return st.dictionaries(values_of(arguments[0]), values_of(arguments[1]), max_size=2)
    if hint is AttemptKey:
        return st.builds(
            AttemptKey, cell_id=st.from_regex("[0-9a-f]{16}", fullmatch=True), repeat=COUNTS, attempt=COUNTS
        )
    if is_dataclass(hint):
        # kw_only classes of fields without further conditions.
        return st.fixed_dictionaries(
            {item.name: values_of(type_hints(typing.cast("type", hint))[item.name]) for item in fields(hint)}
        ).map(lambda values: typing.cast("Any", hint)(**values))
    if issubclass(hint, StrEnum):
        return st.sampled_from(list(hint))
    kinds: Mapping[Any, st.SearchStrategy[Any]] = {
        int: st.integers(-(2**63) + 1, 2**63 - 1),
        float: st.floats(allow_nan=False, allow_infinity=False),
        bool: st.booleans(),
        str: st.text(max_size=4),
        object: st.none() | st.integers() | st.text(max_size=4) | st.lists(st.booleans(), max_size=2),
    }
    return kinds[hint]


PLAIN_RECORDS = (Progress, Claim, CancelRequest, SchedulerAway, Preflight, LocalJob, Submission, AttemptFile, RankExits)


@pytest.mark.parametrize("kind", PLAIN_RECORDS)
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_any_record_survives_its_file(kind: type[Record], data: st.DataObject) -> None:
    record = data.draw(values_of(kind))
    assert kind.parse(record.render()) == record


@pytest.mark.parametrize("kind", EVENT_NAMES)
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_any_event_survives_its_line(kind: type, data: st.DataObject) -> None:
    event = data.draw(values_of(kind))
    assert parse_event(render_event(event)) == event


# --- damage


@NAMES
@given(text=TEXTS)
@settings(max_examples=30, deadline=None)
def test_any_text_is_a_record_error_and_nothing_else(name: str, text: str) -> None:
    with pytest.raises(RecordError):
        READERS[name][1](text)


def _places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(place for name, item in inner for place in _places(item, (*at, name)))]


def _mutated(whole: Any, place: tuple[Any, ...], value: Any, *, is_dropped: bool) -> Any:
    """The value with the one at a place replaced, or dropped."""
    if not place:
        return value
    copy = dict(whole) if isinstance(whole, dict) else list(whole)
    if len(place) == 1 and is_dropped:
        del copy[place[0]]
    else:
        copy[place[0]] = _mutated(whole[place[0]], place[1:], value, is_dropped=is_dropped)
    return copy


@NAMES
@given(data=st.data())
@settings(max_examples=50, deadline=None)
def test_a_changed_record_is_refused_or_holds_values_of_its_types(name: str, data: st.DataObject) -> None:
    text, parse = READERS[name]
    whole = json.loads(text)
    place = data.draw(st.sampled_from(_places(whole)))
    changed = _mutated(whole, place, data.draw(JSON), is_dropped=data.draw(st.booleans()))
    try:
        found = parse(json.dumps(changed))
    except RecordError:
        return
    assert is_of(type(found), found), found


def is_of(hint: Any, value: Any) -> bool:
    """True if a value is of a type to the last part."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is object:
        return True
    if origin is typing.Annotated:
        return is_of(arguments[0], value) and arguments[1].holds(value)
    if origin in (typing.Union, types.UnionType):
        return any(value is None if item is type(None) else is_of(item, value) for item in arguments)
    if origin is tuple:
        if type(value) is not tuple:
            return False
        each = arguments if arguments[-1] is not Ellipsis else arguments[:1] * len(value)
        return len(each) == len(value) and all(map(is_of, each, value))
    if origin is Mapping:
        return isinstance(value, dict) and all(
            is_of(arguments[0], name) and is_of(arguments[1], item) for name, item in value.items()
        )
    if is_dataclass(hint):
        hints = type_hints(typing.cast("Any", hint))
        return type(value) is hint and all(is_of(hints[item.name], getattr(value, item.name)) for item in fields(hint))
    return type(value) is hint and not (hint is float and not math.isfinite(value))


# --- one policy


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("Submission", {"nodes": "2"}, "nodes='2' is not a whole number"),
        ("Submission", {"exclude": "gpu01"}, "exclude='gpu01' is not a list"),
        ("Submission", {"exclude": [1]}, r"exclude\[0\]=1 is not text"),
        ("Submission", {"launch": {"port_range": [1]}}, "launch.port_range=.* does not have 2 values"),
        ("Blame", {"node": None}, "node=None is not text"),
        ("Blame", {"time": "1.0"}, "time='1.0' is not a number"),
        ("Blame", {"v": 2}, "version 2; this version reads 1"),
        ("Claim", {"job_id": 42}, "job_id=42 is not text"),
        ("Claim", {"time": True}, "time=True is not a number"),
        ("Holder", {"pid": "5"}, "pid='5' is not a whole number"),
        ("CancelRequest", {"cells": "89c3"}, "cells='89c3' is not a list"),
        ("SchedulerAway", {"words": None}, "words=None is not text"),
        ("RankExits", {"exits": [{"rank": 0}]}, r"exits\[0\]: lacks 'exit_code'"),
        ("RankError", {"message": 5}, "message=5 is not text"),
        ("Preflight", {"peak_by_kind": {"a": "5"}}, "peak_by_kind.a='5' is not a whole number"),
        ("LocalJob", {"launched": [5]}, r"launched\[0\]=5 is not a mapping"),
        ("Ended", {"gpu_seconds": "64"}, "gpu_seconds='64' is not a number"),
        ("Reserved", {"tasks": [["c", 1, 1]]}, r"tasks\[0\]=.* is not a mapping"),
        ("SweepFile", {"repeats": "2"}, "repeats='2' is not a whole number"),
        ("SweepFile", {"policy": {"canary": "no"}}, "policy.canary='no' is not true or false"),
        ("SweepFile", {"rejections": [{"axes": {"nodes": [1]}, "rule": "", "reason": ""}]}, "axes.nodes=.* is not"),
    ],
    ids=str,
)
def test_a_value_of_another_type_is_refused_and_never_read_as_one(
    name: str, change: dict[str, object], message: str
) -> None:
    text, parse = READERS[name]
    with pytest.raises(RecordError, match=message):
        parse(json.dumps({**json.loads(text), **change}))


@NAMES
def test_a_field_that_a_later_version_added_is_left_aside(name: str) -> None:
    text, parse = READERS[name]
    assert parse(json.dumps({**json.loads(text), "of_tomorrow": 1})) == parse(text)


@NAMES
def test_a_record_of_another_version_is_refused(name: str) -> None:
    text, parse = READERS[name]
    with pytest.raises(RecordError, match="this version reads 1"):
        parse(json.dumps({**json.loads(text), "schema" if "schema" in text else "v": 2}))


@pytest.mark.parametrize("record", [CancelRequest(cells=(ID,)), Holder(host="h", pid=1, started="b", token="t")])
def test_what_versions_before_wrote_without_kind_and_version_is_read(record: Record) -> None:
    assert type(record).parse(json.dumps(plain(record))) == record


def test_a_policy_survives_as_plain_values() -> None:
    assert read(Policy, json.loads(json.dumps(plain(Policy())))) == Policy()


def test_results_and_sweeps_are_among_the_records() -> None:
    assert {Result.__name__, SweepFile.__name__} <= set(READERS)
