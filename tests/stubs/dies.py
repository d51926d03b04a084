"""``python -m sweep`` that dies, as from kill -9, before or after its nth ledger write (DIES_BEFORE, DIES_AFTER)."""

from __future__ import annotations

import os
import sys

from sweep.adapters.files.ledger_file import LedgerFile
from sweep.cli.main import main
from sweep.core.attempts.ledger import Event

_append = LedgerFile.append
_written = 0


def _append_and_die(self: LedgerFile, event: Event) -> None:
    global _written
    _written += 1
    if str(_written) == os.environ.get("DIES_BEFORE"):
        os._exit(137)
    _append(self, event)
    if str(_written) == os.environ.get("DIES_AFTER"):
        os._exit(137)


if __name__ == "__main__":
    LedgerFile.append = _append_and_die  # type: ignore[method-assign]  # the fault
    sys.exit(main(sys.argv[1:]))
