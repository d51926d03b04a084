"""``python -m analysis RUN_DIR --out DIR``: the tables and figures of a run directory, finished or still running.

``python -m analysis trace FILE...`` reduces traces of the profiler (:mod:`analysis.trace`).
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import traceback
from pathlib import Path

if __name__ == "__main__" and sys.argv[1:2] == ["trace"]:
    # Before the imports below: traces are reduced where the trainer ran, which may lack the extra 'analysis'.
    from analysis.trace.__main__ import main as reduce_traces

    sys.exit(reduce_traces(sys.argv[2:]))

try:
    from analysis.export import to_text, write_tables
    from analysis.figures.figure import write_figures
    from analysis.load import LoadError, load
    from analysis.table import build
    from sweep.core.encoding.message import visible
    from sweep.core.records.layout import ACTED_ON
    from sweep.files import PRIVATE_UMASK, strangers_files, umask_for
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] in ("analysis", "sweep", ""):
        raise  # a defect of this project, no missing package
    print(
        f"analysis: {error.name} is not installed for {sys.executable}: install the extra 'analysis'.", file=sys.stderr
    )
    sys.exit(2)

_EPILOG = (
    "exit codes: 0 written; 2 no usable run directory, or the output cannot be written; 3 written, but a series that "
    "spans two fingerprints, or two kinds of source, has no speed-up or efficiency (the notes name the fields)"
)


def main(arguments: list[str] | None = None) -> int:
    """Make the tables and figures; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m analysis", description=(__doc__ or "").partition("\n")[0], epilog=_EPILOG
    )
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="the run directory of a sweep; only read")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where tables/ and figures/ go (default: RUN_DIR)")
    parser.add_argument(
        "--mix-fingerprints",
        action="store_true",
        help="compare within a series although its runs had different software or devices",
    )
    options = parser.parse_args(arguments)
    try:
        table = build(load(options.run_dir), mix_fingerprints=options.mix_fingerprints)
    except LoadError as error:
        print(visible(f"analysis: {error}"), file=sys.stderr)
        return 2
    try:
        strangers = strangers_files(options.run_dir, ACTED_ON)
    except OSError as error:
        strangers = f"{error.filename} cannot be looked into: {error.strerror}"
    for warning in filter(None, [*table.warnings, strangers]):
        print(visible(f"analysis: {warning}"), file=sys.stderr)
    out = options.out or options.run_dir
    try:
        # As the folder is that they go into: one that does not exist yet is made private.
        os.umask(umask_for(out) if out.exists() else PRIVATE_UMASK)
        written = write_tables(table, out)
        figures = write_figures(table, out)
    except OSError as error:
        print(visible(f"analysis: cannot write to {error.filename or out}: {error.strerror or error}"), file=sys.stderr)
        return 2
    _print(to_text(table), *written, *figures, *([] if figures else ["no figure: nothing was measured yet"]))
    return 3 if table.refused else 0


def _print(*lines: object) -> None:
    """Print for people, of whom some have a locale without our letters, and some pipe it into ``head``."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        print(*(visible(str(line)) for line in lines), sep="\n", flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Exception:  # a defect; its message may quote a record
        print(visible(traceback.format_exc()), end="", file=sys.stderr)
        sys.exit(1)
