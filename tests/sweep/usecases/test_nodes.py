"""Which nodes a submission keeps away from."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sweep.core.attempts.attempt import ErrorClass, JobReport, Outcome, Phase
from sweep.core.attempts.blame import Blame
from sweep.core.attempts.ledger import Ended
from sweep.core.jobs.set_up import PASSED, failure_in
from sweep.core.settings.site import Site
from sweep.ports import SubmissionRejectedError
from tests.fakes import tiny_cell
from tests.sweep.usecases.world import CALM, World, nodes_known, rank_error, several


def test_a_retry_keeps_away_from_the_node_that_failed_if_the_cluster_knows_its_name(world: World) -> None:
    world.scheduler.limits = nodes_known("n1", "n2", "n3")
    world.scheduler.out_of_service = {"n2": "Not responding", "n9": "elsewhere"}
    orchestrator = world.begun(tiny_cell(nodes=2))
    world.end_all(orchestrator, "NODE_FAIL", nodes=("n1", "n2"))
    orchestrator.step()
    assert [submission.exclude for submission in world.submitted()] == [(), ("n2",)]
    assert [(blame.node, blame.outcome) for blame in world.blame.blames] == [("n2", Outcome.NODE_FAIL)]


@pytest.mark.parametrize("code", [105, None], ids=["as-sacct-says", "as-squeue-says"])
def test_a_node_that_srun_did_not_reach_is_blamed_although_it_is_healthy_again(world: World, code: int | None) -> None:
    orchestrator = world.begun(tiny_cell(nodes=2))
    (job,) = world.scheduler.live_jobs()
    reason = "Task launch for StepId=3.0 failed on node n2: Communication connection failure"
    world.scheduler.logs[job] = JobReport(
        state="NODE_FAIL", phase=Phase.ENDED, reason=reason, ended_at=world.clock.now(), at_fault=("n2",)
    )
    world.end_all(orchestrator, "FAILED", nodes=("n1", "n2"), exit_code=code)
    assert world.outcomes() == [Outcome.NODE_FAIL]
    assert [blame.node for blame in world.blame.blames] == ["n2"]


def test_the_node_of_the_rank_whose_device_failed_is_blamed(world: World) -> None:
    world.scheduler.limits = nodes_known("n1", "n2", "n3")
    orchestrator = world.begun(tiny_cell(nodes=2))
    world.end_all(
        orchestrator, "FAILED", rank_error(ErrorClass.DEVICE, "Xid 79", rank=1, node_rank=1), nodes=("n1", "n2")
    )
    orchestrator.step()
    assert world.submitted()[-1].exclude == ("n2",)


def test_a_cell_that_failed_on_two_nodes_is_sent_back_to_neither(world: World) -> None:
    world.set_cells(tiny_cell())
    world.scheduler.limits = nodes_known("n1", "n2", "n3")
    orchestrator = world.orchestrator()
    for node in ("n1", "n2"):
        orchestrator.step()
        world.end_all(orchestrator, "FAILED", rank_error(ErrorClass.DEVICE, "Xid 79"), nodes=(node,))
    orchestrator.step()
    assert world.submitted()[-1].exclude == ("n1", "n2")


def test_blamed_nodes_are_used_where_too_few_others_are_left(world: World) -> None:
    world.scheduler.limits = nodes_known("n1", "n2")
    orchestrator, _ = world.one_job()
    world.end_all(orchestrator, "NODE_FAIL", nodes=("n1",))
    words = "Requested node configuration is not available"
    world.scheduler.submit_error = SubmissionRejectedError(words, leaves_no_node=True)
    orchestrator.step()
    assert not world.scheduler.live_jobs()
    assert words in world.reporter.notes[-1]
    world.scheduler.submit_error = None
    orchestrator.step()
    assert len(world.scheduler.live_jobs()) == 1
    assert world.submitted()[-1].exclude == ()


def test_nodes_in_the_settings_that_the_cluster_does_not_know_are_reported_once(world: World) -> None:
    world.set_cells(tiny_cell(), tiny_cell(seq_len=64))
    world.policy = replace(CALM, max_concurrent_jobs=1)
    world.scheduler.limits = Site(notes=("slurm.exclude names gone, which this cluster does not know",))
    world.run_to_the_end()
    assert [note for note in world.reporter.notes if "gone" in note] == list(world.scheduler.limits.notes)


def test_a_node_that_several_cells_blame_is_excluded_for_all_until_the_blame_expires(world: World) -> None:
    now = world.clock.now()
    for cell in ("a" * 16, "b" * 16):
        blame = Blame(
            node="n1", time=now - 60, cell_id=cell, run="other", outcome=Outcome.NODE_FAIL, reason="NODE_FAIL"
        )
        world.blame.add([blame])
    world.blame.add([replace(world.blame.blames[0], node="n2")])
    world.scheduler.limits = nodes_known("n1", "n2", "n3")
    orchestrator, _ = world.one_job()
    assert world.submitted()[-1].exclude == ("n1",), "one cell alone proves nothing"
    world.end_all(orchestrator, "PREEMPTED")
    world.clock.sleep(25 * 3600)
    orchestrator.step()
    assert world.submitted()[-1].exclude == ()


def test_exclusion_never_leaves_too_few_nodes_nor_names_one_that_is_unknown(world: World) -> None:
    world.scheduler.limits = nodes_known("n1", "n2")
    world.scheduler.out_of_service = {"n2": "down", "gone": "down"}
    orchestrator = world.begun(tiny_cell(nodes=2))
    world.end_all(orchestrator, "NODE_FAIL", nodes=("gone", "n2"))
    orchestrator.step()
    assert world.submitted()[-1].exclude == ()


def _end_in_set_up(world: World, job: str, node: str) -> None:
    """A set-up line fails on a node; the job script says so in the log."""
    says = f"sweep: set-up 0123abcd failed on {node}: `module load x` ended with exit code 1: no x\n"
    found = failure_in(says)
    assert found is not None
    world.scheduler.logs[job] = replace(found, ended_at=world.clock.now())
    world.scheduler.say(job, "FAILED", nodes=(node,), exit_code=1)


def test_a_set_up_line_that_passes_nowhere_is_a_trainer_error_which_pauses_the_run(world: World) -> None:
    world.policy = replace(CALM, pause_after=2, max_concurrent_jobs=2)
    orchestrator = world.begun(*several(3))
    for job, node in zip(world.scheduler.live_jobs(), ("n1", "gpu-a"), strict=True):
        _end_in_set_up(world, job, node)
    now = world.look_twice(orchestrator)
    assert world.outcomes() == [Outcome.TRAINER_ERROR] * 2
    assert world.events(Ended)[0].reason == "the set-up line `module load x` ended with exit code 1: no x"
    assert [action.hole for action in now.actions] == ["", "", "paused"]
    assert world.blame.blames == []


@pytest.mark.parametrize("is_over", [True, False], ids=["which-has-ended", "which-runs"])
def test_a_set_up_line_that_passed_on_another_node_is_the_nodes_fault(world: World, is_over: bool) -> None:
    world.scheduler.limits = nodes_known("n1", "n2", "n3")
    orchestrator = world.begun(*several(2))
    good, bad = world.scheduler.live_jobs()
    world.launched(good, hosts=("n2",), environment={PASSED: "0123abcd"})
    if is_over:
        world.finish(good)
    _end_in_set_up(world, bad, "n1")
    world.look_twice(orchestrator)
    failed = next(event for event in world.events(Ended) if event.outcome is not Outcome.SUCCEEDED)
    assert failed.outcome is Outcome.NODE_FAIL
    assert failed.reason.endswith("exit code 1: no x on n1; it passed on n2")
    assert [blame.node for blame in world.blame.blames] == ["n1"]
    assert world.submitted()[-1].exclude == ("n1",)


def test_the_first_victim_of_a_node_is_tried_again_once_its_set_up_lines_have_passed_elsewhere(world: World) -> None:
    world.policy = replace(CALM, max_concurrent_jobs=1)
    world.scheduler.limits = nodes_known("n1", "n2", "n3")
    orchestrator = world.begun(*several(2))
    (bad,) = world.scheduler.live_jobs()
    _end_in_set_up(world, bad, "n1")
    world.look_twice(orchestrator)
    (good,) = world.scheduler.live_jobs()
    world.launched(good, hosts=("n2",), environment={PASSED: "0123abcd"})
    world.finish(good)
    assert not orchestrator.step().is_over
    assert world.outcomes() == [Outcome.TRAINER_ERROR, Outcome.SUCCEEDED, Outcome.NODE_FAIL]
    assert world.submitted()[-1].exclude == ("n1",)


def test_other_set_up_lines_that_passed_elsewhere_blame_no_node(world: World) -> None:
    orchestrator = world.begun(*several(2))
    good, bad = world.scheduler.live_jobs()
    world.launched(good, hosts=("n2",), environment={PASSED: "76543210"})
    _end_in_set_up(world, bad, "n1")
    world.look_twice(orchestrator)
    assert world.outcomes() == [Outcome.TRAINER_ERROR]
