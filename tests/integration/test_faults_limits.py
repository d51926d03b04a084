"""Limits of the cluster, and an sbatch that reports a time-out although Slurm took the job."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sweep.core.attempts.attempt import Outcome
from sweep.core.attempts.blame import Blame
from tests.commands import rows, wait_for
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
    """The QOS takes no more jobs of a user."""
    change = ("sacctmgr", "-i", "modify", "qos", "normal", "set")
    slurm.run(*change, "MaxSubmitJobsPerUser=3")
    try:
        yield
    finally:
        slurm.run(*change, "MaxSubmitJobsPerUser=-1")


@contextlib.contextmanager
def one_node_in_all(slurm: SlurmUnderTest) -> Iterator[None]:
    """All jobs of the QOS together get at most one node."""
    change = ("sacctmgr", "-i", "modify", "qos", "normal", "set")
    slurm.run(*change, "GrpTRES=node=1")
    try:
        yield
    finally:
        slurm.run(*change, "GrpTRES=node=-1")


def test_a_cell_above_a_group_limit_does_not_wait_forever(slurm: SlurmUnderTest, tmp_path: Path) -> None:
    """First the limit is known. Then nobody may ask for it, and the job is ended after policy.pending_limit_h."""
    run = fault_run(slurm, tmp_path / "known", "grouplimit", "nodes=[1,2]", "seq_len=32")
    blind = fault_run(
        slurm, tmp_path / "blind", "blindlimit", "nodes=2", "seq_len=32", "policy.pending_limit_h=0.003"
    ).in_the_way("sacctmgr", 'echo "sacctmgr: error: Access/permission denied" >&2; exit 1')
    with one_node_in_all(slurm):
        done = run.shell.run(*run.arguments)
        ended = blind.shell.run(*blind.arguments)
    assert done.code == 1, done.err
    table = {row["nodes"]: row for row in rows(run.run_dir)}
    assert {nodes: row["status"] for nodes, row in table.items()} == {"1": "measured", "2": "over_limit"}
    assert "GrpTRES node=1 of the QOS normal never lets it run" in table["2"]["reason"]
    assert len(run.jobs()) == 1
    run.audit()
    assert ended.code == 1, ended.err
    (row,) = rows(blind.run_dir)
    assert row["status"] == "rejected_by_scheduler"
    assert "it waited for more than policy.pending_limit_h=0.003: QOSGrpNodeLimit" in row["reason"]
    blind.audit()


def test_a_job_that_is_held_is_shown_with_what_can_be_done(slurm: SlurmUnderTest, tmp_path: Path) -> None:
    run = fault_run(slurm, tmp_path, "held", "nodes=1", "seq_len=32", "tables=false", site={"sbatch": {"hold": True}})
    started = run.shell.start(*run.arguments)
    wait_for(run.in_queue, 60, "it is submitted")
    wait_for(lambda: "JobHeldUser" in str(run.shell.status(run.run_dir)["cells"]), 60, "status shows it")
    seen: dict[str, Any] = run.shell.status(run.run_dir)
    (held,) = seen["cells"]
    of_cell = run.shell.run("status", held["cell"], f"run_dir={run.run_dir}").out
    slurm.run("scontrol", "release", *run.jobs())
    text, _ = started.communicate(timeout=120)
    assert started.returncode == 0, text
    assert "`scontrol release JOB`" in str(held)
    assert "`scontrol release JOB`" in of_cell
    assert "`scontrol release JOB`" in text
    run.audit()


def test_twenty_cells_are_fed_into_a_queue_that_takes_three(slurm: SlurmUnderTest, tmp_path: Path) -> None:
    lengths = ",".join(str(32 * number) for number in range(1, 21))
    run = fault_run(
        slurm, tmp_path, "fed", "nodes=1", f"seq_len=[{lengths}]", "policy.canary=false", "budget.gpu_hours=2",
        "tables=false",
    ).in_the_way("sbatch", COUNTS)  # fmt: skip
    with at_most_three_jobs(slurm):
        done = run.shell.run(*run.arguments, timeout_s=800)
    assert done.code == 0, done.err
    assert run.outcomes() == ["SUCCEEDED"] * 20
    assert run.events("refused") == []
    assert run.calls("sbatch") <= 21, "cells are held back, not refused again and again"
    run.audit(budget=2)


def test_a_limit_that_the_user_may_not_query_is_found_by_halving(slurm: SlurmUnderTest, tmp_path: Path) -> None:
    run = fault_run(
        slurm, tmp_path, "halved", "nodes=1", "seq_len=[32,64,96,128,160,192,224]", "policy.canary=false",
        "tables=false",
    )  # fmt: skip
    run = run.in_the_way("sacctmgr", 'echo "sacctmgr: error: Access/permission denied" >&2; exit 1')
    with at_most_three_jobs(slurm):
        done = run.shell.run(*run.arguments)
    assert done.code == 0, done.err
    assert run.outcomes() == ["SUCCEEDED"] * 7
    assert max(len(event["jobs"]) for event in run.events("submitted")) == 3  # type: ignore[arg-type]  # JSON
    run.audit()


def test_equal_cells_are_submitted_in_arrays_that_the_cluster_takes(slurm: SlurmUnderTest, tmp_path: Path) -> None:
    lengths = ",".join(str(32 * number) for number in range(1, 13))
    run = fault_run(
        slurm, tmp_path, "arrays", "nodes=1", f"seq_len=[{lengths}]", "policy.canary=false", "tables=false"
    ).in_the_way("sbatch", COUNTS)  # fmt: skip
    with slurm.settings(MaxArraySize="5"):
        done = run.shell.run(*run.arguments)
    assert done.code == 0, done.err
    assert sorted(len(event["jobs"]) for event in run.events("submitted")) == [2, 5, 5]  # type: ignore[arg-type]  # JSON
    assert run.calls("sbatch") == 3
    assert run.outcomes() == ["SUCCEEDED"] * 12
    run.audit()


def test_a_walltime_that_reaches_into_a_maintenance_is_cut_to_what_another_cell_took(
    slurm: SlurmUnderTest, tmp_path: Path
) -> None:
    """Another cell of the model was measured. With a whole walltime the jobs would wait until the maintenance ends."""
    run = fault_run(
        slurm, tmp_path, "maintenance", "nodes=1", "tables=false", "policy.max_concurrent_jobs=2", walltime_min=60
    )
    assert run.shell.run(*run.arguments, "seq_len=32").code == 0
    when = ("starttime=now+20minutes", "duration=30", "flags=maint,ignore_jobs", "nodes=ALL", "users=root")
    slurm.run("scontrol", "create", "reservation", "reservationname=upkeep", *when)
    try:
        done = run.shell.run(*run.arguments, "seq_len=[32,64,96]")
    finally:
        slurm.run("scontrol", "delete", "reservationname=upkeep")
    assert done.code == 0, done.err
    assert run.outcomes() == ["SUCCEEDED"] * 3
    minutes = [round(float(str(event["gpu_hours"])) * 60) for event in run.events("reserved")]
    assert minutes[0] == 60
    assert all(15 <= cut <= 18 for cut in minutes[1:])
    run.audit()


def test_the_excluded_nodes_leave_enough_others_and_are_all_known(slurm: SlurmUnderTest, tmp_path: Path) -> None:
    """All nodes but two are excluded, and an unknown one; both that are left are blamed. One of these must be used."""
    left, other, *rest = slurm.nodes
    run = fault_run(
        slurm, tmp_path, "excluded", "nodes=1", "seq_len=[32]", "tables=false",
        site={"exclude": ",".join([*rest, "nosuchnode"])},
    )  # fmt: skip
    (own,) = (
        line.split()[-1] for line in slurm.run("scontrol", "show", "config").splitlines() if "ClusterName" in line
    )
    book = tmp_path / "state" / "scaling-sweep" / f"blame-{own}.jsonl"
    book.parent.mkdir(parents=True)
    blames = [
        Blame(node=node, time=time.time(), cell_id=cell, run="other", outcome=Outcome.DEVICE_ERROR, reason="Xid 79")
        for node in (other, left)
        for cell in ("a", "b")
    ]
    book.write_text("".join(f"{blame.render()}\n" for blame in blames))
    done = run.shell.run(*run.arguments)
    assert done.code == 0, done.err
    assert done.err.count("names nosuchnode, a node that this cluster does not know") == 1
    (submitted,) = run.events("submitted")
    submission = json.loads((run.run_dir / "submissions" / f"{submitted['submission']}.json").read_text())
    assert submission["exclude"] == [min(left, other)]
    only = min(left, other)
    slurm.run("scontrol", "update", f"nodename={only}", "features=rare", "activefeatures=rare")
    try:
        run.reshaped("excluded", site={"constraint": "rare"})
        rare = run.shell.run(*run.arguments, "seq_len=64")
    finally:
        slurm.run("scontrol", "update", f"nodename={only}", "features=", "activefeatures=")
    assert rare.code == 0, rare.err
    assert "the next submission does not keep away from them" in rare.err
    assert run.outcomes() == ["SUCCEEDED"] * 2
    shown = run.shell.run("status", "--nodes", f"run_dir={run.run_dir}")
    assert f"{left}: excluded, blamed by 2 cells" in shown.out
    # Slurm keeps a record of a job that it refused in this way.
    run.audit(turned_away=[str(event["submission"]) for event in run.events("released")])


@pytest.mark.parametrize("cells", ["[64]", "[32,64,96]"], ids=["job", "array"])
def test_an_sbatch_that_times_out_after_slurm_took_the_job_runs_nothing_twice(
    slurm: SlurmUnderTest, tmp_path: Path, cells: str
) -> None:
    run = fault_run(
        slurm, tmp_path, "timedout", "nodes=1", f"seq_len={cells}", "policy.canary=false", "tables=false"
    ).in_the_way("sbatch", TAKEN_BUT_TIMED_OUT)  # fmt: skip
    done = run.shell.run(*run.arguments)
    assert done.code == 0, done.err
    assert "It is looked for by name" in done.err
    assert run.calls("sbatch") == 1
    assert set(run.outcomes()) == {"SUCCEEDED"}
    run.audit()
