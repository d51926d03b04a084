"""Limits of a real Slurm are read as Slurm enforces them, and nodes out of service are noticed."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from sweep.adapters.slurm.commands import SlurmCommands
from sweep.adapters.slurm.scheduler import SlurmScheduler
from sweep.core.attempts.attempt import Phase
from sweep.core.settings.site import Site
from sweep.core.settings.spec import SlurmSpec
from sweep.ports import SchedulerUnreachableError
from tests.integration.conftest import SlurmUnderTest

pytestmark = pytest.mark.slurm

QOS = "sitetest"


def scheduler(slurm: SlurmUnderTest, spec: SlurmSpec | None = None) -> SlurmScheduler:
    return SlurmScheduler(spec or SlurmSpec(), Path(), commands=SlurmCommands(slurm.env))


def eventually(what: Callable[[], object], expected: object, timeout_s: float = 120) -> None:
    deadline = time.monotonic() + timeout_s
    while (found := what()) != expected:
        assert time.monotonic() < deadline, found
        time.sleep(0.3)


@pytest.fixture
def qos(slurm: SlurmUnderTest) -> Iterator[Callable[[Mapping[str, str]], str]]:
    """A QOS of the test's own, with the given limits."""
    slurm.run("sacctmgr", "-i", "add", "qos", QOS)
    slurm.run("sacctmgr", "-i", "modify", "user", "root", "set", f"qos+={QOS}")

    def limit(limits: Mapping[str, str]) -> str:
        slurm.run("sacctmgr", "-i", "modify", "qos", QOS, "set", *(f"{name}={most}" for name, most in limits.items()))
        return QOS

    try:
        yield limit
    finally:
        jobs = slurm.run("squeue", "-h", "-q", QOS, "-o", "%A").split()
        if jobs:
            slurm.run("scancel", *jobs)
        slurm.run("sacctmgr", "-i", "modify", "user", "root", "set", f"qos-={QOS}")
        slurm.run("sacctmgr", "-i", "delete", "qos", QOS)


def test_a_cluster_without_limits_says_so(slurm: SlurmUnderTest) -> None:
    config = slurm.run("scontrol", "show", "config")
    size = next(int(line.partition("=")[2]) for line in config.splitlines() if line.startswith("MaxArraySize"))
    nodes = frozenset(slurm.nodes)
    assert scheduler(slurm).site() == Site(max_array_tasks=size, nodes=nodes, usable=nodes)


@pytest.mark.parametrize("limit", ["MaxSubmitJobsPerUser", "MaxSubmitJobsPerAccount", "GrpSubmitJobs"])
def test_exactly_as_many_tasks_are_free_as_slurm_takes(
    slurm: SlurmUnderTest, qos: Callable[[Mapping[str, str]], str], limit: str
) -> None:
    name = qos({limit: "5"})
    asking = scheduler(slurm, SlurmSpec(qos=name))
    eventually(lambda: scheduler(slurm, SlurmSpec(qos=name)).site().free_tasks, 5)
    slurm.sbatch("true", "--hold", "--mem=10", f"--qos={name}", "--array=0-1")
    other = slurm.sbatch("true", "--hold", "--mem=10", "--qos=normal")
    assert asking.site().free_tasks == 3
    slurm.sbatch("true", "--hold", "--mem=10", f"--qos={name}", "--array=0-2")
    assert asking.site().free_tasks == 0
    refused = subprocess.run(
        ["sbatch", "--hold", "--mem=10", f"--qos={name}", "--wrap=true"],
        env=dict(slurm.env), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert refused.returncode != 0, refused.stdout
    slurm.run("scancel", other)


def test_walltime_limits_and_maintenance_are_read(
    slurm: SlurmUnderTest, qos: Callable[[Mapping[str, str]], str]
) -> None:
    name = qos({"MaxWall": "45"})
    eventually(lambda: scheduler(slurm, SlurmSpec(qos=name)).site().max_walltime_min, 45)
    begins = int(time.time()) + 86_400
    text = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(begins))
    arguments = [f"starttime={text}", "duration=60", "users=root"]
    some = ["reservation=sitetest", "flags=maint,ignore_jobs", f"nodes={slurm.nodes[0]}"]
    slurm.run("scontrol", "create", *some, *arguments)
    try:
        assert scheduler(slurm).site().maintenance_at is None
        slurm.run("scontrol", "create", "reservation=sitetest2", "flags=maint,ignore_jobs", "nodes=ALL", *arguments)
        try:
            assert scheduler(slurm).site().maintenance_at == begins
        finally:
            slurm.run("scontrol", "delete", "reservation=sitetest2")
    finally:
        slurm.run("scontrol", "delete", "reservation=sitetest")


def test_a_node_that_an_administrator_drains_is_unhealthy_with_the_reason(slurm: SlurmUnderTest) -> None:
    on, node = scheduler(slurm), slurm.nodes[-1]
    eventually(lambda: on.unhealthy(slurm.nodes), {})  # other tests may have disturbed the nodes
    slurm.run("scontrol", "update", f"nodename={node}", "state=drain", "reason=GPU 3 | Xid 79")
    try:
        assert on.unhealthy([*slurm.nodes, "unknown"]).keys() == {node}
        assert on.unhealthy([node])[node].endswith(": GPU 3 | Xid 79")
    finally:
        slurm.run("scontrol", "update", f"nodename={node}", "state=resume")


def test_a_job_above_its_qos_walltime_is_hopeless_and_one_that_is_held_is_not(
    slurm: SlurmUnderTest, qos: Callable[[Mapping[str, str]], str]
) -> None:
    name = qos({"MaxWall": "5"})
    on = scheduler(slurm, SlurmSpec(qos=name))
    eventually(lambda: scheduler(slurm, SlurmSpec(qos=name)).site().max_walltime_min, 5)
    too_long = slurm.sbatch("true", "--mem=10", f"--qos={name}", "--time=10")
    held = slurm.sbatch("true", "--mem=10", f"--qos={name}", "--time=2", "--hold")
    since = time.time()
    eventually(lambda: on.poll([too_long], since=since)[too_long].is_hopeless, True)
    report = on.poll([held], since=since)[held]
    assert report.phase is Phase.PENDING
    assert not report.is_hopeless


def test_a_controller_that_never_answered_is_one_clear_error(slurm: SlurmUnderTest) -> None:
    """The configuration names no controller, so the one that other tests use need not stop."""
    elsewhere = slurm.dir / "etc" / "elsewhere.conf"
    elsewhere.write_text("ClusterName=elsewhere\nSlurmctldHost=nowhere(127.0.0.1)\nSlurmctldPort=1\n")
    commands = SlurmCommands({**slurm.env, "SLURM_CONF": str(elsewhere)}, timeout_s=3, attempts=1)
    on = SlurmScheduler(SlurmSpec(), Path(), commands=commands)
    with pytest.raises(SchedulerUnreachableError, match="asked what the cluster allows: "):
        on.site()
    assert on.unhealthy(slurm.nodes) == {}
