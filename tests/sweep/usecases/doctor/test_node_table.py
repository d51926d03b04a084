"""Judging every node: what each lacks, what all lack, and the line that leaves the sick ones out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sweep.core.attempts.attempt import JobReport, Phase
from sweep.usecases.doctor.checks import CheckStatus
from sweep.usecases.doctor.every_node import NodeAnswer, Survey
from sweep.usecases.doctor.node_reports import Expected
from sweep.usecases.doctor.node_table import EXCLUDE, node_table

CPU = Expected(
    token="words",
    python="3.11.7",
    gpus_per_node=2,
    uses_gpus=False,
    needs_torch=True,
    slurm_gives_gpus=True,
    ahead_of_files_s=0.0,
)
GPU = replace(CPU, uses_gpus=True)
SOUND: dict[str, Any] = {
    "host": "n",
    "token": "words",
    "python": "3.11.2",
    "torch": "2.13.0",
    "devices": ["H100", "H100"],
    "slurm_gpus": 2,
    "open_files": 65536,
    "memlock_bytes": None,
    "file_system": "",
    "unresolved": {},
    "unreached": {},
    "clock_offset_s": 0.01,
    "ahead_of_files_s": 0.02,
    "gpus": [{"name": "H100", "nvlinks_up": 18, "nvlinks_down": 0, "persistence": True}] * 2,
    "is_whole": True,
}


def answer(*messages: str, is_over: bool = False, **changes: Any) -> NodeAnswer:
    return NodeAnswer(report={**SOUND, **changes}, messages=messages, is_over=is_over)


def table(answers: dict[str, NodeAnswer], expected: Expected = GPU, **others: Any) -> dict[str, tuple[str, str]]:
    survey = Survey(answers=answers, **others)
    found = node_table(survey, expected, excluded=["old7"], timeout_s=60)
    return {
        finding.name: (str(finding.status), finding.mend if finding.name == EXCLUDE else finding.fact)
        for finding in found
    }


def test_sound_nodes_are_one_line_and_nothing_is_to_be_left_out() -> None:
    assert table({"n1": answer(), "n2": answer()}) == {"nodes": ("ok", "nothing is wrong with n1, n2")}


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({"token": "No such file or directory"}, "problem", "does not see what is written here"),
        ({"file_system": "Read-only file system (write or rename)"}, "problem", "run directory: Read-only"),
        ({"python": "3.9.1"}, "warning", "Python 3.9.1; here 3.11.7"),
        ({"torch_error": "ImportError: libcudart.so.12", "torch": None}, "problem", "torch: ImportError: libcudart"),
        ({"torch": "2.12.0"}, "problem", "torch 2.12.0; most nodes have 2.13.0"),
        ({"clock_offset_s": -7.6}, "warning", "its clock is 8 s off the other nodes'"),
        ({"ahead_of_files_s": 30.2}, "warning", "its clock is 30 s off this machine's"),
        ({"open_files": 1024, "open_files_hard": 1024}, "warning", "no more than 1024 open files"),
        ({"memlock_bytes": 65536}, "warning", "locked memory is limited"),
        ({"slurm_gpus": 1, "devices": ["H100"]}, "problem", "Slurm gives 1 GPUs; 2 were asked for"),
        ({"devices": ["H100"]}, "problem", "torch sees 1 GPUs; Slurm says 2"),
        ({"port_error": "port 24002: Address already in use"}, "problem", "port 24002: Address already in use"),
        ({"gpus": None, "nvml_error": "Driver/library version mismatch"}, "warning", "version mismatch"),
    ],
)
def test_what_one_node_lacks_is_reported_of_that_node(changes: dict[str, Any], status: str, words: str) -> None:
    sick = {name: value for name, value in {**SOUND, **changes}.items() if value is not None or name == "memlock_bytes"}
    found = table({"n1": answer(), "n2": answer(), "n3": NodeAnswer(report=sick)})
    assert found["n3"][0] == status
    assert words in found["n3"][1]
    assert found["nodes"] == ("ok", "nothing is wrong with n1, n2")
    assert found.get(EXCLUDE) == (("warning", "\"cluster.slurm.exclude='old7,n3'\"") if status == "problem" else None)


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({"remap_pending": True}, "problem", "a remap of its memory waits for a reset"),
        ({"remap_failed": True}, "problem", "could not be remapped"),
        ({"pcie_width": 8, "pcie_width_max": 16}, "problem", "PCIe x8 of x16"),
        ({"pcie_speed": 3, "pcie_speed_max": 5, "performance_state": 0}, "problem", "PCIe generation 3 of 5"),
        ({"nvlinks_up": 16, "nvlinks_down": 2}, "problem", "2 NVLinks are down"),
        ({"nvlinks_up": 0, "nvlinks_down": 0}, "problem", "0 NVLinks are up; others of its kind have 18"),
        ({"clock_mhz": 1200, "clock_default_mhz": 1980}, "problem", "capped at 1200 of 1980 MHz"),
        ({"power_limit_w": 400.0, "power_default_w": 700.0}, "problem", "capped at 400.0 of 700.0 W"),
        ({"is_slowed": True}, "problem", "the hardware slows it down"),
        ({"persistence": False}, "warning", "persistence mode is off"),
    ],
)
def test_what_one_gpu_lacks_is_reported_with_its_number(changes: dict[str, Any], status: str, words: str) -> None:
    sound = SOUND["gpus"][0]
    found = table({"n1": answer(), "n2": answer(gpus=[sound, {**sound, **changes}])})
    assert found["n2"] == (status, found["n2"][1])
    assert found["n2"][1].startswith("GPU 1: ")
    assert words in found["n2"][1]


def test_the_slow_link_of_an_idle_gpu_and_what_is_unknown_are_no_lacks() -> None:
    idle = {**SOUND["gpus"][0], "pcie_speed": 1, "pcie_speed_max": 5, "performance_state": 8, "remap_pending": None}
    assert list(table({"n1": answer(gpus=[idle, idle]), "n2": answer()})) == ["nodes"]


def test_on_a_cpu_neither_torchs_devices_nor_nvml_count() -> None:
    bare = answer(devices=[], nvml_error="no pynvml", gpus=[], memlock_bytes=65536)
    assert list(table({"n1": bare, "n2": bare}, CPU)) == ["nodes"]


def test_what_all_nodes_lack_is_the_sites_and_leaves_none_out() -> None:
    found = table(
        {"n1": answer(torch_error="No module named 'torch'"), "n2": answer(torch_error="No module named 'torch'")}
    )
    assert found == {
        "every node": ("problem", "torch: No module named 'torch'"),
        "nodes": ("ok", "nothing more is wrong with n1, n2"),
    }


def test_a_node_that_nobody_reaches_is_blamed_and_not_those_that_tried() -> None:
    answers = {name: answer(unreached={"n3": "timed out"}) for name in ("n1", "n2")}
    found = table({**answers, "n3": answer()})
    assert found["n3"] == ("problem", "n1, n2 cannot connect to it (timed out)")
    assert found["nodes"] == ("ok", "nothing is wrong with n1, n2")


def test_a_node_that_reaches_nobody_is_blamed_and_two_sick_nodes_are_distinguished() -> None:
    answers = {name: answer(unreached={"n4": "refused"}) for name in ("n1", "n2")}
    found = table(
        {**answers, "n3": answer(unreached={"n1": "no route", "n2": "no route", "n4": "no route"}), "n4": answer()}
    )
    assert found["n4"] == ("problem", "n1, n2, n3 cannot connect to it (refused)")
    assert found["n3"] == ("problem", "it cannot connect to n1, n2 (no route)")
    assert found[EXCLUDE][1] == "\"cluster.slurm.exclude='old7,n3,n4'\""


def test_a_node_that_never_answered_is_blamed_once_and_its_neighbours_are_not() -> None:
    found = table({"n1": answer(unreached={"n2": "refused"}), "n2": NodeAnswer(report={}), "n3": answer()})
    assert found["n2"] == ("problem", "its check did not come back within 60 s")
    assert found["nodes"] == ("ok", "nothing is wrong with n1, n3")


def test_names_that_no_node_resolves_are_the_sites() -> None:
    answers = {
        one: answer(unresolved={other: f"{other}: unknown" for other in ("n1", "n2") if other != one})
        for one in ("n1", "n2")
    }
    assert table(answers)["every node"] == ("problem", "no node can resolve another (n1: unknown)")


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (
            NodeAnswer(report={}, messages=("bash: /nowhere/python: No such file",), is_over=True),
            "ended without a report: bash: /now",
        ),
        (NodeAnswer(report={"token_of_shell": "cat: token: No such file"}), "does not see what is written here"),
        (NodeAnswer(report={"host": "n2", "token": "words"}), "importing torch did not end within 60 s"),
        (NodeAnswer(report={**SOUND, "is_whole": False}), "NVML did not answer within 60 s"),
        (
            NodeAnswer(
                report={}, failure=JobReport(state="FAILED", phase=Phase.ENDED, reason="the set-up line `x` ended")
            ),
            "the set-up line `x` ended",
        ),
    ],
)
def test_how_far_a_node_came_is_reported(found: NodeAnswer, words: str) -> None:
    assert words in table({"n1": answer(), "n2": found})["n2"][1]


def test_nodes_that_are_out_of_service_or_busy_are_not_checked_and_those_that_end_the_job_are_left_out() -> None:
    found = table(
        {"n1": answer()}, unchecked={"n2": "Slurm says drained: fan"}, failed={"n3": "the job ended there as FAILED"}
    )
    assert found["n2"] == (str(CheckStatus.NOT_CHECKED), "Slurm says drained: fan")
    assert found["n3"] == ("problem", "the job ended there as FAILED")
    assert found[EXCLUDE][1] == "\"cluster.slurm.exclude='old7,n3'\""
