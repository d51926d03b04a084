"""Threads that end a rank with an error file: one when it hangs, one on SIGTERM or SIGINT."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Self

from sweep.core.attempts.attempt import ErrorClass
from trainer.failure.error_report import ErrorReporter
from trainer.failure.process_exit import EXIT_FAILED, leave, living_children
from trainer.process.ranks import Ranks

# An agent, a scheduler or Ctrl-C sends one of these to end a run from outside.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


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

    def __exit__(self, *_: object) -> None:
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


class StopWatcher:
    """Answers a stop signal within seconds, even while the main thread waits in a collective.

    Python runs signal handlers in the main thread between byte codes, and a blocked collective never gets there. The
    interpreter's C handler, however, writes the signal's number to a file descriptor at once, and a thread reads it.

    Args:
        grace_s: Seconds in which the main thread may first report a cause of its own.
    """

    def __init__(self, reporter: ErrorReporter, ranks: Ranks, *, grace_s: float = 1.0) -> None:
        self._reporter = reporter
        self._ranks = ranks
        self._grace_s = grace_s

    def start(self) -> None:
        """Report stop signals from now on. Call it in the main thread."""
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        for number in STOP_SIGNALS:
            signal.signal(number, lambda number, frame: None)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        threading.Thread(target=self._watch, args=(reader,), name="stop-watcher", daemon=True).start()

    def _watch(self, reader: int) -> None:
        received = signal.SIGTERM
        while (byte := os.read(reader, 1)) and (received := signal.Signals(byte[0])) not in STOP_SIGNALS:
            continue
        peers_alive = self._peers_are_alive()
        time.sleep(self._grace_s)
        if refusal := self._reporter.progress.refusal:
            # This rank waits for another one to report the refusal, and is stopped before it may report it itself.
            self._reporter.report(ErrorClass.REFUSED, refusal)
        elif peers_alive:
            self._reporter.report(ErrorClass.STOPPED, f"stopped by {received.name}")
        else:
            # The agent stops all its ranks when one dies: then the signal is a consequence, not someone's wish.
            self._reporter.report(ErrorClass.COMMUNICATION, "stopped because another rank of this node died")
        leave(128 + received)

    def _peers_are_alive(self) -> bool:
        if not self._ranks.has_agent:
            return True
        return living_children(os.getppid()) >= self._ranks.local_world_size
