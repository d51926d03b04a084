"""How much is in the queue at a time, by the policy's limits and the cluster's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sweep.core.attempts.ledger import Skipped
from sweep.core.decisions.plan import ActionKind
from sweep.core.settings.site import Site, SizeLimit
from sweep.core.settings.spec import SlurmSpec
from sweep.usecases.orchestrate import exit_code
from tests.fakes import tiny_cell
from tests.sweep.usecases.world import CALM, CLUSTER, World, several


@pytest.mark.parametrize(("limit", "jobs"), [({"max_concurrent_jobs": 2}, 2), ({"max_concurrent_gpus": 3}, 2)])
def test_the_queue_never_holds_more_jobs_than_the_policy_allows(world: World, limit: dict[str, int], jobs: int) -> None:
    world.policy = replace(CALM, **limit)  # type: ignore[arg-type]  # one keyword or the other
    world.begun(tiny_cell(nodes=1), tiny_cell(nodes=2), tiny_cell(nodes=1, seq_len=64), tiny_cell(nodes=4))
    assert len(world.scheduler.live_jobs()) == jobs


def test_the_sites_own_limit_counts_over_all_arrays_together(world: World) -> None:
    world.set_cells(*several(8))
    world.scheduler.limits = Site(max_array_tasks=2)
    orchestrator = world.orchestrator()
    cluster = replace(CLUSTER, slurm=SlurmSpec(max_concurrent_jobs=3))
    orchestrator.order = replace(orchestrator.order, cluster=cluster)
    orchestrator.step()
    assert sorted(len(jobs) for jobs in world.scheduler.by_name.values()) == [1, 2]
    world.finish(world.scheduler.live_jobs()[0])
    now = orchestrator.step()
    assert len(world.scheduler.live_jobs()) == 3
    assert [a.reason for a in now.actions if a.kind is ActionKind.LATER] == [
        "max_concurrent_jobs=3 are in the queue"
    ] * 4


def test_cells_are_submitted_as_the_cluster_accepts_them(world: World) -> None:
    world.scheduler.limits = Site(free_tasks=3)
    orchestrator = world.begun(*several(20))
    assert len(world.scheduler.live_jobs()) == 3
    assert world.reporter.notes == [], "held back, not refused"
    world.scheduler.limits = Site(free_tasks=0)
    orchestrator.step()
    assert len(world.scheduler.live_jobs()) == 3
    world.finish_all()
    world.scheduler.limits = Site(free_tasks=3)
    orchestrator.step()
    assert len(world.scheduler.keys) == 6


def test_an_array_is_no_larger_than_the_cluster_allows(world: World) -> None:
    world.scheduler.limits = Site(max_array_tasks=5)
    world.begun(*several(12))
    assert sorted(len(jobs) for jobs in world.scheduler.by_name.values()) == [2, 5, 5]


def test_a_cell_above_a_limit_of_the_cluster_is_not_submitted(world: World) -> None:
    fits, above = world.set_cells(tiny_cell(nodes=1), tiny_cell(nodes=2))
    world.scheduler.limits = Site(size_limits=(SizeLimit(name="GrpTRES node=1 of the QOS normal", nodes=1),))
    now = world.run_to_the_end().watch(lambda _: None)
    assert {action.cell_id: action.kind for action in now.actions} == {fits: ActionKind.DONE, above: ActionKind.PAUSED}
    (skipped,) = world.events(Skipped)
    assert (skipped.kind, skipped.repeats) == ("over_limit", ((above, 1),))
    assert skipped.reason == "it needs 2 nodes x 1 GPUs; GrpTRES node=1 of the QOS normal never lets it run"
    assert exit_code(now) == 1
