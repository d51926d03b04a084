"""Ranks and their ends: ``--fates 9,0`` sends signal 9 to rank 0 and lets rank 1 wait; -1 is an error of its own."""

from __future__ import annotations

import os
import sys
import time

number = int(sys.argv[sys.argv.index("--fates") + 1].split(",")[int(os.environ.get("RANK", "0"))])
if number > 0:
    os.kill(os.getpid(), number)
if number < 0:
    sys.exit(1)
time.sleep(60)
