"""How long a ledger of 1,000,000 lines takes to be read and folded into a history.

The lines are those of 250,000 submissions of one attempt each, over 100,000 cells: reserved, submitted, asked to end,
ended by a node's failure or a measurement. The yardstick is ``json.loads`` of the same lines, which any reader of JSON
lines has to pay.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from sweep.adapters.files.ledger_file import LedgerFile
from sweep.core.attempts.attempt import AttemptKey, Outcome
from sweep.core.attempts.history import fold
from sweep.core.attempts.ledger import CancelRequested, Ended, Reserved, Submitted, render_event

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sweep.core.attempts.ledger import Event

LIMIT_S = 5.0
LINES = 1_000_000
CELLS = 100_000


def _events(number: int) -> Iterator[Event]:
    cell, attempt = number % CELLS, number // CELLS + 1
    key = AttemptKey(cell_id=f"{cell:016x}", repeat=1, attempt=attempt)
    name = f"weak_scaling-{number}"
    outcome = Outcome.SUCCEEDED if attempt == 3 else Outcome.NODE_FAIL
    yield Reserved(time=1.7e9 + number, submission=name, tasks=(key,), gpu_hours=64.0, gpus=64)
    yield Submitted(time=1.7e9 + number, submission=name, jobs=(str(1_000_000 + number),))
    yield CancelRequested(time=1.7e9 + number, keys=(key,))
    yield Ended(
        time=1.7e9 + number + 600,
        key=key,
        outcome=outcome,
        reason="NODE_FAIL on node-17",
        gpu_seconds=38400.0,
        evidence={"state": "NODE_FAIL", "exit_codes": {"0": 1}},
    )


def main() -> int:
    """Print what reading and folding take, next to the aim."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.jsonl"
        with path.open("w") as file:
            for number in range(LINES // 4):
                file.writelines(render_event(event) + "\n" for event in _events(number))
        start, cpu = time.perf_counter(), time.process_time()
        events, problems = LedgerFile(path).read()
        read = time.process_time()
        history = fold(events)
        wall_s, cpu_s, fold_s = time.perf_counter() - start, time.process_time() - cpu, time.process_time() - read
        start = time.process_time()
        with path.open() as file:
            for line in file:
                json.loads(line)
        least_s = time.process_time() - start
    print(
        f"{len(events):,} events read and folded in {cpu_s:.2f} s ({wall_s:.2f} s on the clock; folding alone "
        f"{fold_s:.2f} s): {len(history.repeats):,} repeats, {len(problems)} problems\n"
        f"  of the limit: {cpu_s / LIMIT_S:.0%} of {LIMIT_S:g} s; of the yardstick (json.loads alone): "
        f"{cpu_s / least_s:.2f} x {least_s:.2f} s"
    )
    return 0 if cpu_s < LIMIT_S and not problems else 1


if __name__ == "__main__":
    sys.exit(main())
