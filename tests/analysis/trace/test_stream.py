from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from analysis.trace.reading import stream
from analysis.trace.reading.events import Event, nanoseconds, start_times
from analysis.trace.reading.stream import TraceError, TraceFile
from analysis.trace.reduce import reduce_trace
from tests.analysis.trace.synthetic import GEMM, MEMCPY, POINTWISE, Trace


def read(path: Path) -> tuple[list[str], dict[str, object]]:
    file = TraceFile(path)
    names = [event.name for events in file for event in events]
    return names, file.beside


def a_trace() -> Trace:
    trace = Trace()
    for at in range(40):
        trace.kernel(POINTWISE, 10 * at, 10 * at + 5, launch=at)
        trace.kernel(GEMM, 10 * at + 5, 10 * at + 9, launch=at, note=[{"a": "]}, {"}, {"b": [1, {}]}])
        trace.kernel(MEMCPY, 10 * at, 10 * at + 1, cat="gpu_memcpy", note='"}, {"')
    return trace


@pytest.mark.parametrize("size", [1, 7, 64, 1000, 1 << 20])
@pytest.mark.parametrize("indent", [None, 0, 2])
def test_a_trace_reads_the_same_whatever_the_pieces_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, indent: int | None
) -> None:
    monkeypatch.setattr(stream, "_PIECE_BYTES", size)
    trace = a_trace()
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"before": [1, "]"], "traceEvents": trace.events, "after": {"x": 1.5}}, indent=indent))
    names, beside = read(path)
    assert names == [event["name"] for event in trace.events]
    assert beside == {"before": [1, "]"], "after": {"x": 1.5}}


def test_names_outside_ascii_and_values_beside_them_are_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(
        json.dumps({"é": "ü€", "traceEvents": [{"ph": "X", "name": "ß"}], "n": 12}, ensure_ascii=False),
        encoding="utf-8",
    )
    assert read(path) == (["ß"], {"é": "ü€", "n": 12})


def test_a_trace_without_events_is_one(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text('{"traceEvents": [ ]\n}\n')
    assert read(path) == ([], {})


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
@pytest.mark.parametrize("size", [100, 1 << 20])
def test_a_trace_that_is_cut_anywhere_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, size: int
) -> None:
    monkeypatch.setattr(stream, "_PIECE_BYTES", size)
    whole = a_trace().write(tmp_path, name).read_bytes().rstrip()
    path = tmp_path / f"cut-{name}"
    for at in [0, 1, 2, 20, len(whole) // 3, len(whole) // 2, len(whole) - 10, len(whole) - 1]:
        path.write_bytes(whole[:at])
        with pytest.raises(TraceError, match=r"cut-trace\.json.*(cut|damaged|no trace)"):
            read(path)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[1, 2]", "does not begin as a JSON object"),
        ("hello", "does not begin as a JSON object"),
        ('{"a": 1}', "has no traceEvents"),
        ("{}", "has no traceEvents"),
        ('{"traceEvents": {}}', "traceEvents are no list"),
        ('{"traceEvents": [1]}', "does not write"),
        ('{"traceEvents": [{"ph": 3}]}', "does not write"),
        ('{"traceEvents": [{"ph": "X" "cat": 1}]}', "damaged between its events"),
        ('{"traceEvents": []} {"more": 1}', "does not end where the file does"),
        ('{"traceEvents": [], "x": tru}', "damaged beside its events"),
        ('{"a": ' + "[" * 100_000, "nested too deep"),
        ('{"traceEvents": [{"args": ' + "[" * 100_000, "nested too deep"),
    ],
)
def test_a_file_that_is_no_trace_is_an_error_with_the_reason(tmp_path: Path, text: str, what: str) -> None:
    path = tmp_path / "foreign.json"
    path.write_text(text)
    with pytest.raises(TraceError, match=what) as raised:
        read(path)
    assert str(path) in str(raised.value)


def test_a_file_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read: No such file"):
        read(tmp_path / "none.json")


@given(st.binary(max_size=200))
def test_no_file_gives_another_kind_of_error(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("any") / "any.json"
    for text in (content, b'{"traceEvents": [' + content, gzip.compress(b"{" + content)):
        path.write_bytes(text)
        with pytest.raises(TraceError):
            read(path)


@pytest.mark.parametrize(
    ("number", "time_ns"),
    [
        (b"4458676983543.183", 4458676983543183),
        (b"1694128201429795.001", 1694128201429795001),
        (b"1694128201429795", 1694128201429795000),
        (b"41.4", 41400),
        (b"41.40", 41400),
        (b"0.0005", 0),
        (b"0.0015", 2),
        (b"1.5e3", 1500000),
        (b"-0.250", -250),
    ],
)
def test_decimal_times_become_whole_nanoseconds_without_a_float_between(number: bytes, time_ns: int) -> None:
    assert nanoseconds(number) == time_ns


@pytest.mark.parametrize("number", [b"", b'"12"', b"null", b"NaN"])
def test_a_text_that_is_no_time_is_an_error(number: bytes) -> None:
    with pytest.raises(ValueError, match=r"no time|hold"):
        nanoseconds(number)


numbers = st.one_of(
    st.integers(0, 4 * 10**15).map(str),
    st.tuples(st.integers(0, 4 * 10**15), st.integers(0, 999)).map(lambda pair: f"{pair[0]}.{pair[1]:03}"),
    st.floats(-1e9, 1e9, allow_subnormal=False).map(repr),
)


@example(["1.25", "2.5"])
@example(["1.250", "2.50", "3"])
@example(["1.250", "25"])
@given(st.one_of(*(st.lists(one, max_size=5) for one in (numbers, st.from_regex(r"\A[1-9][0-9]{0,14}[.][0-9]{3}\Z")))))
def test_many_times_are_read_as_each_is_alone(texts: list[str]) -> None:
    events = [Event(ts=msgspec.Raw(text.encode())) for text in texts]
    assert start_times(events).tolist() == [nanoseconds(text.encode()) for text in texts]


def test_memory_grows_with_kernels_and_not_with_the_other_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_PIECE_BYTES", 1 << 16)
    peaks = []
    for n_calls in (2_000, 40_000):
        trace = a_trace()
        trace.events += [trace.events[0] | {"cat": "python_function", "name": f"call {at}"} for at in range(n_calls)]
        path = trace.write(tmp_path, f"{n_calls}.json")
        tracemalloc.start()
        reduce_trace(path)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]
