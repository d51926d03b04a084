"""The launcher lets its processes open as many files as the node allows."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
PROGRAM = """
import resource, sys
from sweep.launch.__main__ import main
try:
    main(["--submission", "/nowhere/none.json"])
finally:
    print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


def test_a_low_soft_limit_on_open_files_is_raised_as_far_as_the_hard_one_allows() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4096 if hard == resource.RLIM_INFINITY else min(hard, 4096)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, wanted)),
    )
    assert done.stdout.split() == [str(wanted)]
