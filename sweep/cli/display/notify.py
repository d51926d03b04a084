"""Runs the user's ``notify`` command at each event, with one JSON object on its standard input and without a shell."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

from sweep.cli.common import print_notes
from sweep.core.decisions.plan import Action, ActionKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from sweep.adapters.files.run_directory import RunDir
    from sweep.core.settings.spec import SweepSpec
    from sweep.usecases.orchestrate import Snapshot

_BAD_NEWS = (ActionKind.GIVE_UP, ActionKind.PAUSED)
_TIMEOUT_S = 60


class Notifier:
    """Runs the command that ``notify`` names; does nothing where it names none.

    Args:
        spec: The sweep.
        run_dir: Its run directory.
        err: The console for a note about a command that fails.
    """

    def __init__(self, spec: SweepSpec, run_dir: RunDir, err: Console) -> None:
        """Report nothing yet."""
        self._spec = spec
        self._run_dir = run_dir
        self._err = err
        self._known: set[tuple[str, int]] | None = None

    def watched(self, snapshot: Snapshot) -> None:
        """Report what was given up or paused since the last call; the first call reports nothing."""
        bad = [action for action in snapshot.actions if action.kind in _BAD_NEWS]
        before, self._known = self._known, {(action.cell_id, action.repeat) for action in bad}
        new = [] if before is None else [action for action in bad if (action.cell_id, action.repeat) not in before]
        if new and not snapshot.is_over:
            self._notify("given_up", exit_code=None, snapshot=snapshot, holes=new)

    def ended(self, snapshot: Snapshot, exit_code: int) -> None:
        """Report that the run is over."""
        holes = [action for action in snapshot.actions if action.kind is not ActionKind.DONE]
        self._notify("ended", exit_code=exit_code, snapshot=snapshot, holes=holes)

    def stopped(self, problem: str, exit_code: int) -> None:
        """Report that the run stopped before its end."""
        self._notify("stopped", exit_code=exit_code, problem=problem)

    def _notify(
        self,
        event: str,
        *,
        exit_code: int | None,
        snapshot: Snapshot | None = None,
        holes: Sequence[Action] = (),
        problem: str = "",
    ) -> None:
        if not self._spec.notify:
            return
        news = {
            "event": event,
            "grid": self._spec.grid.name,
            "cluster": self._spec.cluster.name,
            "run_dir": self._run_dir.path,
            "exit_code": exit_code,
            "problem": problem,
            "counts": {} if snapshot is None else {kind.value: count for kind, count in snapshot.counts().items()},
            "holes": [{"cell": action.cell_id, "repeat": action.repeat, "reason": action.reason} for action in holes],
        }
        try:
            subprocess.run(list(self._spec.notify), input=json.dumps(news), text=True, timeout=_TIMEOUT_S, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            # The command may hold a secret, such as a web address with a token: only its name is shown.
            why = str(error).replace(str(list(self._spec.notify)), repr(self._spec.notify[0]))
            print_notes(self._err, [f"the notify command failed: {why}"])
