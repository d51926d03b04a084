"""A process that drives the local cluster until it is killed or interrupted: ``RUN_DIR SUBMISSION [--no-submit]``."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from sweep.adapters.local.scheduler import LocalScheduler
from sweep.core.jobs.submission import Submission, submission_file

# What a shell starts in the background ignores Ctrl-C, and so does what that starts: the tests, perhaps.
signal.signal(signal.SIGINT, signal.default_int_handler)
run_dir, name = Path(sys.argv[1]), sys.argv[2]
made = Submission.parse((run_dir / submission_file(name)).read_text())
scheduler = LocalScheduler(run_dir, environ=os.environ, cores=2)
try:
    ids = scheduler.find(made) or scheduler.submit(made)
    while True:
        scheduler.poll(ids, since=0.0)
        time.sleep(0.1)
except KeyboardInterrupt:
    scheduler.close()
    print("closed", flush=True)
