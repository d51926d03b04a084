"""``python -m sweep``."""

from __future__ import annotations

import sys

from sweep.cli.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
