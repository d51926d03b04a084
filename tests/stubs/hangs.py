"""A trainer that never ends, with a deaf child in a session of its own; ``ready-PID`` shows that both run."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

made = argparse.ArgumentParser()
made.add_argument("--cell", type=Path)
made.add_argument("--out", type=Path)
made.add_argument("--deaf", action="store_true", help="ignore the signals that ask to stop")
made.add_argument("--child", action="store_true", help="be the child")
arguments = made.parse_args()

if arguments.deaf:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
if not arguments.child:
    child = [sys.executable, __file__, "--deaf", "--child", "--out", str(arguments.out)]
    # Hard to find: it shares no process group, no pipe and no environment with its parent.
    subprocess.Popen(child, start_new_session=True, env={"PATH": os.environ["PATH"]})
else:
    (arguments.out / f"ready-{os.getpid()}").touch()
time.sleep(600)
