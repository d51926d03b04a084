"""The Slurm scheduler over fake commands on PATH: what it asks, how often, and what it makes of odd answers."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from sweep.adapters.slurm import SlurmScheduler
from sweep.adapters.slurm_commands import CommandMissingError, SlurmCommands, argument_chunks
from sweep.core.attempt import ABSENT, SLURM_STATES, AttemptKey, JobReport, JobRun, Outcome, Phase
from sweep.core.spec import LaunchSpec, SlurmSpec
from sweep.core.submission import Submission
from sweep.ports import SchedulerError, SchedulerUnreachableError, SubmissionRejectedError, SubmissionUncertainError
from tests.commands import is_alive, wait_for

NOW = 1795970834.0
DOWN = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"

# Each call: its arguments and its environment go to a log; then the answer of this very call, or the ordinary one.
_FAKE = """#!/bin/bash
n=$(cat {folder}/{name}.count 2>/dev/null || echo 0); n=$((n + 1)); echo $n > {folder}/{name}.count
printf '%s\\n' "$*" >> {folder}/{name}.calls
env > {folder}/{name}.env
answer={folder}/{name}.$n; [ -e $answer.sh ] || answer={folder}/{name}.else
[ -e $answer.sh ] && . $answer.sh
exit 0
"""


@dataclass(frozen=True, kw_only=True)
class FakeSlurm:
    """Commands on PATH that answer as they are told."""

    folder: Path

    def answers(
        self, name: str, *, out: str = "", err: str = "", code: int = 0, sleep_s: float = 0, call: int = 0
    ) -> None:
        """What a command does: at its nth call, or at every call without an answer of its own."""
        files = {stream: self.folder / f"{name}.{call or 'else'}.{stream}" for stream in ("out", "err")}
        files["out"].write_text(out)
        files["err"].write_text(err + "\n" if err else "")
        lines = [
            f"sleep {sleep_s} & echo $! > {self.folder}/child; wait" if sleep_s else ":",
            f"cat {files['out']}",
            f"cat {files['err']} >&2",
            f"exit {code}",
        ]
        (self.folder / f"{name}.{call or 'else'}.sh").write_text("\n".join(lines))

    def calls(self, name: str) -> list[str]:
        log = self.folder / f"{name}.calls"
        return log.read_text().splitlines() if log.exists() else []

    def environment(self, name: str) -> dict[str, str]:
        lines = (self.folder / f"{name}.env").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)

    def commands(self, *, timeout_s: float = 20.0, **environ: str) -> SlurmCommands:
        path = f"{self.folder}:/usr/bin:/bin"
        return SlurmCommands({"PATH": path, **environ}, timeout_s=timeout_s, backoff_s=0.001)

    def scheduler(self, spec: SlurmSpec | None = None, *, timeout_s: float = 20.0, **environ: str) -> SlurmScheduler:
        return SlurmScheduler(spec or SlurmSpec(), user="me", commands=self.commands(timeout_s=timeout_s, **environ))


@pytest.fixture
def slurm(tmp_path: Path) -> FakeSlurm:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sbatch", "squeue", "sacct", "scancel"):
        (folder / name).write_text(_FAKE.format(folder=folder, name=name))
        (folder / name).chmod(0o755)
    return FakeSlurm(folder=folder)


def submission(tmp_path: Path, tasks: int = 1) -> Submission:
    return Submission(
        name="grid-3f2a",
        run_dir=str(tmp_path / "run"),
        created_at=NOW,
        tasks=tuple(AttemptKey(cell_id=f"{number:016x}", repeat=1, attempt=1) for number in range(tasks)),
        nodes=1,
        gpus_per_node=2,
        device_type="cpu",
        walltime_min=5,
        sources_dir=str(tmp_path / "sources"),
        sources_hash="0123",
        launch=LaunchSpec(),
    )


# --- submit


def test_an_array_is_one_sbatch_call_and_gives_an_id_for_each_index(slurm: FakeSlurm, tmp_path: Path) -> None:
    slurm.answers("sbatch", out="Submitted batch job 42\n")
    assert slurm.scheduler().submit(submission(tmp_path, tasks=3)) == ("42_0", "42_1", "42_2")
    assert len(slurm.calls("sbatch")) == 1


def test_a_single_task_is_a_plain_job(slurm: FakeSlurm, tmp_path: Path) -> None:
    slurm.answers("sbatch", out="Submitted batch job 42\n")
    assert slurm.scheduler().submit(submission(tmp_path)) == ("42",)


def test_a_submission_leaves_one_script_and_no_pickle(slurm: FakeSlurm, tmp_path: Path) -> None:
    slurm.answers("sbatch", out="Submitted batch job 42\n")
    slurm.scheduler().submit(submission(tmp_path, tasks=3))
    files = [str(path.relative_to(tmp_path / "run")) for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert files == ["submissions/logs/grid-3f2a.sh"]
    assert slurm.calls("sbatch") == [str(tmp_path / "run" / files[0])]


def test_the_id_is_found_between_a_sites_banners(slurm: FakeSlurm, tmp_path: Path) -> None:
    slurm.answers("sbatch", out="Your last job 7 used 3 h.\nSubmitted batch job 42 on cluster main\nbye\n")
    assert slurm.scheduler().submit(submission(tmp_path)) == ("42",)


def test_sbatch_gets_the_environment_without_what_an_enclosing_job_left(slurm: FakeSlurm, tmp_path: Path) -> None:
    slurm.answers("sbatch", out="Submitted batch job 42\n")
    inherited = {"SLURM_CPU_BIND": "none", "SBATCH_PARTITION": "x", "SRUN_DEBUG": "3", "PMIX_RANK": "0", "RANK": "1"}
    before, conf = dict(os.environ), tmp_path / "slurm.conf"
    conf.touch()
    scheduler = slurm.scheduler(**inherited, SLURM_CONF=str(conf), HOME="/home/me", LC_ALL="de_DE.UTF-8")
    scheduler.submit(submission(tmp_path))
    seen = slurm.environment("sbatch")
    assert seen.keys().isdisjoint(inherited)
    assert {name: seen[name] for name in ("SLURM_CONF", "HOME", "LC_ALL")} == {
        "SLURM_CONF": str(conf),
        "HOME": "/home/me",
        "LC_ALL": "de_DE.UTF-8",
    }
    assert seen.keys().isdisjoint({"SLURM_TIME_FORMAT", "SLURM_BITSTR_LEN"})
    assert dict(os.environ) == before


def test_no_secret_of_the_environment_gets_into_a_file_or_a_command_line(slurm: FakeSlurm, tmp_path: Path) -> None:
    slurm.answers("sbatch", out="Submitted batch job 42\n")
    slurm.scheduler(HF_TOKEN="hf_s3cr3t", HOME="/home/me").submit(submission(tmp_path))
    texts = [path.read_text() for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert not [text for text in [*texts, *slurm.calls("sbatch")] if "s3cr3t" in text]
    assert slurm.environment("sbatch")["HF_TOKEN"] == "hf_s3cr3t"


def test_a_refusal_has_the_schedulers_words(slurm: FakeSlurm, tmp_path: Path) -> None:
    slurm.answers(
        "sbatch",
        err="sbatch: error: QOSMaxSubmitJobPerUserLimit\nsbatch: error: Batch job submission failed: Job violates "
        "accounting/QOS policy",
        code=1,
    )
    with pytest.raises(
        SubmissionRejectedError, match=r"^QOSMaxSubmit\w+; Batch job submission failed: Job vio"
    ) as caught:
        slurm.scheduler().submit(submission(tmp_path))
    assert caught.value.is_transient
    assert len(slurm.calls("sbatch")) == 1


@pytest.mark.parametrize(
    ("err", "error"),
    [
        (
            "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation",
            SubmissionUncertainError,
        ),
        (
            "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)",
            SchedulerError,
        ),
    ],
)
def test_sbatch_is_never_repeated(slurm: FakeSlurm, tmp_path: Path, err: str, error: type[Exception]) -> None:
    slurm.answers("sbatch", err=err, code=1)
    with pytest.raises(error):
        slurm.scheduler().submit(submission(tmp_path))
    assert len(slurm.calls("sbatch")) == 1


def test_an_sbatch_that_does_not_answer_leaves_it_open_and_is_killed_with_its_children(
    slurm: FakeSlurm, tmp_path: Path
) -> None:
    slurm.answers("sbatch", sleep_s=60)
    began = time.monotonic()
    with pytest.raises(SubmissionUncertainError, match=r"sbatch did not answer within 3 s"):
        slurm.scheduler(timeout_s=3).submit(submission(tmp_path))
    assert time.monotonic() - began < 30
    child = int((slurm.folder / "child").read_text())
    wait_for(lambda: not is_alive(child), 30, "its child is gone")


def test_an_sbatch_that_says_nothing_leaves_it_open(slurm: FakeSlurm, tmp_path: Path) -> None:
    slurm.answers("sbatch", out="ok\n")
    with pytest.raises(SubmissionUncertainError, match="no job id but 'ok'"):
        slurm.scheduler().submit(submission(tmp_path))


def test_a_run_directory_that_cannot_be_written_submits_nothing(slurm: FakeSlurm, tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file in its place")
    with pytest.raises(SchedulerError, match="cannot be written"):
        slurm.scheduler().submit(submission(tmp_path))
    assert slurm.calls("sbatch") == []


@pytest.mark.parametrize("missing", ["sbatch", "squeue", "sacct", "scancel"])
def test_a_missing_command_is_named_with_what_to_do(slurm: FakeSlurm, missing: str) -> None:
    (slurm.folder / missing).unlink()
    commands = SlurmCommands({"PATH": str(slurm.folder)})
    with pytest.raises(CommandMissingError, match=f"{missing} is not on PATH.*cluster=local"):
        SlurmScheduler(SlurmSpec(), user="me", commands=commands)


def test_a_cluster_without_accounting_needs_no_sacct(slurm: FakeSlurm) -> None:
    (slurm.folder / "sacct").unlink()
    commands = SlurmCommands({"PATH": str(slurm.folder)})
    scheduler = SlurmScheduler(SlurmSpec(sacct=False), user="me", commands=commands)
    assert scheduler.poll(["42"], since=NOW)["42"].phase is Phase.ABSENT


# --- find


def test_a_submission_is_found_in_the_queue_by_its_name(slurm: FakeSlurm, tmp_path: Path) -> None:
    slurm.answers("squeue", out="42_1\n42_[2]\n")
    assert slurm.scheduler().find(submission(tmp_path, tasks=3)) == ("42_0", "42_1", "42_2")
    assert "--name=grid-3f2a" in slurm.calls("squeue")[0]
    assert "-u me" in slurm.calls("squeue")[0]
    assert slurm.calls("sacct") == []


def test_a_submission_that_is_over_is_found_in_accounting(slurm: FakeSlurm, tmp_path: Path) -> None:
    slurm.answers("sacct", out="42\n")
    assert slurm.scheduler().find(submission(tmp_path)) == ("42",)
    (asked,) = slurm.calls("sacct")
    day = time.strftime("%Y-%m-%d", time.localtime(NOW - 86400))
    assert f"-u me -S {day}" in asked
    assert "--name=grid-3f2a" in asked


def test_a_submission_that_neither_knows_is_not_found(slurm: FakeSlurm, tmp_path: Path) -> None:
    assert slurm.scheduler().find(submission(tmp_path)) is None


def test_two_jobs_of_one_name_are_an_error(slurm: FakeSlurm, tmp_path: Path) -> None:
    slurm.answers("squeue", out="42_[0-1]\n43_0\n")
    with pytest.raises(SchedulerError, match="2 jobs have the name grid-3f2a: 42, 43"):
        slurm.scheduler().find(submission(tmp_path, tasks=2))


@pytest.mark.parametrize("broken", ["squeue", "sacct"])
def test_a_failure_to_ask_is_never_taken_for_not_found(slurm: FakeSlurm, tmp_path: Path, broken: str) -> None:
    slurm.answers(broken, err=DOWN, code=1)
    with pytest.raises(SchedulerError, match="Unable to contact"):
        slurm.scheduler().find(submission(tmp_path))


# --- poll


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


def test_a_thousand_jobs_of_their_own_are_one_sacct_too(slurm: FakeSlurm) -> None:
    slurm.scheduler().poll([str(number) for number in range(1000, 2000)], since=NOW)
    assert len(slurm.calls("sacct")) == 1


def test_accounting_is_not_asked_when_the_queue_knows_all(slurm: FakeSlurm) -> None:
    slurm.answers("squeue", out="42|job|COMPLETED|node1|100|200|None\n")
    assert slurm.scheduler().poll(["42"], since=NOW)["42"].state == "COMPLETED"
    assert slurm.calls("sacct") == []


def test_no_jobs_cost_no_call(slurm: FakeSlurm) -> None:
    assert slurm.scheduler().poll([], since=NOW) == {}
    assert slurm.calls("squeue") == []


def test_a_cluster_without_accounting_is_never_asked_for_it(slurm: FakeSlurm) -> None:
    assert slurm.scheduler(SlurmSpec(sacct=False)).poll(["42"], since=NOW) == {"42": ABSENT}
    assert slurm.calls("sacct") == []


def test_a_job_killed_for_its_memory_is_told_apart_although_slurm_calls_it_failed(slurm: FakeSlurm) -> None:
    slurm.answers(
        "squeue", out="42_0|job|FAILED|node1|100|200|NonZeroExitCode\n42_1|job|FAILED|node1|100|200|NonZeroExitCode\n"
    )
    slurm.answers("sacct", out="42_0|9:0||100M|1\n42_0.0|0:9|300M||1\n42_1|1:0||100M|1\n42_1.0|1:0|50M||1\n")
    scheduler = slurm.scheduler()
    reports = scheduler.poll(["42_0", "42_1"], since=NOW)
    assert [scheduler.outcome_of(report) for report in reports.values()] == [Outcome.OOM_HOST, None]
    assert "300 MiB, of 100 MiB a node" in reports["42_0"].reason
    assert len(slurm.calls("sacct")) == 1


def test_memory_that_cannot_be_asked_for_leaves_the_job_failed(slurm: FakeSlurm) -> None:
    slurm.answers("squeue", out="42|job|FAILED|node1|100|200|NonZeroExitCode\n")
    slurm.answers("sacct", err="sacct: error: Problem talking to the database: Connection refused", code=1)
    assert slurm.scheduler().poll(["42"], since=NOW)["42"].state == "FAILED"


def test_accounting_that_lags_leaves_a_job_absent_only_for_now(slurm: FakeSlurm) -> None:
    scheduler = slurm.scheduler()
    slurm.answers("sacct", out="42|job|COMPLETED|node1|100|200|0:0|None\n", call=2)
    assert scheduler.poll(["42"], since=NOW)["42"] is ABSENT
    assert scheduler.poll(["42"], since=NOW)["42"].phase is Phase.ENDED


def test_the_queues_end_is_believed_before_accountings_running(slurm: FakeSlurm) -> None:
    slurm.answers("squeue", out="42|job|FAILED|node1|100|200|NonZeroExitCode\n")
    slurm.answers("sacct", out="42|job|RUNNING|node1|100|Unknown|0:0|None\n")
    assert slurm.scheduler().poll(["42"], since=NOW)["42"].state == "FAILED"


def test_a_job_that_only_accounting_knows_to_run_is_alive(slurm: FakeSlurm) -> None:
    slurm.answers("sacct", out="42|job|RUNNING|node1|100|Unknown|0:0|None\n")
    assert slurm.scheduler().poll(["42"], since=NOW)["42"].phase is Phase.RUNNING


@pytest.mark.parametrize("row", ["42_[2,5,7-9,...]", "42_[2,5...%1]", "42_[2,5,7"])
def test_a_task_missing_from_a_list_cut_short_is_alive(slurm: FakeSlurm, row: str) -> None:
    slurm.answers("squeue", out=f"{row}|job|PENDING||N/A|N/A|Priority\n")
    assert slurm.scheduler().poll(["42_99"], since=NOW)["42_99"].phase is Phase.PENDING


def test_a_task_missing_from_a_list_cut_short_may_be_known_to_accounting(slurm: FakeSlurm) -> None:
    slurm.answers("squeue", out="42_[2,5,...]|job|PENDING||N/A|N/A|Priority\n")
    slurm.answers("sacct", out="42_0|job|COMPLETED|node1|100|200|0:0|None\n")
    reports = slurm.scheduler().poll(["42_0", "42_9"], since=NOW)
    assert [report.phase for report in reports.values()] == [Phase.ENDED, Phase.PENDING]


def test_commands_are_asked_for_unix_times_and_whole_task_lists(slurm: FakeSlurm) -> None:
    slurm.scheduler(SQUEUE_PARTITION="gpu", SACCT_FORMAT="JobName", SLURM_TIME_FORMAT="relative", LC_ALL="de_DE").poll(
        ["42"], since=NOW
    )
    for name in ("squeue", "sacct"):
        seen = slurm.environment(name)
        assert (seen["SLURM_TIME_FORMAT"], seen["SLURM_BITSTR_LEN"], seen["LC_ALL"]) == ("%s", "1024", "C")
        assert seen.keys().isdisjoint({"SQUEUE_PARTITION", "SACCT_FORMAT"})


def test_a_controller_that_is_busy_is_asked_again(slurm: FakeSlurm) -> None:
    slurm.answers("squeue", err=DOWN, code=1, call=1)
    slurm.answers("squeue", out="42|job|RUNNING|node1|100|200|None\n")
    assert slurm.scheduler().poll(["42"], since=NOW)["42"].phase is Phase.RUNNING
    assert len(slurm.calls("squeue")) == 2


def test_a_controller_that_stays_away_is_an_error_after_three_times(slurm: FakeSlurm) -> None:
    slurm.answers("squeue", err=DOWN, code=1)
    with pytest.raises(SchedulerError, match=r"squeue failed: .*connect failure"):
        slurm.scheduler().poll(["42"], since=NOW)
    assert len(slurm.calls("squeue")) == 3


def test_what_took_long_to_fail_is_not_asked_again_at_once(slurm: FakeSlurm) -> None:
    slurm.answers("squeue", err=DOWN, code=1)
    commands = SlurmCommands({"PATH": f"{slurm.folder}:/usr/bin:/bin"}, backoff_s=0.001, patience_s=0.0)
    with pytest.raises(SchedulerError):
        SlurmScheduler(SlurmSpec(), user="me", commands=commands).poll(["42"], since=NOW)
    assert len(slurm.calls("squeue")) == 1


def test_an_error_that_will_not_pass_is_not_repeated(slurm: FakeSlurm) -> None:
    slurm.answers("squeue", err="squeue: error: Unrecognized option: %z", code=1)
    with pytest.raises(SchedulerError, match="Unrecognized option"):
        slurm.scheduler().poll(["42"], since=NOW)
    assert len(slurm.calls("squeue")) == 1


def test_a_squeue_that_does_not_answer_is_an_error(slurm: FakeSlurm) -> None:
    slurm.answers("squeue", sleep_s=60)
    with pytest.raises(SchedulerError, match=r"did not answer within 0\.3 s"):
        slurm.scheduler(timeout_s=0.3).poll(["42"], since=NOW)


def test_an_unknown_user_is_an_error_although_squeue_exits_with_0(slurm: FakeSlurm) -> None:
    slurm.answers("squeue", err="squeue: error: Invalid user: me")
    with pytest.raises(SchedulerError, match="Invalid user: me"):
        slurm.scheduler().poll(["42"], since=NOW)


def test_accounting_that_cannot_be_asked_is_an_error(slurm: FakeSlurm) -> None:
    slurm.answers("sacct", err="sacct: error: Problem talking to the database: Connection refused", code=1)
    with pytest.raises(SchedulerError, match="Problem talking to the database"):
        slurm.scheduler().poll(["42"], since=NOW)


def test_a_cluster_that_keeps_no_accounting_is_told_apart(slurm: FakeSlurm) -> None:
    slurm.answers("sacct", err="Slurm accounting storage is disabled", code=1)
    with pytest.raises(SchedulerError, match=r"set slurm\.sacct=false"):
        slurm.scheduler().poll(["42"], since=NOW)


def test_ten_thousand_jobs_are_read_by_two_commands(slurm: FakeSlurm) -> None:
    slurm.answers("squeue", out="".join(f"42_{n}|job|RUNNING|node[1-4]|100|200|None\n" for n in range(5_000)))
    slurm.answers("sacct", out="".join(f"43_{n}|job|COMPLETED|node[1-4]|100|200|0:0|None\n" for n in range(5_000)))
    scheduler = slurm.scheduler()
    jobs = [f"{base}_{n}" for base in (42, 43) for n in range(5_000)]
    reports = scheduler.poll(jobs, since=NOW)
    assert len(reports) == 10_000
    assert (len(slurm.calls("squeue")), len(slurm.calls("sacct"))) == (1, 1)


# --- cancel, outcomes


OURS = "42_1|PENDING|1000|me|s1\n42_3|RUNNING|1000|me|s1\n44|PENDING|1000|me|s2\n"


def test_cancel_ends_exactly_the_jobs_given_in_one_call(slurm: FakeSlurm) -> None:
    slurm.answers("squeue", out=OURS)
    assert slurm.scheduler().cancel({"42_1": "s1", "42_3": "s1", "44": "s2"}) == []
    assert slurm.calls("scancel") == ["42_1 42_3 44"]
    assert slurm.calls("squeue") == ["--array -h -t all -j 42,44 -o %i|%T|%U|%u|%j|%o"]


def test_a_job_under_another_name_or_of_another_user_is_left_alone(slurm: FakeSlurm) -> None:
    """The controller lost its state and gave the numbers anew; what it does not know is over."""
    slurm.answers("squeue", out=f"{OURS}45|RUNNING|1001|bob|s3\n46|PENDING|1000|me|a|sweep|of|mine\n")
    told = slurm.scheduler().cancel({"44": "s2", "45": "s3", "46": "s4", "47": "s5"})
    assert slurm.calls("scancel") == ["44"]
    assert told == [
        "45 is now the id of another job, s3 of bob: it is left alone",
        "46 is now the id of another job, a|sweep|of|mine: it is left alone",
    ]


def test_a_job_whose_name_was_changed_is_cancelled_as_its_script_says_whose_it_is(slurm: FakeSlurm) -> None:
    rows = ["45|RUNNING|1000|me|mine|/runs/a|b/submissions/logs/s3.sh", "46|PENDING|1001|bob|s4|/runs/s4.sh"]
    rows += ["47|PENDING|1000|me|a|/s5.sh|(null)", "48|PENDING|1000|me|mine|/runs/not-s6.sh"]
    slurm.answers("squeue", out="\n".join(rows))
    told = slurm.scheduler().cancel({"45": "s3", "46": "s4", "47": "s5", "48": "s6"})
    assert slurm.calls("scancel") == ["45"]
    assert told == [
        "46 is now the id of another job, s4 of bob: it is left alone",
        "47 is now the id of another job, a|/s5.sh: it is left alone",
        "48 is now the id of another job, mine: it is left alone",
    ]


def test_what_has_begun_can_be_left_alone_and_no_filter_of_scancel_is_used(slurm: FakeSlurm) -> None:
    """``scancel --state=PENDING 42_1`` ends all waiting tasks of 42."""
    slurm.answers("squeue", out=OURS)
    slurm.scheduler().cancel({"42_1": "s1", "42_3": "s1", "44": "s2"}, only_pending=True)
    assert slurm.calls("scancel") == ["42_1 44"]


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
def test_cancelling_what_is_over_is_no_error(slurm: FakeSlurm, words: str) -> None:
    slurm.answers("squeue", out=OURS)
    slurm.answers("scancel", err=words, code=1)
    slurm.scheduler().cancel({"44": "s2"})
    assert len(slurm.calls("scancel")) == 1, "it is not asked again either"
    slurm.answers("squeue", err="slurm_load_jobs error: Invalid job id specified", code=1)
    slurm.scheduler().cancel({"44": "s2"})
    assert len(slurm.calls("scancel")) == 1, "what the queue does not know is not cancelled"


@pytest.mark.parametrize("command", ["squeue", "scancel"])
def test_a_cancel_that_was_not_heard_is_an_error(slurm: FakeSlurm, command: str) -> None:
    slurm.answers("squeue", out=OURS)
    slurm.answers(command, err=f"{command}: error: {DOWN}", code=1)
    with pytest.raises(SchedulerError, match="Unable to contact"):
        slurm.scheduler().cancel({"44": "s2"})


@pytest.mark.parametrize("wrong", ["", "-u me", "42_", "42_[0-9]", "42 43"])
def test_only_ids_are_ever_cancelled(slurm: FakeSlurm, wrong: str) -> None:
    with pytest.raises(SchedulerError, match="nothing was cancelled"):
        slurm.scheduler().cancel({"42": "s1", wrong: "s1"})
    assert slurm.calls("scancel") == []


def test_a_job_of_another_name_under_the_id_is_not_the_one_that_is_asked_about(slurm: FakeSlurm) -> None:
    slurm.answers("squeue", out="42|others|RUNNING|node1|100|200|None\n43|s1|RUNNING|node1|100|200|None\n44|\n")
    slurm.answers("sacct", out="42|others|RUNNING|node1|100|Unknown|0:0|None\n45|x|FAILED|node1|1|2|1:0|None\n")
    names = {"42": "s1", "43": "s1", "44": "s2", "45": "s3"}
    reports = slurm.scheduler().poll(names.keys(), since=NOW, names=names)
    assert (reports["42"].phase, reports["42"].reason) == (Phase.ABSENT, "42 is now the id of another one, others")
    assert reports["45"].phase is Phase.ABSENT
    assert reports["43"].phase is Phase.RUNNING
    assert reports["44"].phase is Phase.RUNNING, "a line that is cut short is no other's"


def test_a_job_whose_name_was_changed_counts_as_its_script_says_whose_it_is(slurm: FakeSlurm) -> None:
    """A site's job_submit plugin may rewrite every name; accounting has the new one, and no script."""
    rows = ["42|mine|PENDING||N/A|N/A|Priority|/runs/r/submissions/logs/s1.sh"]
    rows += ["43|mine|CANCELLED|node1|100|200|an|admin's words|/runs/s2.sh", "44|x|RUNNING|node1|100|200|None|(null)"]
    slurm.answers("squeue", out="\n".join(rows))
    slurm.answers("sacct", out="43|mine|CANCELLED by 0|node1|100|200|0:0|None\n44|x|RUNNING|node1|1|2|0:0|None\n")
    names = {"42": "s1", "43": "s2", "44": "s3"}
    reports = slurm.scheduler().poll(names.keys(), since=NOW, names=names)
    assert (reports["42"].phase, reports["42"].reason) == (Phase.PENDING, "Priority")
    assert (reports["43"].state, reports["43"].reason) == ("CANCELLED by 0", "an|admin's words")
    assert (reports["44"].phase, reports["44"].reason) == (Phase.ABSENT, "44 is now the id of another one, x")


@pytest.mark.parametrize(
    ("uid", "who"),
    [
        (0, "root (an administrator)"),
        (1000, "you outside of this tool (scancel)"),
        (4242424, "user 4242424 (an administrator)"),
    ],
)
def test_accounting_says_who_cancelled_a_job_that_the_queue_has_as_cancelled(
    slurm: FakeSlurm, uid: int, who: str
) -> None:
    slurm.answers("squeue", out="42_0|s|CANCELLED|node1|100|200|None\n42_1|s|CANCELLED||200|200|JobHeldUser\n")
    slurm.answers(
        "sacct", out=f"42_0|s|CANCELLED by {uid}|node1|100|200|0:0|None\n42|s|CANCELLED by {uid}||1|2|0:0|None"
    )
    scheduler = SlurmScheduler(SlurmSpec(), user="1000", commands=slurm.commands())
    reports = scheduler.poll(["42_0", "42_1"], since=NOW)
    assert [report.ended_by for report in reports.values()] == [who, who]
    assert reports["42_0"].state == f"CANCELLED by {uid}"
    assert reports["42_1"].reason == "JobHeldUser"


def test_a_task_that_its_array_goes_on_without_was_cancelled_while_it_waited(slurm: FakeSlurm) -> None:
    """As Slurm 22.05 had it: neither command names 114_1 any more."""
    slurm.answers("squeue", out="114_2|s|PENDING||N/A|N/A|JobArrayTaskLimit\n114_0|s|RUNNING|node1|100|NONE|None\n")
    slurm.answers("sacct", out="114_0|s|RUNNING|node1|100|Unknown|0:0|None\n114_[2%1]|s|PENDING||||0:0|None\n")
    reports = slurm.scheduler().poll(["114_0", "114_1", "114_2", "115_1"], since=NOW)
    assert [report.state for report in reports.values()] == ["RUNNING", "CANCELLED", "PENDING", ""]
    slurm.answers("sacct", out="114_0|s|RUNNING|node1|100|Unknown|0:0|None\n114_[2,3...%1]|s|PENDING||||0:0|None\n")
    assert slurm.scheduler().poll(["114_1"], since=NOW)["114_1"].phase is Phase.PENDING, "a list that is cut short"


def test_that_accounting_is_away_does_not_keep_a_cancelled_job_from_being_settled(slurm: FakeSlurm) -> None:
    slurm.answers("squeue", out="42|s|CANCELLED|node1|100|200|None\n")
    slurm.answers("sacct", err="sacct: error: Problem talking to the database: Connection refused", code=1)
    report = slurm.scheduler().poll(["42"], since=NOW)["42"]
    assert (report.state, report.ended_by) == ("CANCELLED", "")


def test_the_outcome_is_the_one_of_the_states_word(slurm: FakeSlurm) -> None:
    scheduler = slurm.scheduler()
    for word, state in SLURM_STATES.items():
        report = JobReport(state=word, phase=state.phase, nodes=("node1",))
        assert scheduler.outcome_of(report) is state.outcome
    assert scheduler.outcome_of(JobReport(state="CANCELLED by 1000", phase=Phase.ENDED)) is Outcome.CANCELLED
    assert scheduler.outcome_of(ABSENT) is None


def test_a_job_that_failed_on_no_node_was_rejected_after_all(slurm: FakeSlurm) -> None:
    slurm.answers("squeue", out="55|job|FAILED||1795970906|1795970906|BadConstraints\n")
    scheduler = slurm.scheduler()
    report = scheduler.poll(["55"], since=NOW)["55"]
    assert scheduler.outcome_of(report) is Outcome.REJECTED_BY_SCHEDULER
    assert scheduler.outcome_of(replace(report, nodes=("node1",))) is None


def test_jobs_outlive_this_process(slurm: FakeSlurm) -> None:
    scheduler = slurm.scheduler()
    assert scheduler.keeps_jobs
    scheduler.close()
    assert slurm.calls("scancel") == []


def test_words_go_into_as_few_command_lines_as_they_fit_in() -> None:
    words = [str(number) for number in range(10_000, 10_100)]
    assert list(argument_chunks(words)) == [words]
    chunks = list(argument_chunks(words, limit_bytes=60))
    assert [word for chunk in chunks for word in chunk] == words
    assert max(len(chunk) for chunk in chunks) == 10
    assert list(argument_chunks([])) == []


@pytest.mark.parametrize(
    "words",
    [
        "fetch_config: DNS SRV lookup failed\nscontrol: error: Could not establish a configuration source",
        'error: Munge encode failed: Failed to access "/run/munge/munge.socket.2"',
        "slurm_load_ctl_conf error: Protocol authentication error",
        'error: get_addr_info: getaddrinfo() failed: Name or service not known\nerror: Unable to resolve "head"',
    ],
)
def test_a_command_that_finds_no_cluster_says_that_nobody_is_there(slurm: FakeSlurm, words: str) -> None:
    slurm.answers("squeue", err=words, code=1)
    with pytest.raises(SchedulerUnreachableError):
        slurm.scheduler().poll(["42"], since=NOW)
