"""A run from its first look to its last, and a second run over it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from sweep.core.attempts.ledger import Reserved, Submitted
from sweep.core.decisions.plan import Action, ActionKind, decide
from sweep.usecases.orchestrate import exit_code
from tests.fakes import tiny_cell
from tests.sweep.usecases.world import CLUSTER, World, kinds, several


def test_every_cell_is_submitted_once_and_ends_measured(world: World) -> None:
    orchestrator = world.run_to_the_end()
    assert kinds(orchestrator.snapshot()) == [ActionKind.DONE, ActionKind.DONE]
    assert exit_code(orchestrator.snapshot()) == 0
    assert len(world.scheduler.by_name) == 2
    assert [type(event) for event in world.ledger.events()][:2] == [Reserved, Submitted]


def test_cells_with_the_same_resources_go_out_in_one_submission(world: World) -> None:
    world.begun(tiny_cell(nodes=1), tiny_cell(nodes=1, seq_len=64), tiny_cell(nodes=2), tiny_cell(nodes=1, seq_len=96))
    assert sorted(len(jobs) for jobs in world.scheduler.by_name.values()) == [1, 3]


def test_an_observation_without_news_computes_nothing_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 10,000 cells that is what a watcher's processor time goes into."""
    world.policy = replace(world.policy, max_concurrent_jobs=1)
    orchestrator = world.begun()
    worked_out: list[int] = []

    def counted(cells: Iterable[str], **given: object) -> list[Action]:
        worked_out.append(1)
        return decide(cells, **given)  # type: ignore[arg-type]  # handed on

    monkeypatch.setattr("sweep.usecases.orchestrate.decide", counted)
    world.clock.sleep(CLUSTER.poll_interval_s)
    now = orchestrator.step()
    assert worked_out == []
    (job,) = world.scheduler.live_jobs()
    world.finish(job)
    assert orchestrator.step().actions != now.actions
    assert worked_out


def test_one_poll_asks_once_whatever_the_number_of_jobs(world: World) -> None:
    orchestrator = world.begun(*several(39))
    before = world.scheduler.polls
    orchestrator.step()
    assert world.scheduler.polls == before + 1


def test_each_repeat_runs_once(world: World) -> None:
    world.repeats = 3
    orchestrator = world.run_to_the_end()
    assert kinds(orchestrator.snapshot()) == [ActionKind.DONE] * 6
    assert len(world.run_dir.results) == 6


def test_a_second_run_submits_nothing(world: World) -> None:
    world.run_to_the_end()
    before = len(world.ledger.lines)
    again = world.orchestrator()
    assert again.step().is_over
    assert len(world.ledger.lines) == before
    assert len(world.scheduler.by_name) == 2


def test_a_process_that_takes_over_a_run_submits_no_running_job_again(world: World) -> None:
    world.orchestrator().step()
    jobs = world.scheduler.live_jobs()
    for job in jobs:
        world.scheduler.say(job, "RUNNING")
    heir = world.begun()
    assert world.scheduler.live_jobs() == jobs
    world.finish_all()
    assert exit_code(heir.step()) == 0
