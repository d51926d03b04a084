"""Classifies an error by its text, as torch, gloo, NCCL, the driver and the file system word it."""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping, Sequence

from sweep.core.attempts.attempt import ErrorClass

STORAGE_ERRORS: Mapping[int, str] = {
    errno.ENOSPC: "No space left on device",
    errno.EDQUOT: "Disk quota exceeded",
    errno.EROFS: "Read-only file system",
    errno.ESTALE: "Stale file handle",
}
"""Errors of a file system that no code and no node is to blame for: numbers, and what the C library says."""

# The first line that fits decides: NCCL reports a device's error, or its lack of memory, as one of its own, so what is
# more specific stands first. Patterns are searched in "qualified class name: message".
CLASSIFICATION: tuple[tuple[ErrorClass, re.Pattern[str]], ...] = tuple(
    (error_class, re.compile(pattern, re.IGNORECASE))
    for error_class, pattern in (
        (ErrorClass.STORAGE, "|".join((*STORAGE_ERRORS.values(), "Stale NFS file handle"))),
        (ErrorClass.OOM_HOST, r"^(builtins\.)?MemoryError\b|_ArrayMemoryError"),
        (ErrorClass.OOM_HOST, r"DefaultCPUAllocator: (can't|not enough)|Cannot allocate memory"),
        (ErrorClass.OOM_DEVICE, r"OutOfMemoryError|(CUDA|HIP) out of memory"),
        (ErrorClass.OOM_DEVICE, r"Cuda(Error)?.{0,30}out of memory|CU(BLAS|DNN|SOLVER)_STATUS_ALLOC_FAILED"),
        (ErrorClass.EXCEPTION, r"device-side assert triggered"),
        (ErrorClass.DEVICE, r"illegal memory access|illegal instruction|misaligned address|\bECC\b|\bXid\b"),
        (ErrorClass.DEVICE, r"fallen off the bus|fell off the bus|GPU is lost|unspecified launch failure"),
        (ErrorClass.DEVICE, r"(devices are|device is) busy or unavailable|No CUDA GPUs are available"),
        (ErrorClass.DEVICE, r"CUDA unknown error|hardware stack error"),
        (ErrorClass.COMMUNICATION, r"Dist(Network|Store|Backend)Error"),
        (ErrorClass.COMMUNICATION, r"\bNCCL\b|ncclRemoteError|ncclSystemError|ncclInternalError"),
        (ErrorClass.COMMUNICATION, r"\bgloo\b|Connection (closed by|reset by|refused)|Broken pipe|socket timeout"),
        (ErrorClass.COMMUNICATION, r"Watchdog caught collective|Timed out waiting \d+ms|wait timeout after"),
        (ErrorClass.COMMUNICATION, r"client socket has timed out"),
    )
)


def classify_text(text: str) -> ErrorClass:
    """The kind of an error by its class name and message; what no line of the table fits is an exception."""
    for error_class, pattern in CLASSIFICATION:
        if pattern.search(text):
            return error_class
    return ErrorClass.EXCEPTION


# What NCCL and torch print without anything being wrong, or before it is: a warning that names no error, a log line of
# torch below an error (``[W1130 05:57:44.3 ...]``).
_IDLE_TALK = re.compile(
    r"NCCL (INFO|version)|NCCL WARN(?!.*(error|failed with))|^(\[rank\d+\]:)?\s*\[[IW]\d", re.IGNORECASE
)
# What a process prints as it dies of an exception that nobody caught.
_DYING = re.compile(r"terminate called|^\s*what\(\):")


def classify_lines(lines: Sequence[str]) -> tuple[ErrorClass, str] | None:
    """The kind of error that the last lines of a log tell of, and the line that does; None where none of them does.

    What was printed at the end itself counts first, then what there is before it.
    """
    spoken = [line.strip() for line in lines if not _IDLE_TALK.search(line)]
    dying = next((i for i in reversed(range(len(spoken))) if "terminate called" in spoken[i]), None)
    if dying is None:
        dying = next((i for i, line in enumerate(spoken) if _DYING.search(line)), len(spoken))
    return _first_class(spoken[dying:]) or _first_class(spoken[:dying])


def _first_class(lines: Sequence[str]) -> tuple[ErrorClass, str] | None:
    for error_class, pattern in CLASSIFICATION:
        found = next((line for line in lines if pattern.search(line)), None)
        if found is not None:
            return error_class, found
    return None
