"""What is left of a rank that fails: an error file with its class, and an exit that does not wait for anyone."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Self

from sweep.core.attempts.attempt import ErrorClass, RankError
from sweep.core.attempts.error_text import classify_text
from sweep.core.encoding.record import RecordError
from sweep.core.records.error_file import parse_error, render_error
from sweep.core.records.layout import rank_error
from trainer.process.files import publish

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from trainer.process.ranks import Ranks

EXIT_FAILED = 1
EXIT_REFUSED = 2
# What ends a run from outside: an agent's or a scheduler's signal, or Ctrl-C.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

# How long a thread that has lost to another one's report waits until that is written, before it ends the process.
_ANOTHERS_REPORT_S = 5.0

# How far the exceptions are followed that another one was raised from.
_LINKS = 10

# Errors that another rank, or someone outside, caused: of each node one such file is enough.
_CONSEQUENCES = (ErrorClass.COMMUNICATION, ErrorClass.STOPPED)


def classify(error: BaseException) -> ErrorClass:
    """The kind of an exception: its own, or that of what it was raised from."""
    link: BaseException | None = error
    for _ in range(_LINKS):
        if link is None:
            break
        found = classify_text(f"{qualified_name(link)}: {link}")
        if found is not ErrorClass.EXCEPTION:
            return found
        link = link.__cause__ or link.__context__
    return ErrorClass.EXCEPTION


def full_message(error: BaseException) -> str:
    """What an exception says, after what it was raised from: a pipeline's stage says no more than that it failed."""
    said = [str(error)]
    while error.__cause__ is not None and len(said) < _LINKS:
        error = error.__cause__
        said.append(str(error))
    return "\n".join(reversed(said))


def qualified_name(error: BaseException) -> str:
    """Module and name of an exception's class."""
    return f"{type(error).__module__}.{type(error).__qualname__}"


@dataclass(slots=True)
class RankProgress:
    """What an error file tells beside the error; the loop keeps it up to date.

    Attributes:
        step: The step that is running; None before the first.
        memory_bytes: Answers how much device memory is allocated; None where there is no device.
        is_done: The result is written: what happens from now on is no failure of the run.
        phase: What the rank is doing.
        n_phases: How many phases have begun.
        refusal: Why this rank refuses, while it waits for another one to say it; empty otherwise.
    """

    step: int | None = None
    memory_bytes: Callable[[], int | None] = field(default=lambda: None)
    is_done: bool = False
    phase: str = "starting"
    n_phases: int = 0
    refusal: str = ""

    def begins(self, phase: str) -> None:
        """Note what comes now."""
        self.phase = phase
        self.n_phases += 1


class ErrorReporter:
    """Writes this rank's error file, once, whichever thread is first.

    Args:
        folder: Where.
        ranks: This rank's place.
        progress: What else the file tells.
        keep_flight: Keeps the record of the last collectives; called, on every rank, when communication failed.
    """

    def __init__(
        self,
        folder: Path,
        ranks: Ranks,
        progress: RankProgress,
        *,
        keep_flight: Callable[[], object] = lambda: None,
    ) -> None:
        self._folder = folder
        self._ranks = ranks
        self.progress = progress
        self._keep_flight = keep_flight
        self._once = threading.Lock()
        self._is_over = threading.Event()

    def exception(self, error: BaseException) -> ErrorClass:
        """Report an exception with its traceback."""
        error_class = classify(error)
        text = "".join(traceback.format_exception(error))
        self.report(error_class, full_message(error), exception=qualified_name(error), trace=text)
        return error_class

    def report(self, error_class: ErrorClass, message: str, *, exception: str = "", trace: str = "") -> bool:
        """Write the file, unless this rank already has, or it would only repeat what its node has said.

        While another thread writes it, this waits some seconds for that: whoever reports ends the process next.
        """
        if self.progress.is_done:
            return False
        if not self._once.acquire(blocking=False):
            self._is_over.wait(_ANOTHERS_REPORT_S)
            return False
        try:
            return self._write(error_class, message, exception, trace)
        finally:
            self._is_over.set()

    def _write(self, error_class: ErrorClass, message: str, exception: str, trace: str) -> bool:
        if error_class is ErrorClass.COMMUNICATION:
            # Before the others are asked: which rank was missing shows only where all ranks' records are there.
            self._keep_flight()
        if error_class in _CONSEQUENCES and self._is_said_on_node():
            return False
        error = RankError(
            rank=self._ranks.rank,
            node_rank=self._ranks.node_rank,
            time=time.time(),
            error_class=error_class,
            message=message,
            step=self.progress.step,
            memory_bytes=self._memory_bytes(),
        )
        path = self._folder / rank_error(self._ranks.rank)
        try:
            publish(path, render_error(error, exception=exception, traceback=trace))
        except OSError as failure:
            print(f"cannot write {path}: {failure}", file=sys.stderr, flush=True)
            return False
        return True

    def is_reported(self, rank: int) -> bool:
        """Whether that rank has an error file."""
        return (self._folder / rank_error(rank)).exists()

    def reported_class(self, rank: int) -> ErrorClass | None:
        """What kind of error that rank has reported; None where none, yet."""
        with contextlib.suppress(OSError, RecordError):
            return parse_error((self._folder / rank_error(rank)).read_text()).error_class
        return None

    def _memory_bytes(self) -> int | None:
        # After a device error even this question may raise.
        with contextlib.suppress(Exception):
            return self.progress.memory_bytes()
        return None

    def _is_said_on_node(self) -> bool:
        """Give the ranks before this one on the node a moment; they see the same consequence at the same time."""
        time.sleep(min(0.5, 0.05 * self._ranks.local_rank))
        return any(self.is_reported(rank) for rank in self._ranks.node_ranks)


class StopWatcher:
    """Answers a stop signal within seconds, even while the main thread waits in a collective.

    Python runs signal handlers in the main thread between byte codes, which a blocked collective never reaches. The
    interpreter's C handler, though, writes the signal's number to a descriptor at once, and a thread reads it.

    Args:
        reporter: Writes the error file.
        ranks: This rank's place.
        grace_s: How long the main thread may take to report a cause of its own first.
    """

    def __init__(self, reporter: ErrorReporter, ranks: Ranks, *, grace_s: float = 1.0) -> None:
        self._reporter = reporter
        self._ranks = ranks
        self._grace_s = grace_s

    def start(self) -> None:
        """From now on a stop signal is reported. Call it in the main thread."""
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
            # Nobody has said it yet, and this rank's turn will not come.
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


class HangWatcher:
    """Ends a rank that gets no further, which on a GPU nobody else does in time.

    NCCL raises nothing in the main thread, which waits for the device, or in torch's code, while a peer is lost: in a
    step, and as well while groups are formed or closed. This asks how far the rank is, and what NCCL has noted.

    Args:
        reporter: Writes the error file; its progress say what the rank is doing.
        n_done: Answers, without waiting, how many steps have ended.
        limit_s: Seconds without a further step, or phase, that are too many; infinite where nobody is waited for.
        error: Answers, without waiting, what went wrong in the background; empty where nothing has.
        period_s: Seconds between two questions.
        end: Ends the process with an exit code.
    """

    # NCCL's time-out begins with the collective, so after the last step that ended; this is earlier than that.
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
            except Exception as raised:  # after an error of the device every question about it raises that error
                if self._main_thread_says_it():
                    return
                self._reporter.exception(raised)
                self._leave()
                return
            if error:
                if self._main_thread_says_it():
                    return
                self._give_up(error)
                return
            if progress != before:
                before, since = progress, now
            elif now - since > self._limit_s:
                self._give_up(self._hang(now - since, n_steps=progress[1]))
                return

    def _main_thread_says_it(self) -> bool:
        """Whether it has met the error within a moment; it reports then, often in a more specific form."""
        return self._over.wait(self._period_s)

    def _progress(self) -> tuple[int, int]:
        return self._reporter.progress.n_phases, self._n_done()

    def _hang(self, waited_s: float, *, n_steps: int) -> str:
        where = self._reporter.progress
        is_first_step = where.step is not None and n_steps == 0
        first = " The first step includes compiling." if is_first_step else ""
        return (
            f"{where.phase}: nothing has ended for {waited_s:.0f} s: a collective hangs, or a peer is lost.{first} "
            "If it really takes that long, raise trainer.comm_timeout_s."
        )

    def _give_up(self, message: str) -> None:
        self._reporter.report(ErrorClass.COMMUNICATION, message)
        self._leave()

    def _leave(self) -> None:
        # With its result written a rank has nothing to fail at any more.
        self._end(0 if self._reporter.progress.is_done else EXIT_FAILED)


# How often a process's threads are listed anew because one of them ended meanwhile.
_LOOKS = 100


def living_children(pid: int) -> int:
    """Children of a process that still run; a large number where the kernel does not tell."""
    for _ in range(_LOOKS):
        try:
            tasks = list(Path(f"/proc/{pid}/task").iterdir())
            children = [child for task in tasks for child in (task / "children").read_text().split()]
        except OSError:
            # A thread ended between the listing and its reading, and another one has its children now: look again.
            # Or the whole process is gone, or the kernel keeps no such lists.
            continue
        return sum(not _is_zombie(child) for child in children)
    return sys.maxsize


def _is_zombie(pid: str) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] in ("Z", "X")


_PR_SET_PDEATHSIG = 1


def die_with_agent(ranks: Ranks) -> None:
    """Ask the kernel to kill this rank when its torchrun agent dies, so that no rank outlives it (Linux only)."""
    if not ranks.has_agent or not sys.platform.startswith("linux"):
        return
    agent = os.getppid()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != agent:
        # It died before the kernel was asked.
        os._exit(EXIT_FAILED)


def leave(code: int) -> NoReturn:
    """End this process now: tearing down a communicator whose peers are gone can hang for ever."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


@contextlib.contextmanager
def reported(reporter: ErrorReporter) -> Iterator[None]:
    """Every exception within leaves an error file, and the process, with exit code 1."""
    try:
        yield
    except Exception as error:
        traceback.print_exc()
        reporter.exception(error)
        leave(EXIT_FAILED)
