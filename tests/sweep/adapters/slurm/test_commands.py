"""Slurm's commands: missing ones, those that fail or hang, and when they are asked again."""

from __future__ import annotations

import pytest

from sweep.adapters.slurm.commands import CommandMissingError, SlurmCommands, argument_chunks
from sweep.adapters.slurm.scheduler import SlurmScheduler
from sweep.core.attempts.attempt import Phase
from sweep.core.settings.spec import SlurmSpec
from sweep.ports import SchedulerError, SchedulerUnreachableError
from tests.sweep.adapters.fake_slurm import DOWN, NOW, RUN_DIR, FakeSlurm


@pytest.mark.parametrize("missing", ["sbatch", "squeue", "sacct", "scancel"])
def test_a_missing_command_is_named_with_its_mend(slurm: FakeSlurm, missing: str) -> None:
    (slurm.folder / missing).unlink()
    commands = SlurmCommands({"PATH": str(slurm.folder)})
    with pytest.raises(CommandMissingError, match=f"{missing} is not on PATH.*cluster=local"):
        SlurmScheduler(SlurmSpec(), RUN_DIR, user="me", commands=commands)


def test_a_cluster_without_accounting_needs_no_sacct(slurm: FakeSlurm) -> None:
    (slurm.folder / "sacct").unlink()
    commands = SlurmCommands({"PATH": str(slurm.folder)})
    scheduler = SlurmScheduler(SlurmSpec(sacct=False), RUN_DIR, user="me", commands=commands)
    assert scheduler.poll(["42"], since=NOW)["42"].phase is Phase.ABSENT


def test_commands_are_asked_for_unix_times_and_whole_task_lists(slurm: FakeSlurm) -> None:
    slurm.scheduler(SQUEUE_PARTITION="gpu", SACCT_FORMAT="JobName", SLURM_TIME_FORMAT="relative", LC_ALL="de_DE").poll(
        ["42"], since=NOW
    )
    for name in ("squeue", "sacct"):
        seen = slurm.environment(name)
        assert (seen["SLURM_TIME_FORMAT"], seen["SLURM_BITSTR_LEN"], seen["LC_ALL"]) == ("%s", "1024", "C")
        assert seen.keys().isdisjoint({"SQUEUE_PARTITION", "SACCT_FORMAT"})


def test_a_busy_controller_is_asked_again(slurm: FakeSlurm) -> None:
    slurm.answers("squeue", err=DOWN, code=1, call=1)
    slurm.answers("squeue", out="42|job|RUNNING|node1|100|200|None\n")
    assert slurm.scheduler().poll(["42"], since=NOW)["42"].phase is Phase.RUNNING
    assert len(slurm.calls("squeue")) == 2


def test_a_controller_that_does_not_answer_three_times_is_an_error(slurm: FakeSlurm) -> None:
    slurm.answers("squeue", err=DOWN, code=1)
    with pytest.raises(SchedulerError, match=r"squeue failed: .*connect failure"):
        slurm.scheduler().poll(["42"], since=NOW)
    assert len(slurm.calls("squeue")) == 3


def test_a_command_that_took_long_to_fail_is_not_retried(slurm: FakeSlurm) -> None:
    slurm.answers("squeue", err=DOWN, code=1)
    commands = SlurmCommands({"PATH": f"{slurm.folder}:/usr/bin:/bin"}, backoff_s=0.001, patience_s=0.0)
    with pytest.raises(SchedulerError):
        SlurmScheduler(SlurmSpec(), RUN_DIR, user="me", commands=commands).poll(["42"], since=NOW)
    assert len(slurm.calls("squeue")) == 1


def test_a_permanent_error_is_not_retried(slurm: FakeSlurm) -> None:
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


def test_the_error_of_a_cluster_without_accounting_names_the_setting(slurm: FakeSlurm) -> None:
    slurm.answers("sacct", err="Slurm accounting storage is disabled", code=1)
    with pytest.raises(SchedulerError, match=r"set slurm\.sacct=false"):
        slurm.scheduler().poll(["42"], since=NOW)


@pytest.mark.parametrize(
    "words",
    [
        "fetch_config: DNS SRV lookup failed\nscontrol: error: Could not establish a configuration source",
        'error: Munge encode failed: Failed to access "/run/munge/munge.socket.2"',
        "slurm_load_ctl_conf error: Protocol authentication error",
        'error: get_addr_info: getaddrinfo() failed: Name or service not known\nerror: Unable to resolve "head"',
    ],
)
def test_a_command_that_finds_no_cluster_is_unreachable(slurm: FakeSlurm, words: str) -> None:
    slurm.answers("squeue", err=words, code=1)
    with pytest.raises(SchedulerUnreachableError):
        slurm.scheduler().poll(["42"], since=NOW)


def test_arguments_go_into_as_few_command_lines_as_possible() -> None:
    words = [str(number) for number in range(10_000, 10_100)]
    assert list(argument_chunks(words)) == [words]
    chunks = list(argument_chunks(words, limit_bytes=60))
    assert [word for chunk in chunks for word in chunk] == words
    assert max(len(chunk) for chunk in chunks) == 10
    assert list(argument_chunks([])) == []
