"""Reads the folder of one attempt: its valid results, and what launchers and trainers wrote; damage is noted."""

from __future__ import annotations

import fnmatch
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from sweep.core.attempts.attempt import AttemptKey, RankError
from sweep.core.encoding.record import RecordError
from sweep.core.records import layout
from sweep.core.records.attempt_record import AttemptFile, parse_error
from sweep.core.records.progress import Progress, Step
from sweep.core.records.result import Result, results_by_precedence
from sweep.files import read_lines, read_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path, PurePosixPath

    from analysis.bootstrap import FloatArray
    from sweep.core.cells.cell import Cell

_Record = TypeVar("_Record")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Measurement:
    """One repeat's valid result with the steps of its window.

    Attributes:
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
        folder: Its folder, relative to the run directory.
        measurements: Valid results, the one that counts first.
        errors: Error files of its latest run that could be read.
        launches: What the launchers wrote (``attempt.json``), in the order of its runs.
        progress: The last step of its latest run.
        restart: Its latest run: how often the job had run before.
        problems: Faults of its files, each with the file's name.
    """

    key: AttemptKey
    folder: str
    measurements: list[Measurement] = field(default_factory=list)
    errors: list[RankError] = field(default_factory=list)
    launches: list[AttemptFile] = field(default_factory=list)
    progress: Progress | None = None
    restart: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> int | None:
        """Exit code of its latest run, by its launcher; None where unknown."""
        return next((run.exit_code for run in self.launches if run.restart == self.restart), None)

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


def names_in(folder: Path) -> list[str]:
    """The names in a folder, sorted; none where it is not there (or no longer: the sweep may be running)."""
    try:
        return sorted(path.name for path in folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def read_attempt(run_dir: Path, key: AttemptKey, cell: Cell) -> AttemptFiles:
    """All that the folder of one attempt holds, its restarts included."""
    files = AttemptFiles(key=key, folder=layout.attempt_dir(key).as_posix())
    reader = _Reader(run_dir=run_dir, files=files)
    results: dict[int, str | OSError] = {}
    for restart in layout.restarts_in(names_in(run_dir / layout.attempt_dir(key))):
        reader.read_run(restart, results)
    found, problems = results_by_precedence(key, cell, results)
    for restart, problem in sorted(problems.items()):
        reader.report(reader.folder(restart) / layout.RESULT_FILE, problem)
    for restart, result in found.items():
        times = reader.step_times(reader.folder(restart) / layout.STEPS_FILE, result)
        where = reader.folder(restart).as_posix()
        files.measurements.append(Measurement(result=result, folder=where, step_times_s=times))
    return files


@dataclass(frozen=True, kw_only=True, slots=True)
class _Reader:
    """Reads the folders of one attempt into its :class:`AttemptFiles`."""

    run_dir: Path
    files: AttemptFiles

    def folder(self, restart: int) -> PurePosixPath:
        """Folder of one run of the attempt's job, relative to the run directory."""
        return layout.restart_dir(layout.attempt_dir(self.files.key), restart)

    def read_run(self, restart: int, results: dict[int, str | OSError]) -> None:
        """Take in one run of the attempt's job, after those before it; its result file goes to the others."""
        folder, files = self.folder(restart), self.files
        names = names_in(self.run_dir / folder)
        launched = self._record(folder / layout.ATTEMPT_FILE, AttemptFile.parse, names)
        if launched is not None:
            files.launches.append(launched)
        errors = [self._record(folder / name, parse_error, names) for name in fnmatch.filter(names, layout.ERROR_GLOB)]
        # What ended an earlier run did not end the attempt: its job was run again.
        files.restart, files.errors = restart, [error for error in errors if error is not None]
        files.progress = self._record(folder / layout.PROGRESS_FILE, Progress.parse, names)
        if layout.RESULT_FILE in names:
            try:
                results[restart] = read_text(self.run_dir / folder / layout.RESULT_FILE)
            except OSError as error:
                results[restart] = error

    def report(self, path: PurePosixPath, problem: object) -> None:
        """Note what is wrong with a file."""
        self.files.problems.append(f"{path}: {problem}")

    def _record(self, path: PurePosixPath, parse: Callable[[str], _Record], names: list[str]) -> _Record | None:
        try:
            return parse(read_text(self.run_dir / path)) if path.name in names else None
        except (OSError, RecordError) as error:
            self.report(path, error)
            return None

    def step_times(self, path: PurePosixPath, result: Result) -> FloatArray:
        """Seconds of each readable step of the result's window."""
        try:
            times, damaged = _window_times(read_lines(self.run_dir / path))
        except OSError as error:
            self.report(path, f"cannot be read ({error.strerror}); no step times")
            return np.empty(0)
        if damaged:
            self.report(path, f"{damaged[0]} damaged line(s) left out, the first: {damaged[1]}")
        if len(times) != result.window_steps:
            self.report(path, f"holds {len(times)} of the window's {result.window_steps} steps")
        return np.array(times, dtype=np.float64)


def _window_times(lines: Iterable[bytes]) -> tuple[list[float], tuple[int, str] | None]:
    """Seconds of each readable step of the window; how many lines are damaged, and the first; None: none is."""
    times: list[float] = []
    damaged: tuple[int, str] | None = None
    last = -1
    for number, line in enumerate(lines, 1):
        try:
            step = Step.parse(line.decode("utf-8", errors="replace"))
            if step.step <= last or not 0 < step.step_time_s < math.inf:
                raise RecordError(f"step={step.step!r} with step_time_s={step.step_time_s!r}")
        except RecordError as error:
            count, first = damaged or (0, f"line {number}: {error}")
            damaged = count + 1, first
            continue
        last = step.step
        if not step.is_warmup:
            times.append(step.step_time_s)
    return times, damaged
