"""Limits of the cluster, and an sbatch that is heard although it seems to fail."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import SlurmUnderTest
from tests.integration.fault_run import fault_run

pytestmark = pytest.mark.slurm

COUNTS = 'echo >> "$HERE/sbatch.calls"; exec "$REAL" "$@"'
TAKEN_BUT_TIMED_OUT = """
echo >> "$HERE/sbatch.calls"
[ $(wc -l < "$HERE/sbatch.calls") = 1 ] || exec "$REAL" "$@"
"$REAL" "$@" > /dev/null
echo "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation" >&2
exit 1
"""


@contextlib.contextmanager
def at_most_three_jobs(slurm: SlurmUnderTest) -> Iterator[None]:
    """The QOS takes no more of a user."""
    change = ("sacctmgr", "-i", "modify", "qos", "normal", "set")
    slurm.run(*change, "MaxSubmitJobsPerUser=3")
    try:
        yield
    finally:
        slurm.run(*change, "MaxSubmitJobsPerUser=-1")


def test_twenty_cells_are_fed_into_a_queue_that_takes_three(slurm: SlurmUnderTest, tmp_path: Path) -> None:
    lengths = ",".join(str(32 * number) for number in range(1, 21))
    run = fault_run(
        slurm, tmp_path, "fed", "nodes=1", f"seq_len=[{lengths}]", "policy.canary=false", "budget.gpu_hours=2",
        "tables=false",
    ).in_the_way("sbatch", COUNTS)  # fmt: skip
    with at_most_three_jobs(slurm):
        done = run.shell.run(*run.words, timeout_s=280)
    assert done.code == 0, done.err
    assert run.outcomes() == ["SUCCEEDED"] * 20
    assert run.events("refused") == []
    assert run.calls("sbatch") <= 21, "cells are held back, not refused again and again"
    run.audit(budget=2)


def test_a_limit_that_the_user_may_not_ask_for_is_found_by_halves(slurm: SlurmUnderTest, tmp_path: Path) -> None:
    run = fault_run(
        slurm, tmp_path, "halved", "nodes=1", "seq_len=[32,64,96,128,160,192,224]", "policy.canary=false",
        "tables=false",
    )  # fmt: skip
    run = run.in_the_way("sacctmgr", 'echo "sacctmgr: error: Access/permission denied" >&2; exit 1')
    with at_most_three_jobs(slurm):
        done = run.shell.run(*run.words, timeout_s=200)
    assert done.code == 0, done.err
    assert run.outcomes() == ["SUCCEEDED"] * 7
    assert max(len(event["jobs"]) for event in run.events("submitted")) == 3  # type: ignore[arg-type]  # JSON
    run.audit()


def test_equal_cells_go_out_in_arrays_that_the_cluster_takes(slurm: SlurmUnderTest, tmp_path: Path) -> None:
    lengths = ",".join(str(32 * number) for number in range(1, 13))
    run = fault_run(
        slurm, tmp_path, "arrays", "nodes=1", f"seq_len=[{lengths}]", "policy.canary=false", "tables=false"
    ).in_the_way("sbatch", COUNTS)  # fmt: skip
    with slurm.settings(MaxArraySize="5"):
        done = run.shell.run(*run.words)
    assert done.code == 0, done.err
    assert sorted(len(event["jobs"]) for event in run.events("submitted")) == [2, 5, 5]  # type: ignore[arg-type]  # JSON
    assert run.calls("sbatch") == 3
    assert run.outcomes() == ["SUCCEEDED"] * 12
    run.audit()


@pytest.mark.parametrize("cells", ["[64]", "[32,64,96]"], ids=["job", "array"])
def test_an_sbatch_that_times_out_after_it_was_heard_doubles_nothing(
    slurm: SlurmUnderTest, tmp_path: Path, cells: str
) -> None:
    run = fault_run(
        slurm, tmp_path, "timedout", "nodes=1", f"seq_len={cells}", "policy.canary=false", "tables=false"
    ).in_the_way("sbatch", TAKEN_BUT_TIMED_OUT)  # fmt: skip
    done = run.shell.run(*run.words)
    assert done.code == 0, done.err
    assert "It is looked for by name" in done.err
    assert run.calls("sbatch") == 1
    assert set(run.outcomes()) == {"SUCCEEDED"}
    run.audit()
