"""Jobs that Slurm killed for their memory, by rows recorded from Slurm 22.05 with OverMemoryKill."""

from __future__ import annotations

from pathlib import Path

import pytest

from sweep.adapters.slurm.job_queries import killed_over_memory

RECORDED = (Path(__file__).parents[3] / "golden" / "slurm" / "sacct-memory.txt").read_text()


def test_only_jobs_killed_for_their_memory_are_found() -> None:
    assert killed_over_memory(RECORDED) == {
        "33_2": "a step was killed that used 552 MiB of the job's 200 MiB on each node",
        # Two nodes: 400M are the sum, and 313 MiB on one of them were too much.
        "47": "a step was killed that used 313 MiB of the job's 200 MiB on each node",
    }


@pytest.mark.parametrize(
    ("job", "step"),
    [
        ("7|9:0||2G|2", "7.0|0:9|900M||2"),  # killed, but not for its memory
        ("7|1:0||100M|1", "7.0|1:0|900M||1"),  # above what it asked for where nobody minds, and failed otherwise
        ("7|9:0||100Mc|1", "7.0|0:9|900M||1"),  # for each CPU: how many of them is not known
        ("7|9:0||0n|1", "7.0|0:9|900M||1"),  # all that a node has
        ("7|9:0|||1", "7.0|0:9|900M||1"),
        ("7|9:0||100M|", "7.0|0:9|900M||1"),
        ("7|9:0||100M|1", "7.0|0:9|||1"),
        ("7|9:0||100M|1", "what|is|this"),
    ],
)
def test_a_job_without_a_kill_above_a_known_limit_is_not_found(job: str, step: str) -> None:
    assert killed_over_memory(f"{job}\n{step}\n") == {}


def test_older_slurm_marks_a_limit_on_each_node() -> None:
    assert killed_over_memory("7|9:0||100Mn|2\n7.0|0:9|150M||2\n").keys() == {"7"}
