"""Which jobs a cancel ends, and which it leaves alone."""

from __future__ import annotations

import pytest

from sweep.ports import SchedulerError
from tests.sweep.adapters.fake_slurm import DOWN, FakeSlurm

LOGS = "/runs/a|b/submissions/logs"
OURS = (
    f"42_1|PENDING|1000|me|s1|{LOGS}/s1.sh\n42_3|RUNNING|1000|me|s1|{LOGS}/s1.sh\n44|PENDING|1000|me|s2|{LOGS}/s2.sh\n"
)


def test_cancel_ends_exactly_the_given_jobs_in_one_call(slurm: FakeSlurm) -> None:
    slurm.answers("squeue", out=OURS)
    assert slurm.scheduler().cancel({"42_1": "s1", "42_3": "s1", "44": "s2"}) == []
    assert slurm.calls("scancel") == ["42_1 42_3 44"]
    assert slurm.calls("squeue") == ["--array -h -t all -j 42,44 -o %i|%T|%U|%u|%j|%o"]


def test_a_job_under_another_name_or_of_another_user_is_left_alone(slurm: FakeSlurm) -> None:
    """The controller lost its state and gave the numbers anew; what it does not know is over."""
    slurm.answers("squeue", out=f"{OURS}45|RUNNING|1001|bob|s3\n46|PENDING|1000|me|a|sweep|of|mine\n")
    left_alone = slurm.scheduler().cancel({"44": "s2", "45": "s3", "46": "s4", "47": "s5"})
    assert slurm.calls("scancel") == ["44"]
    assert left_alone == [
        "45 is now the id of another job, s3 of bob: it is left alone",
        "46 is now the id of another job, a|sweep|of|mine: it is left alone",
    ]


def test_a_job_whose_name_was_changed_is_recognised_by_its_script_and_cancelled(slurm: FakeSlurm) -> None:
    rows = ["45|RUNNING|1000|me|mine|/runs/a|b/submissions/logs/s3.sh", "46|PENDING|1001|bob|s4|/runs/s4.sh"]
    rows += ["47|PENDING|1000|me|a|/s5.sh|(null)", "48|PENDING|1000|me|mine|/runs/not-s6.sh"]
    slurm.answers("squeue", out="\n".join(rows))
    left_alone = slurm.scheduler().cancel({"45": "s3", "46": "s4", "47": "s5", "48": "s6"})
    assert slurm.calls("scancel") == ["45"]
    assert left_alone == [
        "46 is now the id of another job, s4 of bob: it is left alone",
        "47 is now the id of another job, a|/s5.sh: it is left alone",
        "48 is now the id of another job, mine: it is left alone",
    ]


def test_only_pending_jobs_can_be_cancelled_without_a_filter_of_scancel(slurm: FakeSlurm) -> None:
    """``scancel --state=PENDING 42_1`` ends all waiting tasks of 42."""
    slurm.answers("squeue", out=OURS)
    slurm.scheduler().cancel({"42_1": "s1", "42_3": "s1", "44": "s2"}, only_pending=True)
    assert slurm.calls("scancel") == ["42_1 44"]


def test_cancelling_nothing_calls_nothing(slurm: FakeSlurm) -> None:
    slurm.scheduler().cancel({})
    assert slurm.calls("scancel") == []


@pytest.mark.parametrize(
    "words",
    [
        "scancel: error: Kill job error on job id 42_0: Invalid job id specified",
        "scancel: error: Kill job error on job id 42: Job/step already completing or completed",
    ],
)
def test_cancelling_a_job_that_has_ended_is_no_error(slurm: FakeSlurm, words: str) -> None:
    slurm.answers("squeue", out=OURS)
    slurm.answers("scancel", err=words, code=1)
    slurm.scheduler().cancel({"44": "s2"})
    assert len(slurm.calls("scancel")) == 1, "it is not asked again either"
    slurm.answers("squeue", err="slurm_load_jobs error: Invalid job id specified", code=1)
    slurm.scheduler().cancel({"44": "s2"})
    assert len(slurm.calls("scancel")) == 1, "what the queue does not know is not cancelled"


@pytest.mark.parametrize("command", ["squeue", "scancel"])
def test_a_cancel_that_slurm_did_not_receive_is_an_error(slurm: FakeSlurm, command: str) -> None:
    slurm.answers("squeue", out=OURS)
    slurm.answers(command, err=f"{command}: error: {DOWN}", code=1)
    with pytest.raises(SchedulerError, match="Unable to contact"):
        slurm.scheduler().cancel({"44": "s2"})


@pytest.mark.parametrize("wrong", ["", "-u me", "42_", "42_[0-9]", "42 43"])
def test_only_job_ids_are_cancelled(slurm: FakeSlurm, wrong: str) -> None:
    with pytest.raises(SchedulerError, match="nothing was cancelled"):
        slurm.scheduler().cancel({"42": "s1", wrong: "s1"})
    assert slurm.calls("scancel") == []


def test_jobs_outlive_this_process(slurm: FakeSlurm) -> None:
    scheduler = slurm.scheduler()
    assert scheduler.keeps_jobs
    scheduler.close()
    assert slurm.calls("scancel") == []
