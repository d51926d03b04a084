"""Evidence against nodes on disk: several writers, damage, and a home that cannot be written."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sweep.adapters.files.blame_file import BlameFile, blame_path
from sweep.core.attempts.attempt import Outcome
from sweep.core.attempts.blame import Blame

BLAME = Blame(
    node="gpu7", time=100.5, cell_id="89c3", run="weak-site", outcome=Outcome.NODE_FAIL, reason="down: Xid\n79"
)


def test_what_was_added_is_read_back_by_another_process_in_its_order(tmp_path: Path) -> None:
    later = replace(BLAME, node="gpu8", time=101.0, outcome=Outcome.DEVICE_ERROR)
    book = BlameFile(tmp_path / "state" / "blame.jsonl")
    book.add([BLAME])
    book.add([later])
    book.add([])
    assert BlameFile(book.path).read() == [BLAME, later]


def test_nothing_is_known_before_anything_was_written_and_nothing_is_made_by_reading(tmp_path: Path) -> None:
    book = BlameFile(tmp_path / "state" / "blame.jsonl")
    assert book.read() == []
    book.add([])
    assert list(tmp_path.iterdir()) == []


def test_the_file_is_private(tmp_path: Path) -> None:
    book = BlameFile(tmp_path / "state" / "blame.jsonl")
    book.add([BLAME])
    assert book.path.stat().st_mode & 0o777 == 0o600
    assert book.path.parent.stat().st_mode & 0o777 == 0o700


def test_damaged_lines_are_passed_over_and_the_next_line_starts_anew(tmp_path: Path) -> None:
    book = BlameFile(tmp_path / "blame.jsonl")
    book.path.write_bytes(b'not JSON\n[1]\n"text"\n{"node": "gpu1"}\n\xff\xfe\n{"node": "gpu1", "time": 1, "cel')
    book.add([BLAME])
    assert book.read() == [BLAME]


def test_an_outcome_of_a_later_version_is_passed_over(tmp_path: Path) -> None:
    book = BlameFile(tmp_path / "blame.jsonl")
    book.add([BLAME])
    book.path.write_text(book.path.read_text() + BLAME.render().replace("NODE_FAIL", "MELTED") + "\n")
    assert book.read() == [BLAME]


def test_a_book_that_cannot_be_written_or_read_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    book = BlameFile(tmp_path / "file" / "blame.jsonl")
    book.add([BLAME])
    assert book.read() == []
    folder = BlameFile(tmp_path)
    folder.add([BLAME])
    assert folder.read() == []


def test_lines_of_several_writers_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "state" / "blame.jsonl"
    code = (
        "import sys\nfrom pathlib import Path\nfrom sweep.adapters.files.blame_file import BlameFile\n"
        "from sweep.core.attempts.blame import Blame\nfrom sweep.core.attempts.attempt import Outcome\n"
        "for number in range(200):\n"
        "    BlameFile(Path(sys.argv[1])).add([Blame(node=sys.argv[2], time=number, cell_id='c', run='r',"
        " outcome=Outcome.NODE_FAIL, reason='x' * 3000)])\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, str(path), f"node{n}"]) for n in range(3)]
    assert [writer.wait(240) for writer in writers] == [0, 0, 0]
    found = BlameFile(path).read()
    assert len(found) == 600
    for n in range(3):
        assert [blame.time for blame in found if blame.node == f"node{n}"] == [*range(200)]


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"XDG_STATE_HOME": "/state", "HOME": "/home/me"}, "/state/scaling-sweep/blame-site.jsonl"),
        ({"HOME": "/home/me"}, "/home/me/.local/state/scaling-sweep/blame-site.jsonl"),
        ({"XDG_STATE_HOME": "", "HOME": "/home/me"}, "/home/me/.local/state/scaling-sweep/blame-site.jsonl"),
        ({"XDG_STATE_HOME": "relative", "HOME": "/home/me"}, "/home/me/.local/state/scaling-sweep/blame-site.jsonl"),
    ],
)
def test_the_file_lies_where_the_environment_keeps_state(environ: dict[str, str], expected: str) -> None:
    assert str(blame_path("site", environ)) == expected


def test_a_clusters_name_cannot_lead_elsewhere() -> None:
    assert blame_path("../../etc/x", {"HOME": "/h"}).parent == Path("/h/.local/state/scaling-sweep")
