"""The entry point: reads the command line, runs the verb, and turns errors into one screen and an exit code."""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from sweep.cli import args as arguments
from sweep.cli.common import BAD_USAGE, INTERRUPTED, OK, CommandError
from sweep.cli.console import print_error
from sweep.core.encoding.message import visible
from sweep.files import PRIVATE_UMASK


def main(argv: Sequence[str]) -> int:
    """Run one command and return the exit code of the process."""
    os.umask(PRIVATE_UMASK)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a locale may lack a letter
    try:
        asked = arguments.parse(argv)
        if asked is None:
            return _help(argv)
        # Each verb imports what it needs: `plan` must answer within a second.
        verb = importlib.import_module(f"sweep.cli.verbs.{asked.verb}")
        return int(verb.main(asked))
    except BrokenPipeError:
        # The reader, such as head, has closed the pipe; the command itself is done.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return INTERRUPTED
    except PermissionError as error:
        if error.filename is None:
            raise  # not about a file
        print_error(
            f"error: {error.filename}: {error.strerror}. A run directory is its owner's alone; its owner can open it "
            "to a group: chmod 750 to read, chmod 2770 to write."
        )
        return BAD_USAGE
    except OSError as error:
        from sweep.core.attempts.error_text import STORAGE_ERRORS

        if error.errno not in STORAGE_ERRORS:
            raise
        print_error(f"error: {error}. Make room, or mend the file system, and give the same command again.")
        return BAD_USAGE
    except _expected_errors() as error:
        print_error(f"error: {error}")
        return BAD_USAGE


def _expected_errors() -> tuple[type[Exception], ...]:
    """Errors that the user or the machine causes: they are shown without a traceback."""
    from sweep.adapters.files.lease import LeaseHeldError, LeaseLostError
    from sweep.adapters.files.sources_snapshot import SourcesError
    from sweep.config import ConfigError
    from sweep.core.cells.axes import GridError
    from sweep.core.records.sweep_file import PinError
    from sweep.files import RunDirError
    from sweep.ports import SchedulerError

    return (
        CommandError,
        ConfigError,
        GridError,
        LeaseHeldError,
        LeaseLostError,
        PinError,
        RunDirError,
        SchedulerError,
        SourcesError,
        arguments.UsageError,
    )


def _help(argv: Sequence[str]) -> int:
    from sweep.config import available

    config_dir = None
    if "--config-dir" in argv[:-1]:
        config_dir = Path(argv[argv.index("--config-dir") + 1])
    print(visible(arguments.help_text(available("grid", config_dir))))
    return OK
