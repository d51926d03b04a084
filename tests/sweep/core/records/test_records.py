from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweep.core.attempts.attempt import AttemptKey, ErrorClass, RankError
from sweep.core.cells.cell import cell_id
from sweep.core.cells.device import Device
from sweep.core.encoding.names import LATEST_TIME
from sweep.core.encoding.record import RecordError, parse_object, render
from sweep.core.records.attempt_record import AttemptFile, CellFile, parse_error, render_error
from sweep.core.records.layout import attempt_dir, node_error, node_log, rank_error, restart_dir
from sweep.core.records.progress import Progress, Step
from sweep.core.records.result import SOURCES, Result
from tests.fakes import CPU, result_of, tiny_cell

KEY = AttemptKey(cell_id="89c35e1f02ab77d4", repeat=1, attempt=2)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
TIMES = st.floats(min_value=0, max_value=LATEST_TIME, exclude_max=True)
JOB_IDS = st.from_regex(r"[0-9]{1,9}(_[0-9]{1,3})?", fullmatch=True)
NODES = st.from_regex(r"[a-z0-9_][a-z0-9.-]{0,20}", fullmatch=True)
CELL_IDS = st.from_regex(r"[0-9a-f]{16}", fullmatch=True)
TEXTS = st.text(max_size=8)
KEYS = st.builds(AttemptKey, cell_id=CELL_IDS, repeat=st.integers(1, 99), attempt=st.integers(1, 99))
COUNTS = st.integers(1, 10**15)


def texts(keys: st.SearchStrategy[str] = TEXTS) -> st.SearchStrategy[dict[str, str]]:
    return st.dictionaries(keys, TEXTS, max_size=2)


RESULTS = st.builds(
    Result,
    key=KEYS,
    restart=st.integers(0, 5),
    started_at=TIMES,
    ended_at=TIMES,
    world_size=COUNTS,
    hosts=st.lists(NODES, max_size=2).map(tuple),
    device_type=st.sampled_from(["cpu", "cuda"]),
    device_name=TEXTS,
    n_params=COUNTS,
    steps=st.integers(60, 100),
    warmup_steps=st.integers(0, 10),
    window_steps=st.integers(1, 50),
    window_tokens=COUNTS,
    window_time_s=st.floats(1e-6, 1e9),
    window_energy_j=st.none() | st.floats(0, 1e12),
    power_source=TEXTS,
    peak_memory_bytes=st.none() | st.integers(0, 10**13),
    peak_reserved_bytes=st.none() | st.integers(0, 10**13),
    throttled=st.none() | st.booleans(),
    throttle_reasons=st.lists(TEXTS, max_size=2).map(tuple),
    oversubscribed=st.booleans(),
    final_loss=st.none() | FINITE,
    fingerprint=TEXTS,
    fingerprint_fields=st.dictionaries(TEXTS, st.none() | TEXTS, max_size=2),
    versions=st.dictionaries(TEXTS, st.none() | TEXTS, max_size=2),
    environment=texts(),
    extra=st.dictionaries(TEXTS, st.none() | st.integers() | st.lists(TEXTS, max_size=2), max_size=2),
    source=st.sampled_from(SOURCES),
)
ATTEMPTS = st.builds(
    AttemptFile,
    key=KEYS,
    job_id=JOB_IDS,
    restart=st.integers(0, 5),
    hosts=st.lists(NODES, max_size=2).map(tuple),
    pid=st.integers(1, 2**22),
    started_at=TIMES,
    ended_at=st.none() | TIMES,
    exit_code=st.none() | st.integers(-64, 255),
    stopped_by=TEXTS,
    command=st.lists(TEXTS, max_size=2).map(tuple),
    environment=texts(),
    sources_hash=TEXTS,
    provenance=st.dictionaries(TEXTS, st.booleans() | TEXTS, max_size=2),
)
STEPS = st.builds(
    Step,
    step=st.integers(0, 10**6),
    step_time_s=FINITE,
    tokens=COUNTS,
    loss=st.none() | FINITE,
    grad_norm=st.none() | FINITE,
    is_warmup=st.booleans(),
)
PROGRESS = st.builds(
    Progress, step=st.integers(0, 99), steps=st.integers(1, 99), time=TIMES, tokens_per_s=st.none() | FINITE
)
ERRORS = st.builds(
    RankError,
    rank=st.none() | st.integers(0, 4096),
    node_rank=st.integers(0, 256),
    time=TIMES,
    error_class=st.sampled_from(ErrorClass),
    message=TEXTS,
    step=st.none() | st.integers(0, 99),
    memory_bytes=st.none() | st.integers(0, 10**12),
)


def cell_file() -> CellFile:
    cell = tiny_cell()
    device = Device(
        name="h100", type="cuda", match=("H100",), unlike=("MIG",), peak_tflops={"bf16": 989.0}, memory_gib=80.0
    )
    key = AttemptKey(cell_id=cell_id(cell), repeat=2, attempt=3)
    return CellFile(cell=cell, device=device, key=key, sources_hash="abc", run_name="weak_scaling-local")


# --- every record survives its file


@given(RESULTS)
def test_a_result_survives_its_file(result: Result) -> None:
    assert Result.parse(result.render()) == result
    assert Result.parse(result.render(), expected=result.key) == result


@given(ATTEMPTS)
def test_an_attempt_file_survives(attempt: AttemptFile) -> None:
    assert AttemptFile.parse(attempt.render()) == attempt


@given(STEPS)
def test_a_step_survives_its_line(step: Step) -> None:
    line = step.render()
    assert line.count("\n") == 1
    assert Step.parse(line) == step


@given(PROGRESS)
def test_progress_survives_its_file(progress: Progress) -> None:
    assert Progress.parse(progress.render()) == progress


@given(ERRORS)
def test_an_error_survives_its_file(error: RankError) -> None:
    assert parse_error(render_error(error, exception="builtins.ValueError", traceback="...")) == error


def test_a_cell_file_survives() -> None:
    assert CellFile.parse(cell_file().render()) == cell_file()
    plain = replace(cell_file(), device=CPU)
    assert CellFile.parse(plain.render()) == plain


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_becomes_null(value: float) -> None:
    step = Step(step=1, step_time_s=0.5, tokens=8, loss=value, grad_norm=value, is_warmup=False)
    assert Step.parse(step.render()) == replace(step, loss=None, grad_norm=None)


def test_what_json_cannot_say_is_not_written() -> None:
    with pytest.raises(ValueError, match="Out of range float"):
        render("progress", {"time": math.nan})


def test_files_begin_with_their_schema_and_kind() -> None:
    assert list(json.loads(result_of(KEY).render()))[:2] == ["schema", "kind"]


# --- damaged records


WRONG: tuple[object, ...] = (None, "text", -1, 0, 1.5, True, [], {}, [1], {"a": []}, [None])


def _is_damaged(text: str, kind: str, field: str, value: object) -> tuple[str, bool]:
    data = json.loads(text)
    data[field] = value
    changed = json.dumps(data)
    try:
        {"result": Result, "attempt": AttemptFile, "progress": Progress, "cell": CellFile}[kind].parse(changed)
    except RecordError:
        return changed, True
    return changed, False


FILES = {
    "result": result_of(KEY).render(),
    "attempt": AttemptFile(key=KEY, job_id="7", restart=0, hosts=("n1",), pid=5, started_at=1.0).render(),
    "progress": Progress(step=3, steps=60, time=5.0, tokens_per_s=None).render(),
    "cell": cell_file().render(),
}


@pytest.mark.parametrize(("kind", "field"), [(kind, name) for kind, text in FILES.items() for name in json.loads(text)])
def test_a_field_of_another_type_is_a_record_error_or_a_value_that_the_field_can_have(kind: str, field: str) -> None:
    refused = [value for value in WRONG if _is_damaged(FILES[kind], kind, field, value)[1]]
    # A text, a list, a mapping or a number in the place of another: never all of them can be right.
    assert len(refused) >= 6 or field in ("extra", "provenance"), (field, refused)


REQUIRED = {
    "result": ["key", "steps", "window_time_s", "window_energy_j", "fingerprint", "oversubscribed"],
    "attempt": ["job_id", "restart", "hosts", "pid", "started_at"],
    "progress": ["step", "steps", "time", "tokens_per_s"],
    "cell": ["cell", "device"],
}


@pytest.mark.parametrize(("kind", "field"), [(kind, name) for kind, names in REQUIRED.items() for name in names])
def test_a_missing_field_is_named(kind: str, field: str) -> None:
    data = json.loads(FILES[kind])
    if field == "key":
        del data["cell_id"]
    else:
        del data[field]
    parse = {"result": Result, "attempt": AttemptFile, "progress": Progress, "cell": CellFile}[kind].parse
    with pytest.raises(RecordError, match="key.cell_id=None" if field == "key" else f"lacks '{field}'"):
        parse(json.dumps(data))


def test_a_record_of_an_earlier_version_may_lack_what_has_a_default() -> None:
    data = json.loads(FILES["attempt"])
    for name in ("stopped_by", "provenance", "environment"):
        del data[name]
    assert AttemptFile.parse(json.dumps(data)) == AttemptFile.parse(FILES["attempt"])


def test_a_field_that_a_later_version_added_is_left_aside() -> None:
    data = {**json.loads(FILES["result"]), "mood": "fine"}
    assert Result.parse(json.dumps(data)) == result_of(KEY)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not whole JSON"),
        ('{"schema": 1, "kind": "result"', "not whole JSON"),
        ("[" * 100_000, "not whole JSON"),
        ("[]", "is not a JSON object"),
        ('"result"', "is not a JSON object"),
        ('{"schema": 1}', "expected a record of kind 'result', found None"),
        ('{"schema": 1, "kind": "error"}', "expected a record of kind 'result', found 'error'"),
        ('{"schema": 2, "kind": "result"}', "schema version 2; this version reads 1. Read it with the version that"),
        ('{"schema": 1, "kind": "result", "x": NaN}', "NaN is not a JSON number"),
    ],
    ids=lambda value: value[:40],
)
def test_what_is_no_record_is_refused(text: str, message: str) -> None:
    with pytest.raises(RecordError, match=message):
        parse_object(text, "result")


@given(st.integers(min_value=0))
def test_a_result_cut_anywhere_is_refused(cut: int) -> None:
    text = FILES["result"].rstrip()
    with pytest.raises(RecordError):
        Result.parse(text[: cut % len(text)])


def test_the_result_of_another_attempt_is_refused() -> None:
    other = replace(KEY, attempt=3)
    with pytest.raises(RecordError, match="is that of attempt 89c35e1f02ab77d4/1/2, not of 89c35e1f02ab77d4/1/3"):
        Result.parse(FILES["result"], expected=other)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"window_steps": 0}, "window_steps=0, not a positive whole number"),
        ({"window_tokens": -5}, "window_tokens=-5, not a positive"),
        ({"world_size": 0}, "world_size=0"),
        ({"n_params": 0}, "n_params=0"),
        ({"steps": 0}, "steps=0"),
        ({"window_time_s": 0.0}, "window_time_s=0.0, not a positive number"),
        ({"window_time_s": -1.0}, "window_time_s=-1.0"),
        ({"window_energy_j": -1.0}, "window_energy_j=-1.0, not a number from 0"),
        ({"peak_memory_bytes": -1}, "peak_memory_bytes=-1"),
        ({"warmup_steps": 2}, "warmup_steps=2 and window_steps=5, more than its steps=6"),
        ({"source": "guessed"}, "source='guessed', not one of measured, simulated, imported"),
    ],
)
def test_numbers_that_no_run_can_have_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(RecordError, match=message):
        Result.parse(result_of(KEY, **change).render())


def test_a_whole_number_that_is_none_is_refused_before_it_is_written() -> None:
    with pytest.raises(RecordError, match=r"steps=6\.5"):
        result_of(KEY, steps=6.5).check()


def test_an_altered_cell_file_is_refused() -> None:
    data = json.loads(cell_file().render())
    data["cell"]["seq_len"] = 64
    with pytest.raises(RecordError, match="it was altered"):
        CellFile.parse(json.dumps(data))


@pytest.mark.parametrize("line", ["", "{", "[]", "5", '{"step": 1}', '{"step": NaN}'])
def test_a_damaged_step_is_refused(line: str) -> None:
    with pytest.raises(RecordError, match=r"a line of steps\.jsonl"):
        Step.parse(line)


@pytest.mark.parametrize(
    "change", [{"error_class": "bad_luck"}, {"time": "now"}, {"rank": "zero"}, {"node_rank": None}, {"step": 1.5}]
)
def test_a_damaged_error_file_is_refused(change: dict[str, object]) -> None:
    error = RankError(rank=1, node_rank=0, time=2.0, error_class=ErrorClass.DEVICE, message="Xid 79")
    with pytest.raises(RecordError, match="an error file is damaged"):
        parse_error(json.dumps({**json.loads(render_error(error)), **change}))


# --- names


def test_attempts_and_restarts_have_their_folders() -> None:
    folder = attempt_dir(KEY)
    assert str(folder) == "cells/89c35e1f02ab77d4/repeat-01/attempt-02"
    assert restart_dir(folder, 0) == folder
    assert str(restart_dir(folder, 2)).endswith("attempt-02/restart-2")


def test_files_of_nodes_and_ranks_have_their_names() -> None:
    assert (node_log(3), rank_error(7), node_error(1)) == ("node-3.log", "error-rank-7.json", "error-node-1.json")
