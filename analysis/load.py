"""Reads a run directory: what was asked, what the ledger says, and every record that counts; damage is reported."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from analysis.attempt_files import AttemptFiles, Measurement, names_in, read_attempt
from sweep.core.attempts.attempt import ABSENT, AttemptKey, Outcome
from sweep.core.attempts.history import AttemptState, History, RepeatHistory, fold
from sweep.core.attempts.ledger import parse_lines
from sweep.core.attempts.verdict import Evidence, judge
from sweep.core.encoding.record import RecordError
from sweep.core.records.layout import CELLS_DIR, LEDGER_FILE, SWEEP_FILE, attempt_dir
from sweep.core.records.sweep_file import SweepFile
from sweep.files import read_lines, read_text

# Folders are found by name and believed by content: a result counts only where its own key leads to its folder.
_REPEAT = re.compile(r"repeat-(\d\d+)")
_ATTEMPT = re.compile(r"attempt-(\d\d+)")


class LoadError(Exception):
    """A run directory cannot be analysed at all; one line that says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunData:
    """Everything a table rests on.

    Attributes:
        history: The ledger's history, completed from the folders where the ledger has lost lines.
        files: What each attempt's folder holds, by attempt.
        measurements: The results that count, by cell and in the order of the repeats: one a repeat.
        problems: What is wrong with the records of a cell, in words.
        notes: What is wrong with the run directory as a whole.
    """

    sweep: SweepFile
    history: History
    files: Mapping[AttemptKey, AttemptFiles]
    measurements: Mapping[str, tuple[Measurement, ...]]
    problems: Mapping[str, tuple[str, ...]]
    notes: tuple[str, ...]


def load(run_dir: Path) -> RunData:
    """Read a run directory, a running one included; nothing is written.

    Raises:
        LoadError: If it is not there, or ``sweep.json`` is missing, damaged or of another schema version.
    """
    sweep = _read_sweep(run_dir)
    history, notes = _read_ledger(run_dir / LEDGER_FILE)
    notes += _unknown_cells(run_dir, sweep)
    files: dict[AttemptKey, AttemptFiles] = {}
    measurements: dict[str, tuple[Measurement, ...]] = {}
    problems: dict[str, tuple[str, ...]] = {}
    for cell_id, cell in sweep.cells.items():
        attempts = [read_attempt(run_dir, key, cell) for key in _attempts(run_dir, cell_id)]
        files.update((attempt.key, attempt) for attempt in attempts)
        _complete(history, attempts)
        found = [problem for attempt in attempts for problem in attempt.problems]
        measurements[cell_id] = tuple(_chosen(history, attempts, found))
        problems[cell_id] = tuple(found)
    return RunData(
        sweep=sweep, history=history, files=files, measurements=measurements, problems=problems, notes=tuple(notes)
    )


def _read_sweep(run_dir: Path) -> SweepFile:
    if not run_dir.is_dir():
        raise LoadError(f"{run_dir} is not a directory. Give the run directory of a sweep.")
    try:
        return SweepFile.parse(read_text(run_dir / SWEEP_FILE))
    except FileNotFoundError:
        raise LoadError(f"{run_dir} has no {SWEEP_FILE}: it is not the run directory of a sweep.") from None
    except (OSError, RecordError) as error:
        raise LoadError(f"{run_dir / SWEEP_FILE} cannot be used: {error}") from error


def _read_ledger(path: Path) -> tuple[History, list[str]]:
    try:
        events, problems = parse_lines(read_lines(path))
    except FileNotFoundError:
        return History(), [f"there is no {LEDGER_FILE}; how attempts ended is told from their own files"]
    except OSError as error:
        return History(), [f"{LEDGER_FILE} cannot be read ({error}); how attempts ended is told from their own files"]
    history = fold(events)
    return history, problems + history.problems


def _unknown_cells(run_dir: Path, sweep: SweepFile) -> list[str]:
    unknown = sorted(set(names_in(run_dir / CELLS_DIR)) - set(sweep.cells))
    return [f"{CELLS_DIR}/{name} belongs to no cell of {SWEEP_FILE} and was not read" for name in unknown]


def _attempts(run_dir: Path, cell_id: str) -> Iterator[AttemptKey]:
    root = run_dir / CELLS_DIR / cell_id
    found = [
        (AttemptKey(cell_id=cell_id, repeat=int(repeat[1]), attempt=int(attempt[1])), name, inner)
        for name in names_in(root)
        if (repeat := _REPEAT.fullmatch(name))
        for inner in names_in(root / name)
        if (attempt := _ATTEMPT.fullmatch(inner))
    ]
    for key, name, inner in sorted(found, key=lambda item: (item[0].repeat, item[0].attempt)):
        if attempt_dir(key).parts[-2:] == (name, inner):
            yield key


def _complete(history: History, attempts: list[AttemptFiles]) -> None:
    """Give the history the attempts whose ledger lines are lost, judged by their own files."""
    for attempt in attempts:
        key = attempt.key
        if history.attempt(key) is None:
            repeat = history.repeats.setdefault((key.cell_id, key.repeat), RepeatHistory())
            repeat.attempts.append(_state_from_files(attempt))
            repeat.attempts.sort(key=lambda state: state.key.attempt)


def _state_from_files(attempt: AttemptFiles) -> AttemptState:
    launch = attempt.launches[-1] if attempt.launches else None
    exit_codes = {} if attempt.exit_code is None else {0: attempt.exit_code}
    state = AttemptState(
        key=attempt.key,
        submission="(not in the ledger)",
        index=0,
        reserved_at=0.0,
        gpu_hours=0.0,
        gpus=0,
        job_id=None if launch is None else launch.job_id,
    )
    if attempt.measurements:
        state.outcome = Outcome.SUCCEEDED
    elif attempt.errors or exit_codes:
        verdict = judge(Evidence(has_result=False, report=ABSENT, errors=attempt.errors, exit_codes=exit_codes))
        state.outcome, state.reason = verdict.outcome, verdict.reason
    return state


def _chosen(history: History, attempts: list[AttemptFiles], problems: list[str]) -> Iterator[Measurement]:
    """One result a repeat: that of the attempt which the ledger says succeeded, else of the first that has one."""
    by_repeat: dict[int, list[Measurement]] = {}
    for attempt in attempts:
        by_repeat.setdefault(attempt.key.repeat, []).extend(attempt.measurements)
    for repeat, found in sorted(by_repeat.items()):
        if not found:
            continue
        success = history.of(found[0].result.key.cell_id, repeat).succeeded
        first = next((item for item in found if success is not None and item.result.key == success.key), found[0])
        others = [item.folder for item in found if item is not first]
        if others:
            problems.append(f"repeat {repeat} was measured more than once; {', '.join(others)} left out")
        yield first
