"""The user's own command is told what happens: one JSON object on its standard input each time, no shell in between."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

from sweep.cli.common import print_notes
from sweep.core.decisions.plan import ActionKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from sweep.adapters.files.run_directory import RunDir
    from sweep.core.decisions.plan import Action
    from sweep.core.settings.spec import SweepSpec
    from sweep.usecases.orchestrate import Snapshot

_BAD_NEWS = (ActionKind.GIVE_UP, ActionKind.PAUSED)
_TIMEOUT_S = 60


class Notifier:
    """Tells the command that ``notify`` names; silent where it names none.

    Args:
        spec: The sweep.
        run_dir: Its run directory.
        err: Where a command that fails is noted.
    """

    def __init__(self, spec: SweepSpec, run_dir: RunDir, err: Console) -> None:
        """Nothing told yet."""
        self._spec = spec
        self._run_dir = run_dir
        self._err = err
        self._known: set[tuple[str, int]] | None = None

    def watched(self, snapshot: Snapshot) -> None:
        """While the run goes on: what was given up or paused since the last look (at the first look nothing is new)."""
        bad = [action for action in snapshot.actions if action.kind in _BAD_NEWS]
        before, self._known = self._known, {(action.cell_id, action.repeat) for action in bad}
        new = [] if before is None else [action for action in bad if (action.cell_id, action.repeat) not in before]
        if new and not snapshot.is_over:
            self._tell("given_up", exit_code=None, snapshot=snapshot, holes=new)

    def ended(self, snapshot: Snapshot, exit_code: int) -> None:
        """The run is over."""
        holes = [action for action in snapshot.actions if action.kind is not ActionKind.DONE]
        self._tell("ended", exit_code=exit_code, snapshot=snapshot, holes=holes)

    def stopped(self, problem: str, exit_code: int) -> None:
        """The run had to stop before its end."""
        self._tell("stopped", exit_code=exit_code, problem=problem)

    def _tell(
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
            # The command's words may hold a secret (a web address with a token): only its name is shown.
            why = str(error).replace(str(list(self._spec.notify)), repr(self._spec.notify[0]))
            print_notes(self._err, [f"the notify command failed: {why}"])
