"""Runs torchrun in this process and writes how its ranks ended: ``python -m sweep.launch.agent FILE OPTIONS...``.

torchrun prints the exit code of a rank that a signal ended, but writes it to no file. This module is run by name, so
that no other module of the package imports torch.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from sweep.files import write_atomically
from sweep.launch.exits import RankExit, render


def main() -> None:
    """Run torchrun with the options that follow the file's name; torchrun ends this process."""
    file = Path(sys.argv.pop(1))
    try:
        runpy.run_module("torch.distributed.run", run_name="__main__", alter_sys=True)
    except Exception as error:
        # torch.distributed.elastic's ChildFailedError: failures by global rank.
        failures = getattr(error, "failures", None)
        if isinstance(failures, dict):
            exits = [
                RankExit(rank=rank, exit_code=failure.exitcode, time=failure.timestamp, local_rank=failure.local_rank)
                for rank, failure in failures.items()
            ]
            write_atomically(file, render(exits))
        raise


if __name__ == "__main__":
    main()
