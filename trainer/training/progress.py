"""Writes ``progress.json`` and a log line now and then, in a thread, so that no step waits for a file system."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Self

from sweep.core.records.layout import PROGRESS_FILE
from sweep.core.records.progress import Progress
from sweep.files import write_atomically
from trainer.training import console

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType


class ProgressWriter:
    """Writes the number of steps done, about once a second, while the context is entered.

    Args:
        folder: The attempt's folder.
        steps: Number of steps of the run.
        tokens_per_step: Tokens of one step over all ranks.
        n_done: Returns, without waiting, the number of steps that have ended.
        period_s: Seconds between two writes of the file.
        log: Prints a line.
        log_every_s: Seconds between two lines.
    """

    def __init__(
        self,
        folder: Path,
        *,
        steps: int,
        tokens_per_step: int,
        n_done: Callable[[], int],
        period_s: float = 1.0,
        log: Callable[[str], None] = console.log,
        log_every_s: float = 10.0,
    ) -> None:
        self._path = folder / PROGRESS_FILE
        self._steps = steps
        self._tokens_per_step = tokens_per_step
        self._n_done = n_done
        self._period_s = period_s
        self._log = log
        self._log_every_s = log_every_s
        self._logged = (time.time(), 0)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._repeat, name="progress", daemon=True)
        self._last = (time.time(), 0)

    def __enter__(self) -> Self:
        self._write()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        self._write()

    def _repeat(self) -> None:
        while not self._over.wait(self._period_s):
            self._write()

    def _write(self) -> None:
        now, done = time.time(), self._n_done()
        before, done_before = self._last
        rate = (done - done_before) * self._tokens_per_step / (now - before) if done > done_before else None
        self._last = (now, done)
        self._log_progress(now, done)
        note = Progress(step=done, steps=self._steps, time=now, tokens_per_s=rate)
        # A failed write of this file must not end the measurement.
        with contextlib.suppress(OSError):
            write_atomically(self._path, note.render(), durable=False)

    def _log_progress(self, now: float, done: int) -> None:
        before, done_before = self._logged
        if done == done_before or now - before < self._log_every_s:
            return
        rate = (done - done_before) * self._tokens_per_step / (now - before)
        self._log(console.progress(done, self._steps, rate))
        self._logged = (now, done)
