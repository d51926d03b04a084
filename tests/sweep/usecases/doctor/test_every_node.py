"""The job over all nodes: a node that is silent, busy, out of service, or ends the job hides no other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from sweep.core.attempts.attempt import JobReport, Phase
from sweep.core.jobs.submission import Submission
from sweep.ports import SubmissionRejectedError
from sweep.usecases.doctor.every_node import NodeAnswer, NodeInSlurm, Printed, Survey, Surveyor
from tests.fakes import FakeClock, FakeScheduler, submission_of

WHOLE = NodeAnswer(report={"is_whole": True})
PARTLY = NodeAnswer(report={"host": "n"})


def in_slurm(**out_of_service: str) -> dict[str, NodeInSlurm]:
    names = ("n1", "n2", "n3")
    return {name: NodeInSlurm(state="idle", out_of_service=out_of_service.get(name, ""), gpus=8) for name in names}


@dataclass
class Slurm(FakeScheduler):
    """A cluster on which the so-manieth job does this; each returns what its nodes have printed."""

    deeds: list[Callable[[Slurm, str], Printed]] = field(default_factory=list)
    nodes: dict[str, NodeInSlurm] = field(default_factory=in_slurm)
    asked: list[tuple[int, tuple[str, ...]]] = field(default_factory=list)

    def read(self, submission: Submission) -> Printed:
        (job,) = self.by_name[submission.name]
        return self.deeds[min(len(self.by_name), len(self.deeds)) - 1](self, job)

    def survey(self, *, timeout_s: float = 60.0, **unchecked: str) -> Survey:
        def submission(number: int, nodes: int, without: tuple[str, ...]) -> Submission:
            self.asked.append((nodes, without))
            return submission_of(name=f"every-node-{number}", nodes=nodes, exclude=without)

        surveyor = Surveyor(
            scheduler=self,
            submission=submission,
            read=self.read,
            nodes=lambda: self.nodes,
            gpus_per_node=8,
            clock=self.clock,
            timeout_s=timeout_s,
        )
        found = surveyor.run(unchecked)
        assert self.live_jobs() == [], "no job is left behind"
        return found


def answered(*hosts: str, **others: NodeAnswer) -> Callable[[Slurm, str], Printed]:
    """The job runs on these nodes, which answer whole, and on others, which answer so."""
    return lambda slurm, job: Printed(hosts=(*hosts, *others), answers={**dict.fromkeys(hosts, WHOLE), **others})


def ends(*nodes: str, begun: bool, drains: str = "") -> Callable[[Slurm, str], Printed]:
    """The job ends before its nodes have answered, and Slurm may drain one."""

    def deed(slurm: Slurm, job: str) -> Printed:
        slurm.states[job] = JobReport(state="FAILED", phase=Phase.ENDED, nodes=nodes, reason="JobLaunchFailure")
        if drains:
            slurm.nodes = in_slurm(**{drains: "drained: Prolog error"})
        return Printed(hosts=nodes, answers=dict.fromkeys(nodes, PARTLY)) if begun else Printed()

    return deed


def test_every_node_answers_and_no_job_is_left() -> None:
    slurm = Slurm(deeds=[answered("n1", "n2", "n3")])
    assert slurm.survey() == Survey(answers={"n1": WHOLE, "n2": WHOLE, "n3": WHOLE})
    assert slurm.asked == [(3, ())]


def test_a_first_node_on_which_the_job_cannot_begin_is_named_and_the_others_are_checked() -> None:
    slurm = Slurm(deeds=[ends("n1", "n2", "n3", begun=False), answered("n2", "n3")])
    found = slurm.survey()
    assert found.failed == {"n1": "the job ended there as FAILED (JobLaunchFailure)"}
    assert list(found.answers) == ["n2", "n3"]
    assert slurm.asked == [(3, ()), (2, ("n1",))]


def test_a_node_whose_prolog_ends_the_job_is_named_by_slurms_reason_and_the_others_are_checked() -> None:
    slurm = Slurm(deeds=[ends("n1", "n2", "n3", begun=True, drains="n2"), answered("n1", "n3")])
    found = slurm.survey()
    assert list(found.failed) == ["n2"]
    assert found.failed["n2"].endswith("Slurm says drained: Prolog error now")
    assert (found.answers, found.unchecked) == ({"n1": WHOLE, "n3": WHOLE}, {})


def test_a_node_that_does_not_come_back_is_waited_for_up_to_the_limit() -> None:
    slurm = Slurm(deeds=[lambda slurm, job: Printed(hosts=("n1", "n2", "n3"), answers={"n1": WHOLE, "n2": PARTLY})])
    began = slurm.clock.now()
    found = slurm.survey()
    assert 60.0 < slurm.clock.now() - began < 62.0
    assert found.answers == {"n1": WHOLE, "n2": PARTLY, "n3": NodeAnswer(report={})}


def test_nodes_that_the_job_did_not_get_are_busy() -> None:
    slurm = Slurm(deeds=[answered("n1")])
    assert slurm.survey().unchecked == dict.fromkeys(("n2", "n3"), "the job did not get it (Slurm says idle)")


def test_where_no_node_is_free_slurms_reason_is_given() -> None:
    def waits(slurm: Slurm, job: str) -> Printed:
        slurm.states[job] = JobReport(state="PENDING", phase=Phase.PENDING, reason="Resources")
        return Printed()

    found = Slurm(deeds=[waits]).survey()
    assert found.unchecked == dict.fromkeys(("n1", "n2", "n3"), "no node was free within 60 s (Resources)")


def test_a_job_that_slurm_refuses_checks_nothing_and_says_why() -> None:
    slurm = Slurm(submit_error=SubmissionRejectedError("Invalid qos specification"), clock=FakeClock(time=1.0))
    assert set(slurm.survey().unchecked.values()) == {"the job was not submitted: Invalid qos specification"}


def test_nodes_that_are_out_of_service_excluded_or_too_small_are_not_asked_for() -> None:
    slurm = Slurm(deeds=[answered()], nodes=in_slurm(n1="drained: fan"))
    slurm.nodes["n2"] = NodeInSlurm(state="idle", out_of_service="", gpus=4)
    found = slurm.survey(n3="excluded by cluster.slurm.exclude")
    assert found.unchecked == {"n1": "Slurm says drained: fan", "n3": "excluded by cluster.slurm.exclude"}
    assert found.failed == {"n2": "Slurm knows 4 GPUs there; 8 are asked for on each node"}
    assert slurm.asked == []


def test_no_more_than_six_jobs_are_tried() -> None:
    slurm = Slurm(nodes={f"n{i}": NodeInSlurm(state="idle", out_of_service="", gpus=8) for i in range(9)})
    slurm.deeds = [ends(f"n{i}", begun=False) for i in range(9)]
    found = slurm.survey(timeout_s=600.0)
    assert len(slurm.asked) == 6
    assert list(found.failed) == [f"n{i}" for i in range(6)]
    assert found.unchecked == dict.fromkeys(("n6", "n7", "n8"), "other nodes ended every job")
