"""Answers SIGTERM and SIGINT with an error file and an exit code."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import TYPE_CHECKING

from sweep.core.attempts.attempt import ErrorClass
from trainer.failure.process_exit import leave, living_children

if TYPE_CHECKING:
    from trainer.failure.error_report import ErrorReporter
    from trainer.process.ranks import Ranks

# An agent, a scheduler or Ctrl-C sends one of these to end a run from outside.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopWatcher:
    """Answers a stop signal within seconds, even while the main thread waits in a collective.

    Python runs signal handlers in the main thread between byte codes, and a blocked collective never gets there. The
    interpreter's C handler, however, writes the signal's number to a file descriptor at once, and a thread reads it.

    Args:
        reporter: Writes the error file.
        ranks: This rank's place.
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
