from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweep.adapters.files import ledger_file
from sweep.adapters.files.ledger_file import LedgerFile
from sweep.core.attempts import ledger
from sweep.core.attempts.attempt import AttemptKey
from sweep.core.attempts.ledger import Event, Reserved, Submitted, parse_lines, render_event
from tests.events import EVENTS

RESERVED = Reserved(
    time=1.0,
    submission="s1",
    tasks=(AttemptKey(cell_id="0" * 16, repeat=1, attempt=1),),
    gpu_hours=4.0,
    gpus=8,
)
SUBMITTED = Submitted(time=2.0, submission="s1", jobs=("17",))


def test_a_ledger_that_is_not_there_is_empty_and_reading_makes_none(tmp_path: Path) -> None:
    assert LedgerFile(tmp_path / "ledger.jsonl").read() == ([], [])
    assert list(tmp_path.iterdir()) == []


def test_events_are_read_back_by_another_process(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    LedgerFile(path).append(RESERVED)
    LedgerFile(path).append(SUBMITTED)
    assert LedgerFile(path).read() == ([RESERVED, SUBMITTED], [])


def test_a_torn_tail_is_reported_kept_and_does_not_spoil_the_next_event(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    LedgerFile(path).append(RESERVED)
    torn = '{"v": 1, "event": "submit'
    with path.open("a") as file:
        file.write(torn)
    LedgerFile(path).append(SUBMITTED)
    events, problems = LedgerFile(path).read()
    assert events == [RESERVED, SUBMITTED]
    assert len(problems) == 1
    assert "line 2" in problems[0]
    assert torn in path.read_text()


def test_a_damaged_line_in_the_middle_costs_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    LedgerFile(path).append(RESERVED)
    with path.open("ab") as file:
        file.write(b"\xff\xfe\x00 not json\n")
    LedgerFile(path).append(SUBMITTED)
    events, problems = LedgerFile(path).read()
    assert events == [RESERVED, SUBMITTED]
    assert len(problems) == 1


def test_an_event_is_one_line_even_with_line_separators_in_its_text(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    event = Submitted(time=2.0, submission="s\u2028\u0085x", jobs=("17",))
    LedgerFile(path).append(event)
    assert LedgerFile(path).read() == ([event], [])


def test_a_write_that_fails_half_way_is_an_error_and_the_next_event_is_still_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = LedgerFile(path)
    ledger.append(RESERVED)
    real = ledger_file._write_all

    def full_disk(fd: int, data: bytes) -> None:
        real(fd, data[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ledger_file, "_write_all", full_disk)
    with pytest.raises(OSError, match="No space left"):
        ledger.append(SUBMITTED)
    monkeypatch.setattr(ledger_file, "_write_all", real)
    ledger.append(SUBMITTED)
    events, problems = ledger.read()
    assert events == [RESERVED, SUBMITTED]
    assert len(problems) == 1


def _outcome(line: str) -> object:
    """What the reference reader makes of a line: an event, None (a problem), or nothing of an empty one."""
    events, problems = parse_lines([line.encode()])
    return (events, len(problems))


@given(EVENTS, st.data())
def test_a_line_is_read_as_the_reference_reads_it_damaged_or_not(event: Event, data: st.DataObject) -> None:
    line = render_event(event)
    parts = json.loads(line)
    name = data.draw(st.sampled_from(sorted(parts)))
    value = data.draw(
        st.sampled_from([None, True, 1, 1.0, -1, 10**400, 1e308, "", "x", [], [1], [["a", 1]], {}, {"a": None}])
    )
    changed = json.dumps({**parts, name: value})
    less = json.dumps({key: value for key, value in parts.items() if key != name})
    cut = line[: data.draw(st.integers(0, len(line)))]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.jsonl"
        for text in (line, line + " ", " " + line, changed, less, cut, line + line):
            path.write_text(text + "\n")
            events, problems = LedgerFile(path).read()
            assert (events, len(problems)) == _outcome(text)
        assert LedgerFile(path).read()[1]


def test_a_plain_line_is_read_without_the_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ledger.jsonl"
    LedgerFile(path).append(RESERVED)
    monkeypatch.setattr(ledger, "parse_event", lambda line: pytest.fail(f"{line} went the slow way"))
    assert LedgerFile(path).read() == ([RESERVED], [])
