"""Run directories that version 0.1.0 wrote: today's code reads every record of them and makes the same tables.

`runs/` holds the records of seven runs; logs, sources and figures are left out, and paths, hosts and users have neutral
names. `tables/` holds what ``python -m analysis`` of 0.1.0 made of exactly these. `events.jsonl` has one ledger line
of every event. None of these files is ever edited: a change that breaks this test loses somebody's measurements.

- `local`: weak scaling on the local cluster, with the real trainer.
- `layouts`: ten layouts (FSDP, TP, PP, CP), with the real trainer.
- `ends`: two repeats, many outcomes, retries, a cancel, rejections, a budget, a limit.
- `in_flight`: the same run while its cells ran.
- `paused`: a run that paused after cells failed alike, with preflight records.
- `slurm_ends`: many outcomes on Slurm, with two damaged results.
- `slurm_requeued`: preempted and requeued jobs on Slurm, with restart folders.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from analysis.__main__ import main
from sweep.adapters.local.jobs import JobFiles
from sweep.core.attempts.attempt import Outcome
from sweep.core.attempts.ledger import parse_event, render_event
from sweep.core.attempts.outcome_rules import OUTCOME_RULES
from sweep.core.encoding.plain import plain
from sweep.core.encoding.record import RecordError
from sweep.core.jobs.submission import Claim, Submission
from sweep.core.records.attempt_record import AttemptFile, CellFile, parse_error, render_error
from sweep.core.records.preflight_record import Preflight
from sweep.core.records.progress import Progress, Step
from sweep.core.records.result import Result
from sweep.core.records.sweep_file import SweepFile

HERE = Path(__file__).parent
RUNS = sorted(path.name for path in (HERE / "runs").iterdir())
DAMAGED = {"ends": 2, "in_flight": 2, "slurm_ends": 1}
"""Results that are cut short, by run."""


GONE = {"local_address"}
"""Fields that are written no more (of a submission's ``launch``); what older versions wrote is left aside."""


NEW = {"order_seed": None, "STORAGE_ERROR": plain(OUTCOME_RULES[Outcome.STORAGE_ERROR])}
"""Fields that older versions did not write, with the value that their files have by that."""


def values(text: str) -> object:
    """The JSON of a file, or of each of its lines, without what is gone or new: the order of keys may change."""
    try:
        return json.loads(text, object_hook=_without_gone)
    except ValueError:
        return [json.loads(line, object_hook=_without_gone) for line in text.splitlines()]


def _without_gone(data: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in data.items() if name not in GONE and (name, value) not in NEW.items()}


def _lines(parse: Callable[[str], str]) -> Callable[[str], str]:
    return lambda text: "".join(f"{parse(line).rstrip()}\n" for line in text.splitlines())


REWRITTEN: dict[str, Callable[[str], str]] = {
    "sweep.json": lambda text: SweepFile.parse(text).render(),
    "ledger.jsonl": _lines(lambda line: render_event(parse_event(line))),
    "submissions/*.json": lambda text: Submission.parse(text).render(),
    "submissions/*.claim": lambda text: Claim.parse(text).render(),
    "cells/**/cell.json": lambda text: CellFile.parse(text).render(),
    "cells/**/attempt.json": lambda text: AttemptFile.parse(text).render(),
    "cells/**/progress.json": lambda text: Progress.parse(text).render(),
    "cells/**/result.json": lambda text: Result.parse(text).render(),
    "cells/**/steps.jsonl": _lines(lambda line: Step.parse(line).render()),
    "cells/**/error-*.json": lambda text: render_error(parse_error(text)),
    "preflight/*.json": lambda text: Preflight.parse(text).render(),
}
"""Reads a record and writes it again, by the pattern of its path."""


@pytest.mark.parametrize("name", RUNS)
def test_tables_of_recorded_runs_are_byte_for_byte_those_of_version_0_1(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(HERE / "runs" / name), "--out", str(tmp_path)]) == 0
    made = {path.name: path.read_bytes() for path in (tmp_path / "tables").iterdir()}
    printed = capsys.readouterr()
    made["stdout.txt"] = printed.out.replace(str(tmp_path), "OUT").encode()
    made["stderr.txt"] = printed.err.encode()
    recorded = {path.name: path.read_bytes() for path in (HERE / "tables" / name).iterdir()}
    assert made.keys() == recorded.keys()
    for file in sorted(recorded):
        assert made[file].decode().splitlines() == recorded[file].decode().splitlines(), file
        assert made[file] == recorded[file], file


@pytest.mark.parametrize("name", RUNS)
def test_every_record_of_a_recorded_run_is_read_and_written_again_as_it_was(name: str) -> None:
    folder, damaged, seen = HERE / "runs" / name, 0, 0
    for pattern, rewrite in REWRITTEN.items():
        for path in folder.glob(pattern):
            seen += 1
            text = path.read_text()
            try:
                assert values(rewrite(text)) == values(text), path
            except RecordError:
                damaged += 1
    jobs = list(folder.glob("local/*.json"))
    files = JobFiles(folder)
    assert all(files.read(path.stem) for path in jobs)
    assert damaged == DAMAGED.get(name, 0)
    assert seen + len(jobs) == sum(path.is_file() for path in folder.rglob("*")), "a record is of no kind that is read"


def test_every_event_of_a_recorded_ledger_is_read_and_written_again_as_it_was() -> None:
    text = (HERE / "events.jsonl").read_text()
    assert values(REWRITTEN["ledger.jsonl"](text)) == values(text)
