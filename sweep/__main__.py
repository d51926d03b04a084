"""Runs the command line: ``python -m sweep``."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    try:
        from sweep.cli.main import main

        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:  # while modules were still being imported
        sys.exit(130)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in ("sweep", ""):
            raise  # a defect of this project, no missing package
        print(
            f"error: the package {error.name} is not installed for {sys.executable}. Use the Python of the environment "
            "that `make venv` makes (.venv/bin/python in the checkout), or install the project: pip install .",
            file=sys.stderr,
        )
        sys.exit(2)
    except Exception:  # a defect; its message may quote a record or a log
        import traceback

        from sweep.core.encoding.message import visible

        print(visible(traceback.format_exc()), end="", file=sys.stderr)
        sys.exit(1)
