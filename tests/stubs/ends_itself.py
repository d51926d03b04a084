"""A trainer whose ranks end as they are told: ``--fates 9,0`` sends signal 9 to rank 0 and lets rank 1 wait.

-1 exits with code 1 once every rank with a signal is gone; else torchrun would end the others too early.
Rank 0 first prints the text after ``--words`` to standard error.
"""

from __future__ import annotations

import os
import sys
import time

import psutil


def _await_signalled(count: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        siblings = psutil.Process(os.getppid()).children()
        if sum(process.status() == psutil.STATUS_ZOMBIE for process in siblings) >= count:
            return
        time.sleep(0.02)


fates = [int(fate) for fate in sys.argv[sys.argv.index("--fates") + 1].split(",")]
number = fates[int(os.environ.get("RANK", "0"))]
if "--words" in sys.argv and os.environ.get("RANK", "0") == "0":
    print(sys.argv[sys.argv.index("--words") + 1], file=sys.stderr, flush=True)
if number > 0:
    os.kill(os.getpid(), number)
if number < 0:
    _await_signalled(sum(fate > 0 for fate in fates))
    sys.exit(1)
time.sleep(60)
