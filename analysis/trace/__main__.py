"""``python -m analysis.trace FILE...``: see :mod:`analysis.trace.command`."""

import sys

from analysis.trace.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
