"""``progress.json`` and a line in the log now and then, by a thread, so that no step waits for a file system."""

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
    """Tells how far the run is, from entering to leaving the context.

    Args:
        folder: The attempt's folder.
        steps: Steps in all.
        tokens_per_step: Tokens of one step over all ranks.
        n_done: Answers, without waiting, how many steps have ended.
        period_s: Seconds between two notes.
        say: Prints a line.
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
        say: Callable[[str], None] = console.say,
        log_every_s: float = 10.0,
    ) -> None:
        self._path = folder / PROGRESS_FILE
        self._steps = steps
        self._tokens_per_step = tokens_per_step
        self._n_done = n_done
        self._period_s = period_s
        self._say = say
        self._say_every_s = log_every_s
        self._said = (time.time(), 0)
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
        self._tell(now, done)
        note = Progress(step=done, steps=self._steps, time=now, tokens_per_s=rate)
        # A note that cannot be written is no reason to lose a measurement.
        with contextlib.suppress(OSError):
            write_atomically(self._path, note.render(), durable=False)

    def _tell(self, now: float, done: int) -> None:
        before, done_before = self._said
        if done == done_before or now - before < self._say_every_s:
            return
        rate = (done - done_before) * self._tokens_per_step / (now - before)
        self._say(console.progress(done, self._steps, rate))
        self._said = (now, done)
