"""Records from a stranger: names are no paths, one bad byte spoils one record, and no file is read without end."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from analysis.load import LoadError, load
from sweep.adapters.files.ledger_file import LedgerFile
from sweep.adapters.files.run_directory import RunDir
from sweep.adapters.files.run_reader import find_run_dirs
from sweep.adapters.local.jobs import JobFiles, State, new_job
from sweep.adapters.local.scheduler import LocalScheduler
from sweep.core.attempts.ledger import Reserved, parse_event, render_event
from sweep.core.encoding.record import RecordError
from sweep.core.jobs.submission import Claim, Submission
from sweep.core.records.attempt_record import AttemptFile
from sweep.core.records.sweep_file import SweepFile
from sweep.core.settings.spec import LaunchSpec
from sweep.files import RunDirError, open_regular, read_lines, read_tail, read_text
from tests.fakes import submission_of
from tests.security.fuzz_records import fuzz, fuzz_readers
from tests.stubs.jobs import key, publish

RUNS = Path(__file__).parents[1] / "golden" / "runs"
OTHER_USER = 65534


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return Path(shutil.copytree(RUNS / "local", tmp_path / "run"))


# --- names


OUTSIDE = ("../x", "/etc/x", "..", "a/../../x", "x\0", "x\ny")


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_name_that_leads_outside_is_refused_wherever_a_record_holds_one(run: Path, name: str) -> None:
    sweep = json.loads((run / "sweep.json").read_text())
    submission = json.loads(submission_of().render())
    claim = json.loads(Claim(job_id="1", time=1.0, host="h").render())
    attempt = json.loads(next(run.rglob("attempt.json")).read_text())
    made: list[tuple[Callable[[str], object], dict[str, object]]] = [
        (SweepFile.parse, {**sweep, "grid": name}),
        (SweepFile.parse, {**sweep, "cluster": name}),
        (Submission.parse, {**submission, "name": name}),
        (Submission.parse, {**submission, "exclude": [name]}),
        (Claim.parse, {**claim, "job_id": name}),
        (AttemptFile.parse, {**attempt, "job_id": name}),
        (AttemptFile.parse, {**attempt, "cell_id": name}),
        (AttemptFile.parse, {**attempt, "hosts": [name]}),
    ]
    for parse, changed in made:
        with pytest.raises(RecordError, match="is not"):
            parse(json.dumps(changed))


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_ledger_line_whose_submission_or_cell_leads_outside_is_damaged_for_both_readers(
    tmp_path: Path, name: str
) -> None:
    event = Reserved(time=1.0, submission="s", tasks=(key(),), gpu_hours=1.0, gpus=1)
    line = json.loads(render_event(event))
    lines = [
        json.dumps({**line, "submission": name}),
        json.dumps({**line, "tasks": [{"cell_id": name, "repeat": 1, "attempt": 1}]}),
        json.dumps({**line, "time": 1e300}),
        json.dumps({**line, "tasks": [{"cell_id": "a" * 16, "repeat": 10**30, "attempt": 1}]}),
    ]
    path = tmp_path / "ledger.jsonl"
    path.write_text("\n".join([*lines, render_event(event)]) + "\n")
    events, problems = LedgerFile(path).read()
    assert (list(events), len(problems)) == ([event], len(lines))
    for each in lines:
        with pytest.raises(RecordError):
            parse_event(each)


def test_a_local_jobs_file_is_that_of_its_name(tmp_path: Path) -> None:
    files, job = JobFiles(tmp_path), new_job(submission_of(), 0, now=1.0, environ={})
    files.write(job)
    assert files.read("weak.0") == job
    for change in ({"job_id": "weak.1"}, {"job_id": "../weak.0"}, {"attempt": "../x"}, {"marker": "../../x"}):
        changed = {**json.loads(job.render()), **change}
        (tmp_path / "local" / "weak.0.json").write_text(json.dumps(changed))
        assert files.read("weak.0") is None


def stranger_job(tmp_path: Path, python: str) -> Submission:
    """A job that waits, with a program of a stranger, in its own record and in its submission's."""
    made = publish(submission_of(1, run_dir=str(tmp_path), launch=LaunchSpec(python=python)))
    JobFiles(tmp_path).write(new_job(made, 0, now=1.0, environ={}))
    return made


@pytest.mark.parametrize("in_submission", [True, False])
def test_resuming_runs_no_program_that_a_record_names(tmp_path: Path, *, in_submission: bool) -> None:
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    program.chmod(0o755)
    made = stranger_job(tmp_path, str(program))
    if not in_submission:
        publish(replace(made, launch=LaunchSpec()))
    scheduler = LocalScheduler(tmp_path, environ={}, is_ours=lambda found: found.launch == LaunchSpec())
    report = scheduler.poll(["weak.0"], since=0.0)["weak.0"]
    scheduler.close()
    assert report.state == State.INTERRUPTED
    assert "tried again" in report.reason
    assert not (tmp_path / "ran").exists()


# --- owners


def test_a_run_directory_with_a_file_of_another_user_is_read_and_not_acted_on(run: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can give a file away")
    RunDir(run).refuse_strangers_files()
    name = next((run / "submissions").iterdir())
    os.chown(name, OTHER_USER, -1)
    with pytest.raises(RunDirError, match=f"{name.name} belong to another user"):
        RunDir(run).refuse_strangers_files()
    for verb in (["cancel", "--all"], ["run", "+grid=weak_scaling", "cluster=local"]):
        done = _sweep(*verb, f"run_dir={run}")
        assert (done.returncode, "another user" in done.stderr) == (2, True), done.stderr
    done = _sweep("status", f"run_dir={run}")
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)
    assert f"{name.name} belong to another user; run and cancel refuse this run directory" in done.stderr
    cell = next((run / "cells").iterdir()).name
    assert f"{name.name} belong to another user" in _sweep("logs", cell, f"run_dir={run}").stderr
    words = [sys.executable, "-m", "analysis", str(run), "--out", str(run.parent / "out")]
    tables = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (tables.returncode, tables.stderr.count("belong to another user")) == (0, 1), tables.stderr
    run.chmod(0o2770)
    RunDir(run).refuse_strangers_files()


def _sweep(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sweep", *words], capture_output=True, text=True, check=False, timeout=120
    )


# --- bytes


BAD = (b"\xff\xfe\x00{", b"[" * 200_000, b'{"x": 1e400}', b'{"x": "\\ud800"}', b'{"time": 1e300}', b"")


@pytest.mark.parametrize("bad", BAD, ids=range(len(BAD)))
def test_one_bad_record_is_named_and_the_others_go_on(run: Path, bad: bytes) -> None:
    good = load(run)
    measured = [cell for cell, found in good.measurements.items() if found]
    path = sorted(run.rglob("result.json"))[0]
    path.write_bytes(bad)
    (run / "ledger.jsonl").write_bytes(bad + b"\n" + (run / "ledger.jsonl").read_bytes())
    data = load(run)
    assert str(path.relative_to(run)) in str(data.problems[path.parents[2].name])
    assert sum(bool(found) for found in data.measurements.values()) == len(measured) - 1
    assert len(data.notes) == len(good.notes) + bool(bad)
    done = _sweep("status", f"run_dir={run}")
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr


@pytest.mark.parametrize("bad", BAD, ids=range(len(BAD)))
def test_a_bad_sweep_file_is_an_error_that_names_it(run: Path, bad: bytes) -> None:
    (run / "sweep.json").write_bytes(bad)
    with pytest.raises(RunDirError, match=r"sweep\.json"):
        RunDir(run).sweep_file()
    with pytest.raises(LoadError, match=r"sweep\.json"):
        load(run)


def test_a_hundred_damaged_lines_are_named_and_the_others_counted(tmp_path: Path) -> None:
    (tmp_path / "ledger.jsonl").write_text("x\n" * 5000)
    _, problems = LedgerFile(tmp_path / "ledger.jsonl").read()
    assert (len(problems), problems[-1]) == (101, "4,900 more ledger lines cannot be read")


@pytest.mark.parametrize("depth", [40, 70, 200, 900])
def test_evidence_in_the_ledger_is_as_deep_as_it_can_be_written_again(tmp_path: Path, depth: int) -> None:
    line = next(
        line for line in (RUNS / "ends" / "ledger.jsonl").read_text().splitlines() if '"event": "ended"' in line
    )
    data = json.loads(line)
    data["reason"] = ""
    data["evidence"] = {"x": json.loads("[" * depth + "]" * depth)}
    (tmp_path / "ledger.jsonl").write_text(json.dumps(data) + "\n")
    events, problems = LedgerFile(tmp_path / "ledger.jsonl").read()
    assert (len(events), len(problems)) == ((1, 0) if depth < 200 else (0, 1))
    for event in events:
        assert json.loads(render_event(event)) == data


def test_mutated_records_stop_no_verb() -> None:
    assert fuzz([RUNS / "local", RUNS / "slurm_requeued"], mutations=60, seed=1) == []


def test_what_is_read_of_a_mutated_record_can_be_written() -> None:
    assert fuzz_readers(sorted(RUNS.iterdir()), mutations=500, seed=2) == []


# --- files without end


@pytest.mark.parametrize("name", ["sweep.json", "ledger.jsonl", "result.json", "attempt.json", "steps.jsonl"])
@pytest.mark.parametrize("kind", ["fifo", "device", "sparse"])
def test_a_fifo_a_device_and_a_file_without_end_hold_up_no_reader(run: Path, name: str, kind: str) -> None:
    path = sorted(run.rglob(name))[0]
    path.unlink()
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        with path.open("wb") as file:
            file.truncate(1 << 40)
    for read in (lambda: read_text(path), lambda: list(read_lines(path))):
        with pytest.raises(OSError, match=r"not a regular file|holds"):
            read()
    done = subprocess.run(
        [sys.executable, "-m", "sweep", "status", f"run_dir={run}"],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, "Traceback" in done.stderr) == (2 if name in ("sweep.json", "ledger.jsonl") else 0, False)


def test_lines_are_read_in_pieces_and_one_without_end_is_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sweep.files._PIECE_BYTES", 4)
    monkeypatch.setattr("sweep.files._LONGEST_LINE_BYTES", 8)
    path = tmp_path / "lines"
    for text in (b"", b"a", b"a\n", b"a\nbc\n\nd", b"abcd\nefgh\n", b"\n\n", b"12345678\nx\n"):
        path.write_bytes(text)
        assert list(read_lines(path)) == text.splitlines()
    path.write_bytes(b"x" * 1000 + b"\nyes\n")
    *long, last = read_lines(path)
    assert (max(map(len, long)) <= 13, last) == (True, b"yes")


def test_of_a_long_log_only_the_tail_is_read(tmp_path: Path) -> None:
    path = tmp_path / "node-0.log"
    with path.open("wb") as file:
        file.truncate(1 << 34)
        file.seek(1 << 34)
        file.write(b"the end")
    assert read_tail(path, 7) == b"the end"
    with open_regular(path) as file:
        assert file.read(1) == b"\0"


def test_logs_prints_a_line_without_end_in_pieces(run: Path) -> None:
    """200 MiB of one line, with no room for it in memory."""
    folder = next(run.rglob("attempt-01"))
    with (folder / "node-0.log").open("wb") as file:
        for _ in range(200):
            file.write(b"x" * (1 << 20))
    os.mkfifo(folder / "node-1.log")
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_DATA, (150 << 20, 150 << 20));"
        "from sweep.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "logs", folder.parents[1].name, f"run_dir={run}"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")


def test_run_directories_are_found_beside_a_fifo(tmp_path: Path, run: Path) -> None:
    (tmp_path / "bad").mkdir()
    os.mkfifo(tmp_path / "bad" / "sweep.json")
    assert set(find_run_dirs(tmp_path)) == {run, tmp_path / "bad"}
