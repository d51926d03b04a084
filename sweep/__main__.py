"""``python -m sweep``."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    try:
        from sweep.cli.main import main

        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:  # while modules were still being imported
        sys.exit(130)
