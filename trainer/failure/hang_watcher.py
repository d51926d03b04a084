"""Ends a rank that hangs, with an error file that names the phase."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Self

from sweep.core.attempts.attempt import ErrorClass
from trainer.failure.process_exit import EXIT_FAILED, leave

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from trainer.failure.error_report import ErrorReporter


class HangWatcher:
    """Ends a rank that makes no progress; on a GPU nobody else does so in time.

    When a peer is lost, NCCL raises nothing in the main thread, which waits for the device or inside torch: in a step,
    and also while process groups are formed or closed. This thread asks for the rank's progress and NCCL's errors.

    Args:
        reporter: Writes the error file; its progress says what the rank is doing.
        n_done: Returns, without waiting, the number of steps that have ended.
        limit_s: Seconds without a further step or phase after which the rank hangs; infinite for a rank without peers.
        error: Returns, without waiting, the error that happened in the background; empty if none did.
        period_s: Seconds between two checks.
        end: Ends the process with an exit code.
    """

    # NCCL's time-out begins with the collective, thus after the last step that ended; this limit is reached earlier.
    SHARE_OF_TIMEOUT = 0.95

    def __init__(
        self,
        reporter: ErrorReporter,
        n_done: Callable[[], int],
        *,
        limit_s: float,
        error: Callable[[], str] = str,
        period_s: float = 1.0,
        end: Callable[[int], object] | None = None,
    ) -> None:
        self._reporter = reporter
        self._n_done = n_done
        self._limit_s = limit_s
        self._error = error
        self._period_s = period_s
        self._end = end or leave
        self._over = threading.Event()

    def __enter__(self) -> Self:
        threading.Thread(target=self._watch, name="hang-watcher", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()

    def _watch(self) -> None:
        before, since = (-1, -1), time.monotonic()
        while not self._over.wait(self._period_s):
            now = time.monotonic()
            try:
                error, progress = self._error(), self._progress()
            except Exception as raised:  # after a device error every question to the device raises that error
                if self._main_thread_ends():
                    return
                self._reporter.exception(raised)
                self._leave()
                return
            if error:
                if self._main_thread_ends():
                    return
                self._give_up(error)
                return
            if progress != before:
                before, since = progress, now
            elif now - since > self._limit_s:
                self._give_up(self._hang(now - since, n_steps=progress[1]))
                return

    def _main_thread_ends(self) -> bool:
        """True if the main thread meets the error too, within one period; it reports the error more precisely."""
        return self._over.wait(self._period_s)

    def _progress(self) -> tuple[int, int]:
        return self._reporter.progress.n_phases, self._n_done()

    def _hang(self, waited_s: float, *, n_steps: int) -> str:
        progress = self._reporter.progress
        is_first_step = progress.step is not None and n_steps == 0
        first = " The first step includes compiling." if is_first_step else ""
        return (
            f"{progress.phase}: nothing has ended for {waited_s:.0f} s: a collective hangs, or a peer is lost.{first} "
            "If it really takes that long, raise trainer.comm_timeout_s."
        )

    def _give_up(self, message: str) -> None:
        self._reporter.report(ErrorClass.COMMUNICATION, message)
        self._leave()

    def _leave(self) -> None:
        # A rank that has written its result has not failed.
        self._end(0 if self._reporter.progress.is_done else EXIT_FAILED)
