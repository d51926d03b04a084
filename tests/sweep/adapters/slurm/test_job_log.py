"""Last words in job logs; the texts were written by a Slurm 22.05, but for the ones that say otherwise."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from sweep.adapters.slurm.job_log import reported_end
from sweep.core.attempts.attempt import JobReport, Phase

OVER_MEMORY = """\
slurmstepd-node1: error: StepId=2.0 exceeded memory limit (550735872 > 209715200), being killed
srun: Job step aborted: Waiting up to 7 seconds for job step to finish.
slurmstepd-node1: error: Exceeded job memory limit
slurmstepd-node1: error: *** STEP 2.0 ON node1 CANCELLED AT 2026-11-29T21:47:25 ***
srun: error: node1: task 0: Killed
"""
BY_HAND = """\
srun: got SIGCONT
slurmstepd-node1: error: *** STEP 4.0 ON node1 CANCELLED AT 2026-11-29T21:47:27 ***
slurmstepd-node1: error: *** JOB 4 ON node1 CANCELLED AT 2026-11-29T21:47:27 ***
srun: forcing job termination
"""
OUT_OF_TIME = """\
slurmstepd-node1: error: *** STEP 3.0 ON node1 CANCELLED AT 2026-11-29T21:48:33 DUE TO TIME LIMIT ***
slurmstepd-node1: error: *** JOB 3 ON node1 CANCELLED AT 2026-11-29T21:48:33 DUE TO TIME LIMIT ***
"""
PREEMPTED = """\
slurmstepd-node4: error: *** STEP 5.0 ON node4 CANCELLED AT 2026-11-29T21:47:27 DUE TO PREEMPTION ***
slurmstepd-node4: error: *** JOB 5 ON node4 CANCELLED AT 2026-11-29T21:47:27 DUE TO PREEMPTION ***
"""
# A node lost its power while srun reached for it.
NOT_REACHED = """\
srun: error: Task launch for StepId=3.0 failed on node node2: Communication connection failure
srun: error: Application launch failed: Communication connection failure
srun: Job step aborted
"""
# As people have published them.
TIMED_OUT = """\
srun: error: slurm_receive_msgs: [[gpu016]:6818] failed: Socket timed out on send/recv operation
srun: error: Task launch for 20.0 failed on node gpu016: Socket timed out on send/recv operation
srun: error: Task launch for 20.0 failed on node gpu017: Socket timed out on send/recv operation
srun: error: Application launch failed: Socket timed out on send/recv operation
srun: Job step aborted: Waiting up to 32 seconds for job step to finish.
slurmstepd: error: *** STEP 20.0 ON gpu015 CANCELLED AT 2026-11-29T21:47:25 ***
"""
NOT_BOUND = """\
srun: error: CPU binding outside of job step allocation, allocated CPUs are: 0x01F000000001F0000000.
srun: error: Task launch for StepId=5216715.0 failed on node node2: Unable to satisfy cpu bind request
srun: error: Application launch failed: Unable to satisfy cpu bind request
"""
BY_CGROUP = (
    "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=7.0. Some of your processes may have been killed by the "
    "cgroup out-of-memory handler.\n",
    "0: slurmstepd: error: Detected 2 oom_kill events in StepId=7.0. Some of the step tasks have been OOM Killed.\n",
    "[2026-03-28T14:27:13.072] error: Detected 1 oom_kill event in StepId=10.batch. Some of the step tasks have been "
    "OOM Killed.\n",
)
NODE_FAILURE = """\
srun: error: Node failure on node2
slurmstepd-node1: error: *** JOB 240 ON node1 CANCELLED AT 2026-11-29T22:58:17 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***
srun: error: node1: task 0: Terminated
"""  # noqa: E501 - as Slurm wrote it


ZONE = "sweep: zone +0530\n"


def _at(text: str) -> float:
    return datetime.fromisoformat(f"{text}+05:30").timestamp()


def _state(text: str, since: float = 0.0) -> str | None:
    found = reported_end(ZONE + text, since=since)
    return None if found is None else found.state


@pytest.fixture(params=["UTC", "America/New_York", "Asia/Tokyo"])
def our_zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("our_zone")
@pytest.mark.parametrize(
    ("zone", "hour"), [("+0000", 21), ("-0500", 16), ("+0900", 30), ("+0545", 26.75), ("-0330", 17.5)]
)
def test_a_time_is_read_in_the_zone_of_the_node_whatever_ours_is(zone: str, hour: float) -> None:
    ended_at = datetime(2026, 11, 29, 21, 48, 33, tzinfo=UTC).timestamp()
    stamp = datetime.fromtimestamp(ended_at + (hour - 21) * 3600, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    text = f"sweep: zone {zone}\n" + OUT_OF_TIME.replace("2026-11-29T21:48:33", stamp)
    found = reported_end(text, since=ended_at - 600)
    assert found is not None
    assert (found.state, found.ended_at) == ("TIMEOUT", ended_at)
    assert reported_end(text, since=ended_at + 1) is None


@pytest.mark.usefixtures("our_zone")
def test_a_time_whose_zone_is_not_known_is_compared_with_none_of_ours() -> None:
    found = reported_end(OUT_OF_TIME, since=_at("2026-12-24T00:00:00"))
    assert found is not None
    assert (found.state, found.ended_at) == ("TIMEOUT", None)


@pytest.mark.parametrize(
    ("text", "state"),
    [
        (OVER_MEMORY, "OUT_OF_MEMORY"),
        (BY_HAND, "CANCELLED"),
        (OUT_OF_TIME, "TIMEOUT"),
        (PREEMPTED, "PREEMPTED"),
        (BY_CGROUP[0], "OUT_OF_MEMORY"),
        (BY_CGROUP[1], "OUT_OF_MEMORY"),
        (BY_CGROUP[2], "OUT_OF_MEMORY"),
        (NODE_FAILURE, "NODE_FAIL"),
    ],
)
def test_slurms_sentence_gives_the_state_of_the_job(text: str, state: str) -> None:
    assert _state(text) == state


@pytest.mark.parametrize(("text", "nodes"), [(NOT_REACHED, ("node2",)), (TIMED_OUT, ("gpu016", "gpu017"))])
def test_nodes_that_srun_did_not_reach_are_at_fault(text: str, nodes: tuple[str, ...]) -> None:
    found = reported_end(text, since=0.0)
    assert found is not None
    assert found.state == "NODE_FAIL"
    assert found.at_fault == nodes


def test_a_launch_that_fails_for_another_reason_blames_no_node() -> None:
    assert reported_end(NOT_BOUND, since=0.0) is None


def test_a_node_that_was_not_reached_while_the_job_was_being_ended_is_not_at_fault() -> None:
    found = reported_end(BY_HAND + NOT_REACHED, since=0.0)
    assert found is not None
    assert (found.state, found.at_fault) == ("CANCELLED", ())


def test_the_sentence_and_the_time_of_the_end_are_kept() -> None:
    assert reported_end(ZONE + OVER_MEMORY, since=0.0) == JobReport(
        state="OUT_OF_MEMORY",
        phase=Phase.ENDED,
        reason="StepId=2.0 exceeded memory limit (550735872 > 209715200), being killed",
        ended_at=_at("2026-11-29T21:47:25"),
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "module: command not found\nsrun: error: node1: task 0: Exited with exit code 1\n",
        # A step is ended so when one of its tasks fails, too.
        "slurmstepd-node1: error: *** STEP 4.0 ON node1 CANCELLED AT 2026-11-29T21:47:27 ***\n",
        # Only Slurm's own lines count.
        "my set-up script: exceeded memory limit\n*** JOB 4 ON node1 CANCELLED AT 2026-11-29T21:47:27 ***\n",
        "slurmstepd: error: *** JOB 4 ON node1 CANCELLED AT 2026-11-29T21:47:27 DUE TO THE MOON ***\n",
    ],
)
def test_a_log_without_slurms_sentence_gives_no_end(text: str) -> None:
    assert _state(text) is None


def test_lines_of_an_earlier_run_under_the_same_job_id_do_not_count() -> None:
    requeued = PREEMPTED.replace("PREEMPTION", "JOB REQUEUE")
    assert _state(requeued + OUT_OF_TIME) == "TIMEOUT"
    began_again = _at("2026-11-29T21:47:40")
    assert _state(requeued, since=began_again) is None
    assert _state(OVER_MEMORY + requeued, since=began_again) is None
    assert _state(requeued + OUT_OF_TIME, since=began_again) == "TIMEOUT"
