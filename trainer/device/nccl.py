"""NCCL's errors as reports of this rank, where torch would abort the process from a thread that nobody can catch.

Torch's watchdog looks at its collectives ten times a second. What it finds, a lost peer's error or a time-out, it first
notes, where ``get_error`` finds it in every mode; then it lets the recorders of a minute be written. After that it
throws by default, in its own thread: ``std::terminate``, SIGABRT. With ``CleanUpOnly`` it aborts the communicator
instead, which frees whoever waits for it. What is measured after that is worth nothing, so the error must be asked for
before a result is written. Not yet run on a GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainer.process.ranks import has_agent
from trainer.torch_private.training import backends_of_groups

if TYPE_CHECKING:
    from collections.abc import Iterable, MutableMapping

# torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp, ErrorHandlingMode: 0 none, 1 abort communicators and throw,
# 2 CleanUpOnly, 3 throw (the default). Its older name is heard too.
_HANDLING, _HANDLING_BEFORE = "TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING"
_CLEAN_UP_ONLY = "2"
# What torchrun puts into every rank's environment where its own says nothing.
_AGENTS_OWN = "1"
# With 0 what ends the watchdog's thread is only logged, whatever it is, NCCL's or CUDA's, unless its text begins with
# "CUDA Error" (torch's own say "CUDA error"). An error of CUDA is one of the main thread's next call as well, where
# it is an exception with a name; NCCL's have been noted.
_RETHROW = "TORCH_NCCL_RETHROW_CUDA_ERRORS"

# By the names of torch's ErrorType.
_MEANINGS = {
    "TIMEOUT": "a collective has run into its time-out (NCCL's watchdog)",
    "COMM_ERROR": "NCCL reports an error of a communicator; its words are in the log",
    "REMOTE_ERROR": "NCCL's watchdog of another rank reports an error",
}


def prepare(environ: MutableMapping[str, str]) -> None:
    """Let errors be asked for instead of thrown; before the process group, which reads this.

    The user's words stay, but for a 1 under torchrun: it cannot be told from the agent's own. Who wants the process
    torn down says 3.
    """
    if _HANDLING_BEFORE not in environ:
        is_said = _HANDLING in environ and not (has_agent(environ) and environ[_HANDLING] == _AGENTS_OWN)
        if not is_said:
            environ[_HANDLING] = _CLEAN_UP_ONLY
    environ.setdefault(_RETHROW, "0")


def error(backends: Iterable[Any]) -> str:
    """What the first of some NCCL backends that has met an error says; empty where all is well. Does not wait."""
    for backend in backends:
        name: str = backend.get_error().name
        if name != "SUCCESS":
            return _MEANINGS.get(name, name)
    return ""


def backends() -> list[Any]:
    """The NCCL backends of all process groups of this rank."""
    return [backend for backend in backends_of_groups("cuda") if hasattr(backend, "get_error")]
