"""Each fault that a node can report has a finding with its mend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from sweep.usecases.doctor.checks import CheckStatus, Finding
from sweep.usecases.doctor.node_reports import Expected, judge
from sweep.usecases.doctor.probe_job import ProbeResult
from tests.sweep.usecases.doctor.reports import GPU, NODE, PEER

EXPECTED = Expected(token="t", python="3.11.7", gpus_per_node=2, uses_gpus=True, needs_torch=True)


def judged(*, expected: Expected = EXPECTED, first: Mapping[str, Any] | None = None, **peer: object) -> list[Finding]:
    reports = {0: {**NODE, **(first or {})}, 1: {**PEER, **peer}}
    return judge(ProbeResult(reports=reports, began_at=1000.0, seen_at=1002.0), expected)


def statuses(findings: list[Finding]) -> dict[str, CheckStatus]:
    return {finding.name: finding.status for finding in findings if finding.status is not CheckStatus.OK}


def test_good_nodes_have_only_findings_that_are_ok() -> None:
    assert statuses(judged()) == {}


@pytest.mark.parametrize(
    ("change", "name", "status"),
    [
        ({"token": "other"}, "run directory on the nodes", CheckStatus.PROBLEM),
        ({"file_system": "no hard links"}, "file system on the nodes", CheckStatus.PROBLEM),
        ({"python": "3.12.1"}, "Python on the nodes", CheckStatus.WARNING),
        ({"safe_path": False}, "trainer on the nodes", CheckStatus.PROBLEM),
        ({"trainer": None}, "trainer on the nodes", CheckStatus.PROBLEM),
        ({"torch": "2.8.0"}, "torch on the nodes", CheckStatus.PROBLEM),
        ({"torch_error": "ImportError: libcuda"}, "torch on the nodes", CheckStatus.PROBLEM),
        ({"devices": [GPU]}, "GPUs on the nodes", CheckStatus.PROBLEM),
        ({"connected": False, "connect_error": "timed out"}, "rendezvous", CheckStatus.PROBLEM),
        ({"clock_offset_s": -3.0}, "clocks", CheckStatus.WARNING),
        ({"time": 990.0}, "clocks", CheckStatus.WARNING),
        ({"time": 1010.0}, "clocks", CheckStatus.WARNING),
        ({"open_files": 256}, "limits on the nodes", CheckStatus.WARNING),
        ({"memlock_bytes": 65536}, "limits on the nodes", CheckStatus.WARNING),
    ],
)
def test_one_fault_of_one_node_is_one_finding_with_its_mend(
    change: dict[str, object], name: str, status: CheckStatus
) -> None:
    found = [finding for finding in judged(**change) if finding.status is not CheckStatus.OK]
    assert [(finding.name, finding.status) for finding in found] == [(name, status)]
    assert found[0].mend


def test_a_node_whose_clock_is_behind_by_less_than_the_job_took_is_found_by_the_time_stamps_of_files() -> None:
    probed = ProbeResult(
        reports={0: {**NODE, "ahead_of_files_s": -4.9}}, began_at=990, seen_at=1010, ahead_of_files_s=0.1
    )
    (found,) = (finding for finding in judge(probed, EXPECTED) if finding.name == "clocks")
    assert (found.status, found.fact) == (CheckStatus.WARNING, "they differ by 5.0 s")
    level = ProbeResult(
        reports={0: {**NODE, "ahead_of_files_s": 7.0}}, began_at=990, seen_at=1010, ahead_of_files_s=7.25
    )
    (found,) = (finding for finding in judge(level, EXPECTED) if finding.name == "clocks")
    assert (found.status, found.fact) == (CheckStatus.OK, "with this machine within 0.25 s")


def test_a_port_that_is_taken_is_a_warning() -> None:
    assert statuses(judged(first={"port_free": False, "port_error": "in use"})) == {
        "rendezvous port": CheckStatus.WARNING
    }


def test_without_torch_devices_are_not_checked_and_a_runner_that_needs_no_torch_gets_a_warning() -> None:
    reports = {key: value for key, value in NODE.items() if key not in ("torch", "devices")}
    probed = ProbeResult(reports={0: {**reports, "torch_error": "ModuleNotFoundError"}}, began_at=1000, seen_at=1002)
    assert statuses(judge(probed, replace(EXPECTED, needs_torch=False))) == {
        "torch on the nodes": CheckStatus.WARNING,
        "GPUs on the nodes": CheckStatus.NOT_CHECKED,
        "rendezvous": CheckStatus.NOT_CHECKED,
    }


def test_a_cpu_cluster_needs_no_gpus() -> None:
    assert statuses(judged(expected=replace(EXPECTED, uses_gpus=False), devices=[], memlock_bytes=1)) == {}


def test_incomplete_reports_raise_no_error() -> None:
    findings = judge(ProbeResult(reports={1: {}}, began_at=0, seen_at=0), EXPECTED)
    assert findings
    assert [finding.status for finding in judge(ProbeResult(reports={}), EXPECTED)] == [CheckStatus.NOT_CHECKED]
