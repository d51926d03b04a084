"""Evidence against nodes as a file of JSON lines per cluster, shared by all runs of a user."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from sweep.core.blame import Blame
from sweep.core.submission import safe_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


class BlameFile:
    """Implements :class:`sweep.ports.BlameBook`.

    Args:
        cluster: Name of the cluster.
        environ: The environment; ``XDG_STATE_HOME`` says where a user's state lives. None: the process's own.
    """

    def __init__(self, cluster: str, environ: Mapping[str, str] | None = None) -> None:
        """Touch nothing."""
        environ = os.environ if environ is None else environ
        state = environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
        self._path = Path(state) / "scaling-sweep" / f"blame-{safe_name(cluster)}.jsonl"

    def read(self) -> Sequence[Blame]:
        """All that was ever written and can be read."""
        found = []
        with contextlib.suppress(OSError):
            for line in self._path.read_text(errors="replace").split("\n"):
                with contextlib.suppress(ValueError):
                    found.append(Blame.parse(line))
        return found

    def add(self, blames: Iterable[Blame]) -> None:
        """Write more, a line at a time; a file that cannot be written is no error."""
        for blame in blames:
            with contextlib.suppress(OSError):
                self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
                try:
                    os.write(fd, (blame.render() + "\n").encode())
                finally:
                    os.close(fd)
