"""Reads NCCL's errors, so that this rank reports them before torch aborts the process.

Torch's watchdog thread checks the collectives ten times a second. It notes an error (a lost peer, a time-out), which
``get_error`` returns in every mode, and has the flight recorder written. Then, by default, it throws in its own thread:
``std::terminate``, SIGABRT. With ``CleanUpOnly`` it aborts the communicator instead, and threads that wait for it go on
without its data. So the error must be read before a result is written. Not yet run on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from typing import Any

from trainer.process.ranks import has_agent
from trainer.torch_private.training import backends_of_groups

# torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp, ErrorHandlingMode: 0 none, 1 abort communicators and throw,
# 2 CleanUpOnly, 3 throw (the default). Torch reads its older name too.
_HANDLING, _HANDLING_BEFORE = "TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING"
_CLEAN_UP_ONLY = "2"
# Torchrun sets this value for every rank if its own environment has none.
_AGENTS_OWN = "1"
# With 0 torch only logs the exception that ends its watchdog, unless its text begins with "CUDA Error" (torch's own
# texts say "CUDA error"). The main thread meets a CUDA error in its next call anyway, as a named exception; NCCL's
# errors have been noted.
_RETHROW = "TORCH_NCCL_RETHROW_CUDA_ERRORS"

# By the names of torch's ErrorType.
_MESSAGES = {
    "TIMEOUT": "a collective has run into its time-out (NCCL's watchdog)",
    "COMM_ERROR": "NCCL reports an error of a communicator; the log has its message",
    "REMOTE_ERROR": "NCCL's watchdog of another rank reports an error",
}


def set_error_handling(environ: MutableMapping[str, str]) -> None:
    """Have errors noted instead of thrown. Call it before the process group is formed, which reads these variables.

    Values that the user has set stay, except a 1 under torchrun, which may be torchrun's own. A user who wants the
    process torn down sets 3.
    """
    if _HANDLING_BEFORE not in environ:
        is_set_by_user = _HANDLING in environ and not (has_agent(environ) and environ[_HANDLING] == _AGENTS_OWN)
        if not is_set_by_user:
            environ[_HANDLING] = _CLEAN_UP_ONLY
    environ.setdefault(_RETHROW, "0")


def first_error(backends: Iterable[Any]) -> str:
    """Message of the first NCCL backend with an error; empty if none has one. Does not wait."""
    for backend in backends:
        name: str = backend.get_error().name
        if name != "SUCCESS":
            return _MESSAGES.get(name, name)
    return ""


def backends() -> list[Any]:
    """The NCCL backends of all process groups of this rank."""
    return [backend for backend in backends_of_groups("cuda") if hasattr(backend, "get_error")]
