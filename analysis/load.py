"""Reads a run directory: what was asked, what the ledger says, and every record that counts; damage is reported."""

from __future__ import annotations

import fnmatch
import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from sweep.core.attempts.attempt import ABSENT, AttemptKey, Outcome, RankError
from sweep.core.attempts.history import AttemptState, History, RepeatHistory, fold
from sweep.core.attempts.ledger import parse_event, read_lines
from sweep.core.attempts.verdict import Evidence, judge
from sweep.core.encoding.record import RecordError
from sweep.core.records.attempt_file import AttemptFile
from sweep.core.records.error_file import parse_error
from sweep.core.records.layout import (
    ATTEMPT_FILE,
    CELLS_DIR,
    ERROR_GLOB,
    LEDGER_FILE,
    PROGRESS_FILE,
    RESULT_FILE,
    STEPS_FILE,
    SWEEP_FILE,
    attempt_dir,
    restart_dir,
)
from sweep.core.records.progress import Progress
from sweep.core.records.result import Result
from sweep.core.records.step import Step
from sweep.core.records.sweep_file import SweepFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path, PurePosixPath

    from analysis.bootstrap import FloatArray
    from sweep.core.cells.cell import Cell

_Record = TypeVar("_Record")
# Folders are found by name and believed by content: a result counts only where its own key leads to its folder.
_REPEAT = re.compile(r"repeat-(\d\d+)")
_ATTEMPT = re.compile(r"attempt-(\d\d+)")
_RESTART = re.compile(r"restart-(\d+)")


class RunDirError(Exception):
    """A run directory cannot be analysed at all; one line that says why."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Measurement:
    """One repeat's valid result with the steps of its window.

    Attributes:
        result: What the trainer measured.
        folder: Where it lies, relative to the run directory.
        step_times_s: Seconds of each readable step of the window, in order.
    """

    result: Result
    folder: str
    step_times_s: FloatArray


@dataclass(kw_only=True, slots=True)
class AttemptFiles:
    """The records in one attempt's folder, its restarts included.

    Attributes:
        key: The attempt.
        folder: Its folder, relative to the run directory.
        measurements: Valid results, by restart.
        errors: Error files that could be read.
        launches: What the launchers wrote (``attempt.json``), by restart.
        progress: Where the trainer was last.
        problems: What is wrong with its files, each with the file's name.
    """

    key: AttemptKey
    folder: str
    measurements: list[Measurement] = field(default_factory=list)
    errors: list[RankError] = field(default_factory=list)
    launches: list[AttemptFile] = field(default_factory=list)
    progress: Progress | None = None
    problems: list[str] = field(default_factory=list)

    @property
    def gpu_time_s(self) -> float | None:
        """Seconds that its runs took by their own clocks; None where one of them has no end."""
        if self.launches:
            spans = [None if run.ended_at is None else run.ended_at - run.started_at for run in self.launches]
        else:
            spans = [item.result.ended_at - item.result.started_at for item in self.measurements]
        # A clock that was set back, or a damaged time, tells nothing.
        known = [span for span in spans if span is not None and 0 <= span < math.inf]
        return sum(known) if spans and len(known) == len(spans) else None


@dataclass(frozen=True, kw_only=True, slots=True)
class RunData:
    """Everything a table rests on.

    Attributes:
        sweep: What the run directory is for.
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
        RunDirError: If it is not there, or ``sweep.json`` is missing, damaged or of another schema version.
    """
    sweep = _read_sweep(run_dir)
    history, notes = _read_ledger(run_dir / LEDGER_FILE)
    notes += _strangers(run_dir, sweep)
    files: dict[AttemptKey, AttemptFiles] = {}
    measurements: dict[str, tuple[Measurement, ...]] = {}
    problems: dict[str, tuple[str, ...]] = {}
    for cell_id, cell in sweep.cells.items():
        attempts = [_read_attempt(run_dir, key, cell) for key in _attempts(run_dir, cell_id)]
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
        raise RunDirError(f"{run_dir} is not a directory. Give the run directory of a sweep.")
    try:
        return SweepFile.parse(_text(run_dir / SWEEP_FILE))
    except FileNotFoundError:
        raise RunDirError(f"{run_dir} has no {SWEEP_FILE}: it is not the run directory of a sweep.") from None
    except (OSError, RecordError) as error:
        raise RunDirError(f"{run_dir / SWEEP_FILE} cannot be used: {error}") from error


def _text(path: Path) -> str:
    # A damaged byte must spoil its own record, not the reading of the run directory.
    return path.read_text(encoding="utf-8", errors="replace")


def _read_ledger(path: Path) -> tuple[History, list[str]]:
    try:
        events, problems = read_lines(_text(path).split("\n"), parse_event)
    except FileNotFoundError:
        return History(), [f"there is no {LEDGER_FILE}; how attempts ended is told from their own files"]
    except OSError as error:
        return History(), [f"{LEDGER_FILE} cannot be read ({error}); how attempts ended is told from their own files"]
    history = fold(events)
    return history, problems + history.problems


def _strangers(run_dir: Path, sweep: SweepFile) -> list[str]:
    unknown = sorted(set(_names(run_dir / CELLS_DIR)) - set(sweep.cells))
    return [f"{CELLS_DIR}/{name} belongs to no cell of {SWEEP_FILE} and was not read" for name in unknown]


def _attempts(run_dir: Path, cell_id: str) -> Iterator[AttemptKey]:
    root = run_dir / CELLS_DIR / cell_id
    found = [
        (AttemptKey(cell_id=cell_id, repeat=int(repeat[1]), attempt=int(attempt[1])), name, inner)
        for name in _names(root)
        if (repeat := _REPEAT.fullmatch(name))
        for inner in _names(root / name)
        if (attempt := _ATTEMPT.fullmatch(inner))
    ]
    for key, name, inner in sorted(found, key=lambda item: (item[0].repeat, item[0].attempt)):
        if attempt_dir(key).parts[-2:] == (name, inner):
            yield key


def _names(folder: Path) -> list[str]:
    """The names in a folder, sorted; none where it is not there (or no longer: the sweep may be running)."""
    try:
        return sorted(path.name for path in folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _read_attempt(run_dir: Path, key: AttemptKey, cell: Cell) -> AttemptFiles:
    relative = attempt_dir(key)
    files = AttemptFiles(key=key, folder=relative.as_posix())
    reader = _Reader(run_dir=run_dir, files=files, cell=cell)
    names = reader.read(relative, 0)
    for restart in sorted(int(match[1]) for name in names if (match := _RESTART.fullmatch(name))):
        reader.read(restart_dir(relative, restart), restart)
    return files


@dataclass(frozen=True, kw_only=True, slots=True)
class _Reader:
    """Reads the folders of one attempt into its :class:`AttemptFiles`."""

    run_dir: Path
    files: AttemptFiles
    cell: Cell

    def read(self, folder: PurePosixPath, restart: int) -> list[str]:
        """Take one folder in, that of the attempt or of a restart; the names that it holds."""
        names = _names(self.run_dir / folder)
        if ATTEMPT_FILE in names:
            self._keep(folder / ATTEMPT_FILE, AttemptFile.parse, self.files.launches)
        for name in fnmatch.filter(names, ERROR_GLOB):
            self._keep(folder / name, parse_error, self.files.errors)
        if PROGRESS_FILE in names:
            progress: list[Progress] = []
            self._keep(folder / PROGRESS_FILE, Progress.parse, progress)
            self.files.progress = progress[0] if progress else self.files.progress
        if RESULT_FILE in names:
            results: list[Result] = []
            self._keep(folder / RESULT_FILE, lambda text: self._result(text, restart), results)
            for result in results:
                times = self._step_times(folder / STEPS_FILE, result)
                where = folder.as_posix()
                self.files.measurements.append(Measurement(result=result, folder=where, step_times_s=times))
        return names

    def _report(self, path: PurePosixPath, problem: object) -> None:
        self.files.problems.append(f"{path}: {problem}")

    def _keep(self, path: PurePosixPath, parse: Callable[[str], _Record], into: list[_Record]) -> None:
        try:
            into.append(parse(_text(self.run_dir / path)))
        except (OSError, RecordError) as error:
            self._report(path, error)

    def _result(self, text: str, restart: int) -> Result:
        result = Result.parse(text, expected=self.files.key)
        if result.restart != restart:
            raise RecordError(f"result.json is that of restart {result.restart}, not of {restart}")
        result.check_against(self.cell)
        return result

    def _step_times(self, path: PurePosixPath, result: Result) -> FloatArray:
        try:
            lines = _text(self.run_dir / path).splitlines()
        except OSError as error:
            self._report(path, f"cannot be read ({error.strerror}); no step times")
            return np.empty(0)
        times, damaged = _window_times(lines)
        if damaged:
            self._report(path, f"{len(damaged)} damaged line(s) left out, the first: {damaged[0]}")
        if len(times) != result.window_steps:
            self._report(path, f"holds {len(times)} of the window's {result.window_steps} steps")
        return np.array(times, dtype=np.float64)


def _window_times(lines: list[str]) -> tuple[list[float], list[str]]:
    times: list[float] = []
    damaged: list[str] = []
    last = -1
    for number, line in enumerate(lines, 1):
        try:
            step = Step.parse(line)
        except RecordError as error:
            damaged.append(f"line {number}: {error}")
            continue
        if step.step <= last or not 0 < step.step_time_s < math.inf:
            damaged.append(f"line {number}: step={step.step!r} with step_time_s={step.step_time_s!r}")
            continue
        last = step.step
        if not step.is_warmup:
            times.append(step.step_time_s)
    return times, damaged


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
    exit_codes = {} if launch is None or launch.exit_code is None else {0: launch.exit_code}
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
    """One result a repeat: that of the attempt which the ledger says succeeded, else the first."""
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
