"""A screen that is no terminal, on which a run is watched."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from sweep.cli.display.progress import Watching
from sweep.core.attempts.attempt import AttemptKey, Outcome
from sweep.core.attempts.outcome_rules import OUTCOME_RULES
from sweep.core.cells.cell import cell_id
from sweep.core.records.attempt_record import AttemptFile
from sweep.core.settings.policy import Policy
from sweep.usecases.orchestrate import Orchestrator
from tests.fakes import tiny_cell, weak_content
from tests.sweep.usecases.world import World


class Screen:
    """A run that is watched off a terminal."""

    def __init__(self) -> None:
        self.world = World(cells={cell_id(cell): cell for cell in [tiny_cell(nodes=1), tiny_cell(nodes=2)]})
        slow = replace(OUTCOME_RULES[Outcome.NODE_FAIL], backoff_s=600.0)
        self.world.policy = Policy(canary=False, outcomes={**OUTCOME_RULES, Outcome.NODE_FAIL: slow})
        self.orchestrator: Orchestrator = self.world.orchestrator()
        self.text = io.StringIO()
        self.watching = Watching(Console(file=self.text, width=200), weak_content(self.world.cells), self.orchestrator)

    def look(self) -> str:
        """The line of one look, ten seconds after the last."""
        snapshot = self.orchestrator.step()
        before = len(self.text.getvalue())
        self.world.clock.sleep(10)
        self.watching.show(snapshot)
        return self.text.getvalue()[before:]

    def begin(self, key: AttemptKey, *, ended_at: float | None = None) -> None:
        self.world.run_dir.attempt_files[key] = AttemptFile(
            key=key, restart=0, job_id="1", hosts=("node1",), pid=7, started_at=1.0, ended_at=ended_at
        )
