"""Cells that need more than one that ran out of memory are not run."""

from __future__ import annotations

from dataclasses import replace

from sweep.core.attempts.attempt import ErrorClass
from sweep.core.attempts.ledger import Skipped
from sweep.core.decisions.plan import ActionKind
from sweep.usecases.orchestrate import exit_code
from tests.fakes import tiny_cell
from tests.sweep.usecases.world import CALM, World, rank_error


def test_a_cell_that_needs_more_than_one_that_ran_out_of_memory_is_inferred_and_not_run(world: World) -> None:
    small, larger, longer = tiny_cell(), tiny_cell(micro_batch=4, global_batch=4), tiny_cell(seq_len=64)
    other = tiny_cell(nodes=2, seq_len=64)
    names = world.set_cells(small, larger, longer, other)
    world.policy = replace(CALM, max_concurrent_jobs=1)
    orchestrator = world.begun()
    world.end_all(orchestrator, "FAILED", rank_error(ErrorClass.OOM_DEVICE, "CUDA out of memory"))
    now = orchestrator.step()
    by_cell = {action.cell_id: action.kind for action in now.actions}
    assert [by_cell[name] for name in names[:3]] == [ActionKind.EXPLAINED] * 3
    assert by_cell[names[3]] is ActionKind.WAIT, "another layout may fit"
    world.finish_all()
    final = orchestrator.watch(lambda _: None)
    assert exit_code(final) == 0
    skipped = world.events(Skipped)
    assert {event.kind for event in skipped} == {"oom_inferred"}
    assert {cell for event in skipped for cell, _ in event.repeats} == set(names[1:3])
    assert names[0] in skipped[0].reason


def test_a_cell_of_an_earlier_command_that_ran_out_counts_too(world: World) -> None:
    (small,) = world.set_cells(tiny_cell())
    orchestrator = world.begun()
    world.end_all(orchestrator, "FAILED", rank_error(ErrorClass.OOM_DEVICE, "CUDA out of memory"))
    world.known, world.cells = world.cells, {}
    world.set_cells(tiny_cell(seq_len=64))
    (action,) = world.orchestrator().step().actions
    assert (action.kind, action.hole) == (ActionKind.EXPLAINED, "oom_inferred")
    assert small in action.reason


def test_inference_can_be_switched_off(world: World) -> None:
    world.policy = replace(CALM, max_concurrent_jobs=1, infer_oom=False)
    orchestrator = world.begun(tiny_cell(), tiny_cell(seq_len=64))
    world.end_all(orchestrator, "FAILED", rank_error(ErrorClass.OOM_DEVICE))
    assert not orchestrator.step().is_over
