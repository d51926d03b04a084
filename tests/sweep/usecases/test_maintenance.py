"""Walltimes that are cut to end before a maintenance."""

from __future__ import annotations

from dataclasses import replace

from sweep.core.decisions.plan import ActionKind
from sweep.core.settings.site import Site
from tests.fakes import tiny_cell
from tests.sweep.usecases.world import CALM, World


def _one_by_one(world: World, *, maintenance_in_min: int) -> None:
    world.policy = replace(CALM, max_concurrent_jobs=1)
    world.scheduler.limits = Site(maintenance_at=world.clock.now() + maintenance_in_min * 60)


def test_a_walltime_is_cut_to_end_before_a_maintenance_where_the_cell_is_known_to_fit(world: World) -> None:
    world.repeats = 2
    _one_by_one(world, maintenance_in_min=20)
    orchestrator = world.begun(tiny_cell())
    world.finish_all()
    orchestrator.step()
    # A fake job takes 100 s: 2 min and a half with safety, and two to start; 18 are left of 20.
    assert [submission.walltime_min for submission in world.submitted()] == [30, 18]


def test_a_walltime_is_cut_to_what_another_cell_of_the_model_took(world: World) -> None:
    first, longer = world.set_cells(tiny_cell(), tiny_cell(seq_len=64))
    _one_by_one(world, maintenance_in_min=20)
    orchestrator = world.begun()
    world.finish(world.scheduler.live_jobs()[0])
    orchestrator.executor.settle()
    action = next(a for a in orchestrator.snapshot().actions if a.cell_id == longer)
    # 100 s, twice the tokens, three times for safety: 10 min, and two to start; 18 are left of 20.
    assert action.walltime_min == 18
    assert f"estimated: {first} took 1.7 min, 2.0 times its work per GPU" in action.reason
    orchestrator.step()
    assert [submission.walltime_min for submission in world.submitted()] == [30, 18]
    world.scheduler.limits = replace(world.scheduler.limits, max_walltime_min=30)
    world.end_all(orchestrator, "TIMEOUT")
    heir = world.orchestrator()
    action = next(a for a in heir.step().actions if a.cell_id == longer)
    assert action.kind is ActionKind.WAIT
    assert world.submitted()[-1].walltime_min == 30, "all that it was to have, and not cut again"
    world.end_all(heir, "TIMEOUT")
    action = next(a for a in heir.step().actions if a.cell_id == longer)
    assert action.kind is ActionKind.GIVE_UP
    assert "the partition allows no more than 30 min" in action.reason


def test_a_cell_of_another_model_or_device_is_no_evidence_for_the_walltime(world: World) -> None:
    other = replace(tiny_cell().model, name="other", n_layers=1)
    world.set_cells(tiny_cell(), tiny_cell(model=other))
    _one_by_one(world, maintenance_in_min=20)
    world.run_to_the_end()
    assert [submission.walltime_min for submission in world.submitted()] == [30, 30]


def test_a_walltime_is_left_alone_where_the_cell_may_not_fit_before_the_maintenance(world: World) -> None:
    world.repeats = 2
    _one_by_one(world, maintenance_in_min=4)
    orchestrator = world.begun(tiny_cell())
    world.finish_all()
    orchestrator.step()
    assert [submission.walltime_min for submission in world.submitted()] == [30, 30]
