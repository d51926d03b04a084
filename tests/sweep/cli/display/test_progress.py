"""What a person who watches a run is shown, off a terminal: one line now and then."""

from __future__ import annotations

from dataclasses import replace

from rich.console import Console

from sweep.cli.display.progress import Watching
from sweep.core.cells.cell import cell_id
from sweep.core.grids.grid import Point
from sweep.core.records.progress import Progress
from sweep.ports import SchedulerUnreachableError
from tests.fakes import tiny_cell
from tests.sweep.cli.screen import Screen


def test_a_running_cell_shows_its_step_its_speed_and_the_time_left() -> None:
    screen = Screen()
    assert "2 queued" in screen.look()
    first, second = (screen.world.scheduler.keys[job] for job in screen.world.scheduler.live_jobs())
    for job in screen.world.scheduler.live_jobs():
        screen.world.scheduler.say(job, "RUNNING")
    screen.begin(first)
    screen.begin(second, ended_at=5.0)
    cell = screen.world.cells[first.cell_id]
    steps = cell.trainer.steps
    speed = 2.0 * cell.tokens_per_step
    screen.world.run_dir.progresses[first] = Progress(step=steps - 10, steps=steps, time=2.0, tokens_per_s=speed)
    line = screen.look()
    assert "1 running, 1 ending" in line
    assert f"step {steps - 10} of {steps}, {speed:,.0f} tokens/s, about 5 s left" in line


def test_the_next_retry_is_reported() -> None:
    screen = Screen()
    screen.look()
    job, other = screen.world.scheduler.live_jobs()
    screen.world.scheduler.say(job, "NODE_FAIL")
    screen.world.scheduler.say(other, "RUNNING")
    line = ""
    for _ in range(20):
        line = screen.look() or line
        if "later" in line:
            break
    assert f"{screen.world.scheduler.keys[job].cell_id} later: NODE_FAIL: retry 1 of" in line


def test_cells_of_earlier_commands_in_the_same_run_directory_are_not_counted() -> None:
    screen = Screen()
    other = tiny_cell(nodes=4)
    whole = replace(
        screen.watching._content,
        cells={**screen.world.cells, cell_id(other): other},
        points=(*screen.watching._content.points, Point(axes={"nodes": 4}, cell_id=cell_id(other))),
    )
    screen.watching = Watching(Console(file=screen.text, width=200), whole, screen.orchestrator)
    assert screen.look().startswith("2 repeats: 2 queued; ")


def test_a_scheduler_that_is_away_is_reported_with_its_time() -> None:
    screen = Screen()
    screen.world.scheduler.submit_error = SchedulerUnreachableError("connect failure")
    line = screen.look()
    assert "1 queued, 1 to be submitted" in line
    assert "the scheduler has not been reached since 1970-01-12" in line
    assert "(connect failure)" in line
