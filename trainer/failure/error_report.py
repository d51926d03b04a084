"""Writes what a rank leaves when it fails: its error file, and its last collectives from torch's flight recorder."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path

from sweep.core.attempts.attempt import ErrorClass, RankError
from sweep.core.attempts.error_text import classify_text
from sweep.core.encoding.record import RecordError
from sweep.core.records.attempt_record import parse_error, render_error
from sweep.core.records.layout import FLIGHT_PREFIX, rank_error
from sweep.files import read_text, write_atomically
from trainer.failure.process_exit import EXIT_FAILED, leave
from trainer.process.ranks import Ranks

# A thread that would report second waits this long for the first report to be written, before it ends the process.
_FIRST_REPORT_S = 5.0

# Length of the chain of exceptions (`raise ... from ...`) that is followed.
_MAX_CHAIN = 10

# Errors that another rank, or someone outside, caused: one such file for each node is enough.
_CONSEQUENCES = (ErrorClass.COMMUNICATION, ErrorClass.STOPPED)


def classify(error: BaseException) -> ErrorClass:
    """Return the class of an exception: its own, or that of the exception it was raised from."""
    link: BaseException | None = error
    for _ in range(_MAX_CHAIN):
        if link is None:
            break
        found = classify_text(f"{qualified_name(link)}: {link}")
        if found is not ErrorClass.EXCEPTION:
            return found
        link = link.__cause__ or link.__context__
    return ErrorClass.EXCEPTION


def full_message(error: BaseException) -> str:
    """Join the messages of an exception and its causes, the first cause first.

    A pipeline stage wraps every exception in "Failed to run stage backward", so its own message says nothing.
    """
    messages = [str(error)]
    while error.__cause__ is not None and len(messages) < _MAX_CHAIN:
        error = error.__cause__
        messages.append(str(error))
    return "\n".join(reversed(messages))


def qualified_name(error: BaseException) -> str:
    """Module and name of an exception's class."""
    return f"{type(error).__module__}.{type(error).__qualname__}"


@dataclass(slots=True)
class RankProgress:
    """How far a rank is; the training loop updates it and the error file quotes it."""

    step: int | None = None
    """The running step; None before the first."""
    memory_bytes: Callable[[], int | None] = field(default=lambda: None)
    """Returns the device memory that is allocated; None without a device."""
    is_done: bool = False
    """True once the result is written; what happens later is no failure of the run."""
    phase: str = "starting"
    n_phases: int = 0
    """Number of phases that have begun."""
    refusal: str = ""
    """Reason of a refusal that this rank leaves to another one to report; otherwise empty."""

    def begins(self, phase: str) -> None:
        """Enter the next phase."""
        self.phase = phase
        self.n_phases += 1


class ErrorReporter:
    """Writes this rank's error file, once, from whichever thread is first.

    Args:
        progress: Step, phase and memory of this rank.
        keep_flight: Saves the record of the last collectives; called on every rank when communication failed.
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
        self._is_written = threading.Event()

    def exception(self, error: BaseException) -> ErrorClass:
        """Report an exception with its traceback."""
        error_class = classify(error)
        text = "".join(traceback.format_exception(error))
        self.report(error_class, full_message(error), exception=qualified_name(error), trace=text)
        return error_class

    def report(self, error_class: ErrorClass, message: str, *, exception: str = "", trace: str = "") -> bool:
        """Write the file, unless this rank already has, or another rank of the node has reported the same consequence.

        If another thread is writing the file, wait some seconds for it: the caller ends the process next.
        """
        if self.progress.is_done:
            return False
        if not self._once.acquire(blocking=False):
            self._is_written.wait(_FIRST_REPORT_S)
            return False
        try:
            return self._write(error_class, message, exception, trace)
        finally:
            self._is_written.set()

    def _write(self, error_class: ErrorClass, message: str, exception: str, trace: str) -> bool:
        if error_class is ErrorClass.COMMUNICATION:
            # Every rank keeps its record: only all of them together show which rank was missing.
            self._keep_flight()
        if error_class in _CONSEQUENCES and self._node_has_reported():
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
            write_atomically(path, render_error(error, exception=exception, traceback=trace))
        except OSError as failure:
            print(f"cannot write {path}: {failure}", file=sys.stderr, flush=True)
            return False
        return True

    def is_reported(self, rank: int) -> bool:
        """True if that rank has an error file."""
        return (self._folder / rank_error(rank)).exists()

    def reported_class(self, rank: int) -> ErrorClass | None:
        """Return the error class that a rank has reported; None if it has reported nothing yet."""
        with contextlib.suppress(OSError, RecordError):
            return parse_error(read_text(self._folder / rank_error(rank))).error_class
        return None

    def _memory_bytes(self) -> int | None:
        # After a device error even this call may raise.
        with contextlib.suppress(Exception):
            return self.progress.memory_bytes()
        return None

    def _node_has_reported(self) -> bool:
        """Give lower ranks of the node a moment first: they meet the same consequence at the same time."""
        time.sleep(min(0.5, 0.05 * self._ranks.local_rank))
        return any(self.is_reported(rank) for rank in self._ranks.node_ranks)


@contextlib.contextmanager
def reported(reporter: ErrorReporter) -> Iterator[None]:
    """Turn every exception within into an error file and exit code 1."""
    try:
        yield
    except Exception as error:
        traceback.print_exc()
        reporter.exception(error)
        leave(EXIT_FAILED)


# Number of collectives to record: several steps of a model of a hundred layers.
_N_ENTRIES = 2000


def enable(folder: Path, environ: MutableMapping[str, str]) -> None:
    """Switch the recorder on and send NCCL's own dumps into the folder; variables that the user has set stay.

    Call it before the process group is formed, which reads these variables.
    """
    prefix = str(folder.resolve() / FLIGHT_PREFIX)
    # Earlier versions of torch know the buffer by this other name; if the user has set it, it counts.
    if "TORCH_NCCL_TRACE_BUFFER_SIZE" not in environ:
        environ.setdefault("TORCH_FR_BUFFER_SIZE", str(_N_ENTRIES))
    # NCCL's watchdog dumps by itself if it notices first, and adds the rank to the file name.
    environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "1")
    environ.setdefault("TORCH_FR_DUMP_TEMP_FILE", prefix)


def dump(folder: Path, rank: int) -> Path | None:
    """Write this rank's record; return None if it is empty or torch was never imported."""
    if "torch" not in sys.modules:
        return None
    path = folder / f"{FLIGHT_PREFIX}{rank}"
    # An error here must not hide the error that the record explains.
    with contextlib.suppress(Exception):
        import torch.distributed

        from trainer.torch_private.training import recorded_collectives

        if torch.distributed.is_initialized() and (trace := recorded_collectives()):
            write_atomically(path, trace)
            return path
    return None
