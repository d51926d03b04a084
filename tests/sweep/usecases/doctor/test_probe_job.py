"""The probe's job: its reports are waited for, a reason is given where one is missing, and no job is left behind."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import pytest

from sweep.core.attempts.attempt import JobReport, Phase
from sweep.core.jobs.submission import Submission
from sweep.ports import SchedulerError, SubmissionRejectedError
from sweep.usecases.doctor.probe_job import ProbeJob, ProbeResult
from tests.fakes import FakeClock, FakeScheduler, submission_of
from tests.sweep.usecases.doctor.reports import NODE, PEER


def submission(nodes: int = 2) -> Submission:
    return submission_of(name="doctor", created_at=1000.0, nodes=nodes)


def run_probe(
    scheduler: FakeScheduler,
    clock: FakeClock,
    read: Callable[[], Mapping[int, Mapping[str, Any]]],
    **waits_s: float,
) -> ProbeResult:
    return ProbeJob(scheduler=scheduler, submission=submission(), clock=clock, read=read, **waits_s).run()


def probe_with(scheduler: FakeScheduler, reports: Mapping[int, Mapping[str, Any]], **kwargs: float) -> ProbeResult:
    return run_probe(scheduler, FakeClock(time=1000.0), lambda: reports, **{"timeout_s": 60.0, **kwargs})


def test_a_probe_whose_nodes_all_report_leaves_no_job() -> None:
    scheduler = FakeScheduler()
    probed = probe_with(scheduler, {0: NODE, 1: PEER})
    assert (probed.trouble, probed.began_at, probed.seen_at) == ("", 1000.0, 1000.0)
    assert scheduler.live_jobs() == []


def test_a_probe_waits_for_the_end_of_its_job_up_to_a_limit() -> None:
    class Slow(FakeScheduler):
        def poll(self, job_ids: Collection[str], **asked: Any) -> Mapping[str, JobReport]:
            if self.cancelled and self.polls == 3:
                self.states["101"] = JobReport(state="CANCELLED", phase=Phase.ENDED)
            return super().poll(job_ids, **asked)

    scheduler = Slow(takes_its_time=True)
    assert probe_with(scheduler, {0: NODE, 1: PEER}).trouble == ""
    assert scheduler.polls == 4
    endless = FakeScheduler(takes_its_time=True)
    assert probe_with(endless, {0: NODE, 1: PEER}, grace_s=5).trouble == ""


def test_a_probe_that_is_pending_too_long_is_cancelled_with_slurms_reason() -> None:
    scheduler = FakeScheduler()

    def read() -> dict[int, Mapping[str, Any]]:
        for job in scheduler.live_jobs():
            scheduler.say(job, "PENDING", reason="Resources")
        return {}

    probed = run_probe(scheduler, FakeClock(time=1000.0), read, timeout_s=60)
    assert "still waited after 60 s (Resources)" in probed.trouble
    assert scheduler.live_jobs() == []


def test_a_probe_that_ended_without_all_reports_is_a_problem_soon_and_keeps_the_others() -> None:
    scheduler, clock = FakeScheduler(), FakeClock(time=1000.0)

    def read() -> dict[int, Mapping[str, Any]]:
        for job in scheduler.live_jobs():
            scheduler.say(job, "FAILED", nodes=("gpu1", "gpu2"))
        return {0: NODE}

    probed = run_probe(scheduler, clock, read, timeout_s=600, grace_s=5)
    assert "ended as FAILED on gpu1,gpu2, and 1 of 2 nodes wrote no report" in probed.trouble
    assert probed.reports == {0: NODE}
    assert clock.time < 1010


def test_a_probe_that_runs_too_long_is_a_problem() -> None:
    scheduler = FakeScheduler()

    def read() -> dict[int, Mapping[str, Any]]:
        for job in scheduler.live_jobs():
            scheduler.say(job, "RUNNING")
        return {}

    probed = run_probe(scheduler, FakeClock(time=1000.0), read, timeout_s=60)
    assert "is RUNNING after 60 s" in probed.trouble


@pytest.mark.parametrize("error", [SubmissionRejectedError("no such QOS"), SchedulerError("no such QOS")])
def test_a_probe_that_cannot_be_submitted_is_a_problem(error: Exception) -> None:
    assert "no such QOS" in probe_with(FakeScheduler(submit_error=error), {}).trouble


def test_a_probe_that_cannot_be_cancelled_keeps_its_reports() -> None:
    class Stubborn(FakeScheduler):
        def cancel(self, job_ids: object) -> None:
            raise SchedulerError("away")

    assert probe_with(Stubborn(), {0: NODE, 1: PEER}).trouble == ""
