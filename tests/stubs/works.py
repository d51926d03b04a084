"""A trainer that writes down its arguments and environment, sleeps, and ends with the exit code it was given."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

made = argparse.ArgumentParser()
made.add_argument("--cell", type=Path)
made.add_argument("--out", type=Path)
made.add_argument("--sleep", type=float, default=0.0)
made.add_argument("--exit-code", type=int, default=0)
made.add_argument("--failing-node", type=int, help="the only node that ends with that code")
made.add_argument("--says", default="", help="its last words")
made.add_argument("--fills", type=Path, help="a file with which it fills the disk")
arguments = made.parse_args()

node = os.environ["NODE_RANK"]
saw = {
    "cell": str(arguments.cell),
    "out": str(arguments.out),
    "nnodes": os.environ["NNODES"],
    "omp": os.environ["OMP_NUM_THREADS"],
    "usr2_is_ignored": signal.getsignal(signal.SIGUSR2) is signal.SIG_IGN,
    "path": sys.path,
    "started_at": time.time(),
}
(arguments.out / f"saw-{node}.json").write_text(json.dumps(saw))
print(f"node {node} says hello")
print(f"node {node} complains", file=sys.stderr)
time.sleep(arguments.sleep)
print(arguments.says, file=sys.stderr)
if arguments.fills is not None:
    with arguments.fills.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
(arguments.out / f"ended-{node}.json").write_text(json.dumps(time.time()))
if arguments.failing_node is None or arguments.failing_node == int(node):
    sys.exit(arguments.exit_code)
