"""Findings: a check never crashes, what depends on a broken thing is not judged, and each report has its mend."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sweep.adapters.doctor.machine import file_system, packages, port_range, shadowing
from sweep.core.attempts.attempt import JobReport, Phase
from sweep.core.jobs.submission import Submission
from sweep.core.settings.spec import LaunchSpec
from sweep.launch import probe
from sweep.ports import SchedulerError, SubmissionRejectedError
from sweep.usecases.doctor import (
    Check,
    Finding,
    Probed,
    Verdict,
    examine,
    exit_code,
    not_checked,
    ok,
    problem,
    run_probe,
    warning,
)
from sweep.usecases.doctor_nodes import Expected, judge
from tests.fakes import FakeClock, FakeScheduler, submission_of
from tools.slurmbox.ports import port_is_free

EXPECTED = Expected(token="t", python="3.11.7", gpus_per_node=2, uses_gpus=True, needs_torch=True)
GPU = "NVIDIA H100"
NODE: Mapping[str, Any] = {
    "host": "gpu1",
    "node_rank": 0,
    "time": 1001.0,
    "token": "t",
    "python": "3.11.9",
    "executable": "/env/bin/python",
    "safe_path": True,
    "cores": 64,
    "memory_bytes": 2**38,
    "memlock_bytes": None,
    "open_files": 4096,
    "file_system": "",
    "trainer": "/run/sources/trainer/__init__.py",
    "torch": "2.9.0",
    "devices": [GPU, GPU],
    "port": 20001,
    "port_free": True,
}
PEER = {
    **{key: value for key, value in NODE.items() if not key.startswith("port")},
    "host": "gpu2",
    "node_rank": 1,
    "head": "gpu1",
    "resolved": ["10.0.0.1"],
    "connected": True,
    "clock_offset_s": 0.001,
}


def judged(*, expected: Expected = EXPECTED, first: Mapping[str, Any] | None = None, **peer: object) -> list[Finding]:
    reports = {0: {**NODE, **(first or {})}, 1: {**PEER, **peer}}
    return judge(Probed(reports=reports, began_at=1000.0, seen_at=1002.0), expected)


def verdicts(findings: list[Finding]) -> dict[str, Verdict]:
    return {finding.name: finding.verdict for finding in findings if finding.verdict is not Verdict.OK}


# --- checks


def test_a_check_that_breaks_is_not_checked_and_the_others_go_on() -> None:
    said: list[Finding] = []
    checks = [
        Check(name="breaks", look=lambda: ok("x", str(1 / 0))),
        Check(name="needs it", look=lambda: ok("needs it", ""), needs=("breaks",)),
        Check(name="needs that", look=lambda: ok("needs that", ""), needs=("needs it",)),
        Check(name="fine", look=lambda: [ok("fine", "1"), warning("fine", "2", "m")]),
        Check(name="needs fine", look=lambda: ok("needs fine", ""), needs=("fine",)),
        Check(name="nothing to say", look=lambda: []),
    ]
    found = examine(checks, said.append)
    assert found == said
    assert [(item.name, item.verdict.value) for item in found] == [
        ("breaks", "not checked"),
        ("needs it", "not checked"),
        ("needs that", "not checked"),
        ("fine", "ok"),
        ("fine", "warning"),
        ("needs fine", "ok"),
    ]
    assert "ZeroDivisionError" in found[0].fact


def test_only_a_problem_fails() -> None:
    assert exit_code([ok("a", ""), warning("b", "", ""), not_checked("c", "")]) == 0
    assert exit_code([ok("a", ""), problem("b", "", "")]) == 1


# --- what nodes report


def test_good_nodes_have_no_finding_but_ok() -> None:
    assert verdicts(judged()) == {}


@pytest.mark.parametrize(
    ("change", "name", "verdict"),
    [
        ({"token": "other"}, "run directory on the nodes", Verdict.PROBLEM),
        ({"file_system": "no hard links"}, "file system on the nodes", Verdict.PROBLEM),
        ({"python": "3.12.1"}, "Python on the nodes", Verdict.WARNING),
        ({"safe_path": False}, "trainer on the nodes", Verdict.PROBLEM),
        ({"trainer": None}, "trainer on the nodes", Verdict.PROBLEM),
        ({"torch": "2.8.0"}, "torch on the nodes", Verdict.PROBLEM),
        ({"torch_error": "ImportError: libcuda"}, "torch on the nodes", Verdict.PROBLEM),
        ({"devices": [GPU]}, "GPUs on the nodes", Verdict.PROBLEM),
        ({"connected": False, "connect_error": "timed out"}, "rendezvous", Verdict.PROBLEM),
        ({"clock_offset_s": -3.0}, "clocks", Verdict.WARNING),
        ({"time": 990.0}, "clocks", Verdict.WARNING),
        ({"time": 1010.0}, "clocks", Verdict.WARNING),
        ({"open_files": 256}, "limits on the nodes", Verdict.WARNING),
        ({"memlock_bytes": 65536}, "limits on the nodes", Verdict.WARNING),
    ],
)
def test_one_thing_wrong_with_one_node_is_one_finding_with_its_mend(
    change: dict[str, object], name: str, verdict: Verdict
) -> None:
    found = [finding for finding in judged(**change) if finding.verdict is not Verdict.OK]
    assert [(finding.name, finding.verdict) for finding in found] == [(name, verdict)]
    assert found[0].mend


def test_a_node_whose_clock_is_behind_by_less_than_the_job_took_is_seen_by_the_stamps_of_files() -> None:
    probed = Probed(reports={0: {**NODE, "ahead_of_files_s": -4.9}}, began_at=990, seen_at=1010, ahead_of_files_s=0.1)
    (found,) = (finding for finding in judge(probed, EXPECTED) if finding.name == "clocks")
    assert (found.verdict, found.fact) == (Verdict.WARNING, "they differ by 5.0 s")
    level = Probed(reports={0: {**NODE, "ahead_of_files_s": 7.0}}, began_at=990, seen_at=1010, ahead_of_files_s=7.25)
    (found,) = (finding for finding in judge(level, EXPECTED) if finding.name == "clocks")
    assert (found.verdict, found.fact) == (Verdict.OK, "with this machine within 0.25 s")


def test_clocks_are_compared_with_the_stamps_of_files(tmp_path: Path) -> None:
    ahead = probe.ahead_of_files_s(tmp_path)
    assert ahead is not None
    assert abs(ahead) < 5
    assert list(tmp_path.iterdir()) == []
    assert probe.ahead_of_files_s(tmp_path / "none") is None


def test_a_port_that_is_taken_is_a_warning() -> None:
    assert verdicts(judged(first={"port_free": False, "port_error": "in use"})) == {"rendezvous port": Verdict.WARNING}


def test_without_torch_its_devices_are_not_judged_and_a_runner_without_torch_is_only_warned() -> None:
    reports = {key: value for key, value in NODE.items() if key not in ("torch", "devices")}
    probed = Probed(reports={0: {**reports, "torch_error": "ModuleNotFoundError"}}, began_at=1000, seen_at=1002)
    assert verdicts(judge(probed, replace(EXPECTED, needs_torch=False))) == {
        "torch on the nodes": Verdict.WARNING,
        "GPUs on the nodes": Verdict.NOT_CHECKED,
        "rendezvous": Verdict.NOT_CHECKED,
    }


def test_a_cpu_cluster_needs_no_gpus() -> None:
    assert verdicts(judged(expected=replace(EXPECTED, uses_gpus=False), devices=[], memlock_bytes=1)) == {}


def test_reports_with_holes_break_nothing() -> None:
    findings = judge(Probed(reports={1: {}}, began_at=0, seen_at=0), EXPECTED)
    assert findings
    assert [finding.verdict for finding in judge(Probed(reports={}), EXPECTED)] == [Verdict.NOT_CHECKED]


# --- the probe's job


def submission(nodes: int = 2) -> Submission:
    return submission_of(name="doctor", created_at=1000.0, nodes=nodes)


def probe_with(scheduler: FakeScheduler, reports: Mapping[int, Mapping[str, Any]], **kwargs: float) -> Probed:
    return run_probe(scheduler, submission(), FakeClock(time=1000.0), lambda: reports, **{"timeout_s": 60.0, **kwargs})


def test_a_probe_whose_nodes_all_report_leaves_no_job() -> None:
    scheduler = FakeScheduler()
    probed = probe_with(scheduler, {0: NODE, 1: PEER})
    assert (probed.trouble, probed.began_at, probed.seen_at) == ("", 1000.0, 1000.0)
    assert scheduler.live_jobs() == []


def test_a_probe_is_left_only_once_its_job_has_ended_or_takes_too_long_for_it() -> None:
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


def test_a_probe_that_waits_too_long_is_cancelled_and_slurms_reason_is_told() -> None:
    scheduler = FakeScheduler()

    def read() -> dict[int, Mapping[str, Any]]:
        for job in scheduler.live_jobs():
            scheduler.say(job, "PENDING", reason="Resources")
        return {}

    probed = run_probe(scheduler, submission(), FakeClock(time=1000.0), read, timeout_s=60)
    assert "still waited after 60 s (Resources)" in probed.trouble
    assert scheduler.live_jobs() == []


def test_a_probe_that_ended_without_reports_is_told_of_soon_and_with_those_that_are_there() -> None:
    scheduler, clock = FakeScheduler(), FakeClock(time=1000.0)

    def read() -> dict[int, Mapping[str, Any]]:
        for job in scheduler.live_jobs():
            scheduler.say(job, "FAILED", nodes=("gpu1", "gpu2"))
        return {0: NODE}

    probed = run_probe(scheduler, submission(), clock, read, timeout_s=600, grace_s=5)
    assert "ended as FAILED on gpu1,gpu2, and 1 of 2 nodes wrote no report" in probed.trouble
    assert probed.reports == {0: NODE}
    assert clock.time < 1010


def test_a_probe_that_runs_on_is_told_of() -> None:
    scheduler = FakeScheduler()

    def read() -> dict[int, Mapping[str, Any]]:
        for job in scheduler.live_jobs():
            scheduler.say(job, "RUNNING")
        return {}

    probed = run_probe(scheduler, submission(), FakeClock(time=1000.0), read, timeout_s=60)
    assert "is RUNNING after 60 s" in probed.trouble


@pytest.mark.parametrize("error", [SubmissionRejectedError("no such QOS"), SchedulerError("no such QOS")])
def test_a_probe_that_cannot_be_submitted_says_so(error: Exception) -> None:
    assert "no such QOS" in probe_with(FakeScheduler(submit_error=error), {}).trouble


def test_a_probe_that_cannot_be_cancelled_keeps_what_was_found() -> None:
    class Stubborn(FakeScheduler):
        def cancel(self, job_ids: object) -> None:
            raise SchedulerError("away")

    assert probe_with(Stubborn(), {0: NODE, 1: PEER}).trouble == ""


# --- this machine


def test_a_file_system_is_tried_and_left_as_it_was(tmp_path: Path) -> None:
    assert file_system(tmp_path).verdict is Verdict.OK
    assert list(tmp_path.iterdir()) == []
    missing = file_system(tmp_path / "missing")
    assert (missing.verdict, bool(missing.mend)) == (Verdict.PROBLEM, True)


def test_a_file_system_without_hard_links_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr("os.link", refuse)
    assert probe.file_system_problem(tmp_path) == "Operation not permitted (hard link)"
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_whose_hard_links_replace_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.link", lambda *_: None)
    assert probe.file_system_problem(tmp_path) == "a hard link replaces a file that is there"


def test_packages_that_do_not_lie_together_are_a_problem(tmp_path: Path) -> None:
    assert packages().verdict is Verdict.OK
    assert packages(tmp_path).verdict is Verdict.PROBLEM


@pytest.mark.parametrize("name", ["trainer.py", "analysis/__init__.py"])
def test_a_file_with_a_packages_name_in_the_working_directory_is_told_of(tmp_path: Path, name: str) -> None:
    assert shadowing(tmp_path).verdict is Verdict.OK
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    found = shadowing(tmp_path)
    assert found.verdict is Verdict.WARNING
    assert str(tmp_path / name) in found.fact


@pytest.mark.parametrize(
    ("ports", "verdict"),
    [((20000, 29999), Verdict.OK), ((32000, 33000), Verdict.WARNING), ((50000, 51000), Verdict.WARNING)],
)
def test_rendezvous_ports_keep_clear_of_the_systems(tmp_path: Path, ports: tuple[int, int], verdict: Verdict) -> None:
    ephemeral = tmp_path / "range"
    ephemeral.write_text("32768\t60999\n")
    assert port_range(ports, ephemeral).verdict is verdict
    assert port_range(ports, tmp_path / "none").verdict is Verdict.OK


def test_nodes_meet_and_compare_clocks() -> None:
    """Both ends on this machine, in two threads; and a port that is taken."""
    import threading

    from sweep.core.jobs.node_command import Node

    both = replace(submission(), launch=LaunchSpec(rendezvous_host="127.0.0.1"))
    jobs = (Node(submission=both, index=0, node_rank=0, job_id=str(n), hosts=("a", "b")) for n in itertools.count())
    first = next(job for job in jobs if port_is_free(job.port))
    second = replace(first, node_rank=1)
    said: dict[str, Any] = {}
    host = threading.Thread(target=lambda: said.update(probe.meet(first, timeout_s=10)))
    host.start()
    met = probe.meet(second, timeout_s=10)
    host.join()
    assert said["port_free"] is True
    assert met["connected"] is True
    assert met["resolved"] == ["127.0.0.1"]
    assert abs(met["clock_offset_s"]) < 10
    lost = replace(second, submission=replace(both, launch=LaunchSpec(rendezvous_host="nowhere.invalid")))
    assert "cannot be resolved" in probe.meet(lost, timeout_s=0)["connect_error"]
    assert probe.meet(second, timeout_s=0)["connected"] is False
