"""Reports on jobs from squeue and sacct together, and how many calls they cost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sweep.adapters.slurm.scheduler import SlurmScheduler, outcome_of
from sweep.core.attempts.attempt import ABSENT, SLURM_STATES, JobReport, JobRun, Outcome, Phase
from sweep.core.settings.spec import SlurmSpec
from tests.sweep.adapters.fake_slurm import NOW, RUN_DIR, FakeSlurm


def test_a_thousand_jobs_cost_one_squeue_and_one_sacct(slurm: FakeSlurm) -> None:
    slurm.answers("squeue", out="".join(f"42_{index}|job|RUNNING|node1|100|200|None\n" for index in range(500)))
    slurm.answers(
        "sacct", out="".join(f"42_{index}|job|COMPLETED|node1|100|200|0:0|None\n" for index in range(500, 900))
    )
    jobs = [f"42_{index}" for index in range(900)] + [f"43_{index}" for index in range(100)]
    reports = slurm.scheduler().poll(jobs, since=NOW)
    assert list(reports) == jobs
    assert [report.phase for report in reports.values()] == (
        [Phase.RUNNING] * 500 + [Phase.ENDED] * 400 + [Phase.ABSENT] * 100
    )
    assert len(slurm.calls("squeue")) == 1
    (asked,) = slurm.calls("sacct")
    assert asked.endswith("-j 42,43")


def test_a_thousand_plain_jobs_cost_one_sacct_too(slurm: FakeSlurm) -> None:
    slurm.scheduler().poll([str(number) for number in range(1000, 2000)], since=NOW)
    assert len(slurm.calls("sacct")) == 1


def test_ten_thousand_jobs_are_read_by_two_commands(slurm: FakeSlurm) -> None:
    slurm.answers("squeue", out="".join(f"42_{n}|job|RUNNING|node[1-4]|100|200|None\n" for n in range(5_000)))
    slurm.answers("sacct", out="".join(f"43_{n}|job|COMPLETED|node[1-4]|100|200|0:0|None\n" for n in range(5_000)))
    scheduler = slurm.scheduler()
    jobs = [f"{base}_{n}" for base in (42, 43) for n in range(5_000)]
    reports = scheduler.poll(jobs, since=NOW)
    assert len(reports) == 10_000
    assert (len(slurm.calls("squeue")), len(slurm.calls("sacct"))) == (1, 1)


def test_accounting_is_not_asked_where_the_queue_has_all_jobs(slurm: FakeSlurm) -> None:
    slurm.answers("squeue", out="42|job|COMPLETED|node1|100|200|None\n")
    assert slurm.scheduler().poll(["42"], since=NOW)["42"].state == "COMPLETED"
    assert slurm.calls("sacct") == []


def test_no_jobs_cost_no_call(slurm: FakeSlurm) -> None:
    assert slurm.scheduler().poll([], since=NOW) == {}
    assert slurm.calls("squeue") == []


def test_a_cluster_without_accounting_is_never_asked_for_it(slurm: FakeSlurm) -> None:
    assert slurm.scheduler(SlurmSpec(sacct=False)).poll(["42"], since=NOW) == {"42": ABSENT}
    assert slurm.calls("sacct") == []


def test_a_job_killed_for_its_memory_is_out_of_memory_although_slurm_calls_it_failed(slurm: FakeSlurm) -> None:
    slurm.answers(
        "squeue", out="42_0|job|FAILED|node1|100|200|NonZeroExitCode\n42_1|job|FAILED|node1|100|200|NonZeroExitCode\n"
    )
    slurm.answers("sacct", out="42_0|9:0||100M|1\n42_0.0|0:9|300M||1\n42_1|1:0||100M|1\n42_1.0|1:0|50M||1\n")
    scheduler = slurm.scheduler()
    reports = scheduler.poll(["42_0", "42_1"], since=NOW)
    assert [report.outcome for report in reports.values()] == [Outcome.OOM_HOST, None]
    assert "300 MiB of the job's 100 MiB on each node" in reports["42_0"].reason
    assert len(slurm.calls("sacct")) == 1


def test_a_failed_query_for_memory_leaves_the_job_failed(slurm: FakeSlurm) -> None:
    slurm.answers("squeue", out="42|job|FAILED|node1|100|200|NonZeroExitCode\n")
    slurm.answers("sacct", err="sacct: error: Problem talking to the database: Connection refused", code=1)
    assert slurm.scheduler().poll(["42"], since=NOW)["42"].state == "FAILED"


def test_a_requeued_job_that_is_not_in_the_queue_is_not_pending(slurm: FakeSlurm) -> None:
    """It was cancelled while its processes ended: accounting says no more of it, ever."""
    slurm.answers("sacct", out="42|job|REQUEUED|node1|100|200|0:0|None\n")
    assert slurm.scheduler().poll(["42"], since=NOW) == {"42": replace(ABSENT, state="REQUEUED")}
    slurm.answers("squeue", out="42|job|PENDING||N/A|N/A|BeginTime\n")
    assert slurm.scheduler().poll(["42"], since=NOW)["42"].phase is Phase.PENDING


def test_a_job_is_absent_until_accounting_has_its_end(slurm: FakeSlurm) -> None:
    scheduler = slurm.scheduler()
    slurm.answers("sacct", out="42|job|COMPLETED|node1|100|200|0:0|None\n", call=2)
    assert scheduler.poll(["42"], since=NOW)["42"] is ABSENT
    assert scheduler.poll(["42"], since=NOW)["42"].phase is Phase.ENDED


def test_an_end_in_the_queue_comes_before_running_in_accounting(slurm: FakeSlurm) -> None:
    slurm.answers("squeue", out="42|job|FAILED|node1|100|200|NonZeroExitCode\n")
    slurm.answers("sacct", out="42|job|RUNNING|node1|100|Unknown|0:0|None\n")
    assert slurm.scheduler().poll(["42"], since=NOW)["42"].state == "FAILED"


@pytest.mark.parametrize(
    "row", ["42_1|job|RUNNING|node1|100|Unknown", "42_[0-1]|job|PENDING|||", "42_[0,1...%1]|job|PENDING|||"]
)
def test_a_job_that_is_alive_only_in_accounting_is_absent(slurm: FakeSlurm, row: str) -> None:
    """A controller that lost its state leaves such a row for ever; the queue has all that are alive."""
    slurm.answers("sacct", out=f"{row}|0:0|None\n")
    assert slurm.scheduler().poll(["42_1"], since=NOW)["42_1"] == replace(ABSENT, state=row.split("|")[2])


@pytest.mark.parametrize("row", ["42_[2,5,7-9,...]", "42_[2,5...%1]", "42_[2,5,7"])
def test_a_task_missing_from_a_list_cut_short_is_alive(slurm: FakeSlurm, row: str) -> None:
    slurm.answers("squeue", out=f"{row}|job|PENDING||N/A|N/A|Priority\n")
    assert slurm.scheduler().poll(["42_99"], since=NOW)["42_99"].phase is Phase.PENDING


def test_a_task_missing_from_a_list_cut_short_may_be_in_accounting(slurm: FakeSlurm) -> None:
    slurm.answers("squeue", out="42_[2,5,...]|job|PENDING||N/A|N/A|Priority\n")
    slurm.answers("sacct", out="42_0|job|COMPLETED|node1|100|200|0:0|None\n")
    reports = slurm.scheduler().poll(["42_0", "42_9"], since=NOW)
    assert [report.phase for report in reports.values()] == [Phase.ENDED, Phase.PENDING]


def test_a_task_that_its_running_array_lacks_was_cancelled_while_pending(slurm: FakeSlurm) -> None:
    """As Slurm 22.05 had it: neither command names 114_1 any more."""
    slurm.answers("squeue", out="114_2|s|PENDING||N/A|N/A|JobArrayTaskLimit\n114_0|s|RUNNING|node1|100|NONE|None\n")
    slurm.answers("sacct", out="114_0|s|RUNNING|node1|100|Unknown|0:0|None\n114_[2%1]|s|PENDING||||0:0|None\n")
    reports = slurm.scheduler().poll(["114_0", "114_1", "114_2", "115_1"], since=NOW)
    assert [report.state for report in reports.values()] == ["RUNNING", "CANCELLED", "PENDING", ""]
    slurm.answers("sacct", out="114_0|s|RUNNING|node1|100|Unknown|0:0|None\n114_[2,3...%1]|s|PENDING||||0:0|None\n")
    assert slurm.scheduler().poll(["114_1"], since=NOW)["114_1"].phase is Phase.ABSENT, "a list that is cut short"


@pytest.mark.parametrize(
    ("uid", "who"),
    [
        (0, "root (an administrator)"),
        (1000, "you outside of this tool (scancel)"),
        (4242424, "user 4242424 (an administrator)"),
    ],
)
def test_accounting_gives_the_user_who_cancelled_a_job(slurm: FakeSlurm, uid: int, who: str) -> None:
    slurm.answers("squeue", out="42_0|s|CANCELLED|node1|100|200|None\n42_1|s|CANCELLED||200|200|JobHeldUser\n")
    slurm.answers(
        "sacct", out=f"42_0|s|CANCELLED by {uid}|node1|100|200|0:0|None\n42|s|CANCELLED by {uid}||1|2|0:0|None"
    )
    scheduler = SlurmScheduler(SlurmSpec(), RUN_DIR, user="1000", commands=slurm.commands())
    reports = scheduler.poll(["42_0", "42_1"], since=NOW)
    assert [report.ended_by for report in reports.values()] == [who, who]
    assert reports["42_0"].state == f"CANCELLED by {uid}"
    assert reports["42_1"].reason == "JobHeldUser"


def test_a_cancelled_job_is_reported_although_accounting_does_not_answer(slurm: FakeSlurm) -> None:
    slurm.answers("squeue", out="42|s|CANCELLED|node1|100|200|None\n")
    slurm.answers("sacct", err="sacct: error: Problem talking to the database: Connection refused", code=1)
    report = slurm.scheduler().poll(["42"], since=NOW)["42"]
    assert (report.state, report.ended_by) == ("CANCELLED", "")


def test_a_job_with_the_same_id_and_another_name_is_another_job(slurm: FakeSlurm) -> None:
    slurm.answers("squeue", out="42|others|RUNNING|node1|100|200|None\n43|s1|RUNNING|node1|100|200|None\n44|\n")
    slurm.answers("sacct", out="42|others|RUNNING|node1|100|Unknown|0:0|None\n45|x|FAILED|node1|1|2|1:0|None\n")
    names = {"42": "s1", "43": "s1", "44": "s2", "45": "s3"}
    reports = slurm.scheduler().poll(names.keys(), since=NOW, names=names)
    assert (reports["42"].phase, reports["42"].reason) == (Phase.ABSENT, "42 is now the id of another job, others")
    assert reports["45"].phase is Phase.ABSENT
    assert reports["43"].phase is Phase.RUNNING
    assert reports["44"].phase is Phase.RUNNING, "a line that is cut short is no other's"


def test_a_job_whose_name_was_changed_is_recognised_by_its_script(slurm: FakeSlurm) -> None:
    """A site's job_submit plugin may rewrite every name; accounting has the new one, and no script."""
    rows = ["42|mine|PENDING||N/A|N/A|Priority|/runs/r/submissions/logs/s1.sh"]
    rows += ["43|mine|CANCELLED|node1|100|200|an|admin's words|/runs/s2.sh", "44|x|RUNNING|node1|100|200|None|(null)"]
    slurm.answers("squeue", out="\n".join(rows))
    slurm.answers("sacct", out="43|mine|CANCELLED by 0|node1|100|200|0:0|None\n44|x|RUNNING|node1|1|2|0:0|None\n")
    names = {"42": "s1", "43": "s2", "44": "s3"}
    reports = slurm.scheduler().poll(names.keys(), since=NOW, names=names)
    assert (reports["42"].phase, reports["42"].reason) == (Phase.PENDING, "Priority")
    assert (reports["43"].state, reports["43"].reason) == ("CANCELLED by 0", "an|admin's words")
    assert (reports["44"].phase, reports["44"].reason) == (Phase.ABSENT, "44 is now the id of another job, x")


def test_runs_of_requeued_jobs_are_asked_for_in_one_call(slurm: FakeSlurm) -> None:
    slurm.answers("sacct", out="42_0|100|125\n42_1|100|Unknown\n42_0|Unknown|Unknown\n43|90|95\n43|200|200\n")
    found = slurm.scheduler().runs_of(["42_0", "42_1", "43", "44"], since=NOW)
    assert found == {
        "42_0": [JobRun(started_at=100.0, ended_at=125.0)],
        "42_1": [JobRun(started_at=100.0, ended_at=None)],
        "43": [JobRun(started_at=90.0, ended_at=95.0)],
    }
    (asked,) = slurm.calls("sacct")
    assert "-D -j 42,43,44" in asked
    assert slurm.scheduler(SlurmSpec(sacct=False)).runs_of(["42_0"], since=NOW) == {}
    assert len(slurm.calls("sacct")) == 1


def test_a_state_gives_the_outcome() -> None:
    for word, state in SLURM_STATES.items():
        report = JobReport(state=word, phase=state.phase, nodes=("node1",))
        assert outcome_of(report) is state.outcome
    assert outcome_of(JobReport(state="CANCELLED by 1000", phase=Phase.ENDED)) is Outcome.CANCELLED
    assert outcome_of(ABSENT) is None


def test_a_job_that_failed_on_no_node_was_rejected(slurm: FakeSlurm) -> None:
    slurm.answers("squeue", out="55|job|FAILED||1795970906|1795970906|BadConstraints\n")
    scheduler = slurm.scheduler()
    report = scheduler.poll(["55"], since=NOW)["55"]
    assert report.outcome is Outcome.REJECTED_BY_SCHEDULER
    assert outcome_of(replace(report, nodes=("node1",))) is None
