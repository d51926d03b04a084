"""What ``status CELL`` shows of an attempt that is not over."""

from __future__ import annotations

import io

from rich.console import Console

from sweep.cli.display.evidence import attempts_as_json, print_attempts
from sweep.core.attempts.attempt import JobReport, Phase
from sweep.core.records.attempt_record import AttemptFile
from sweep.core.records.progress import Progress
from sweep.usecases.observe import Observation
from tests.fakes import weak_content
from tests.sweep.cli.screen import Screen

UNSEEN = Observation(reports={}, unrecorded=frozenset())


def test_a_running_attempt_shows_its_start_its_nodes_and_its_step() -> None:
    screen = Screen()
    screen.look()
    world = screen.world
    (key, *_) = (world.scheduler.keys[job] for job in world.scheduler.live_jobs())
    history, content = screen.orchestrator.history, weak_content(world.cells)
    (waiting,) = attempts_as_json(key.cell_id, content, history, world.run_dir, UNSEEN)
    assert (waiting["state"], waiting["running"]) == ("in flight", None)
    world.run_dir.attempt_files[key] = AttemptFile(
        key=key, restart=1, job_id="1", hosts=("node3", "node7"), pid=7, started_at=1_000_100.0
    )
    world.run_dir.progresses[key] = Progress(step=3, steps=6, time=2.0, tokens_per_s=1234.0)
    (shown,) = attempts_as_json(key.cell_id, content, history, world.run_dir, UNSEEN)
    assert shown["running"] == {
        "since": 1_000_100.0, "nodes": ["node3", "node7"], "restart": 1, "step": 3, "steps": 6, "tokens_per_s": 1234.0,
    }  # fmt: skip
    text = io.StringIO()
    print_attempts(Console(file=text, width=200), key.cell_id, content, history, world.run_dir, UNSEEN)
    assert "on node3, node7, restart 1" in text.getvalue()
    assert "3 of 6, 1,234 tokens/s" in text.getvalue()


def test_a_waiting_attempt_shows_its_reason_and_an_unrecorded_end_is_called_unrecorded() -> None:
    screen = Screen()
    screen.look()
    world, history = screen.world, screen.orchestrator.history
    waiting, ended = history.in_flight()
    content = weak_content(world.cells)
    held = JobReport(state="PENDING", phase=Phase.PENDING, reason="JobHeldUser")
    seen = Observation(reports={str(waiting.job_id): held}, unrecorded=frozenset([ended.key]))
    text = io.StringIO()
    for key in (waiting.key, ended.key):
        print_attempts(Console(file=text, width=200), key.cell_id, content, history, world.run_dir, seen)
    first, second = text.getvalue().split("repeat 1 attempt 1: ")[1:]
    assert "waits for          JobHeldUser; its user held it" in first
    assert "not recorded" not in first
    assert second.startswith("in flight (not recorded yet)\n")
    assert "waits for" not in second
