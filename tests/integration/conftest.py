"""The fixture `slurm`: a real multi-node Slurm, private to the test session.

SWEEP_TEST_SLURM_DIR names a directory to keep it in (one that is up already is used and left up); otherwise it lives
in a temporary directory. Where no Slurm can be had the tests are skipped, or fail if REQUIRE_SLURM=1.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tools.private_slurm import CannotRunHereError, Cluster

# States in which a job has not ended; all others in sacct are final.
UNFINISHED = frozenset({"", "PENDING", "RUNNING", "REQUEUED", "SUSPENDED", "RESIZING"})


@dataclass(frozen=True, kw_only=True, slots=True)
class SlurmUnderTest:
    """A running private Slurm. `env` is a complete environment for child processes that are to use it."""

    cluster: Cluster
    dir: Path
    env: Mapping[str, str]
    nodes: tuple[str, ...]

    def run(self, *argv: str, timeout_s: float = 60) -> str:
        """Standard output of a command that must succeed."""
        done = subprocess.run(
            argv, env=dict(self.env), cwd=self.dir, capture_output=True, text=True, timeout=timeout_s, check=False
        )
        assert done.returncode == 0, f"{argv} exited {done.returncode}: {done.stderr or done.stdout}"
        return done.stdout.strip()

    def sbatch(self, command: str, *options: str) -> str:
        """Submit one shell command; returns the job id."""
        return self.run("sbatch", "--parsable", "--output=/dev/null", *options, f"--wrap={command}").split(";")[0]

    def sacct_state(self, job_id: str) -> str:
        """State of a job by sacct, its first word; empty if accounting does not know the job yet."""
        rows = self.run("sacct", "-X", "-n", "-P", "-j", job_id, "-o", "State").splitlines()
        return rows[0].split()[0].rstrip("+") if rows else ""

    def sacct_time(self, job_id: str, column: str) -> int:
        """Unix time of a job's ``Submit``, ``Start`` or ``End`` by sacct; waits until accounting has it."""
        asked = ("env", "SLURM_TIME_FORMAT=%s", "sacct", "-X", "-n", "-P", "-j", job_id, "-o", column)
        found: list[str] = []

        def is_known() -> bool:
            found[:] = self.run(*asked).splitlines()[:1]
            return bool(found) and found[0].isdecimal()

        self._wait(is_known, f"accounting has no {column} of job {job_id}", 120)
        return int(found[0])

    def squeue_state(self, job_id: str) -> str:
        """State of a job by the controller; empty once it has forgotten the job."""
        return self.run("squeue", "-h", "--states=all", "-j", job_id, "-o", "%T")

    def wait_running(self, job_id: str, timeout_s: float = 120) -> None:
        """Wait until a job runs."""
        self._wait(lambda: self.squeue_state(job_id) == "RUNNING", f"job {job_id} does not run", timeout_s)

    def wait_ended(self, job_id: str, timeout_s: float = 120) -> str:
        """Wait until accounting has seen the end of a job; returns its state."""
        self._wait(lambda: self.sacct_state(job_id) not in UNFINISHED, f"job {job_id} does not end", timeout_s)
        return self.sacct_state(job_id)

    def _wait(self, check: Callable[[], bool], what: str, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not check():
            assert time.monotonic() < deadline, f"{what} after {timeout_s:g} s: {self.run('squeue', '--states=all')}"
            time.sleep(0.2)

    @contextmanager
    def settings(self, **values: str) -> Iterator[None]:
        """Run with other lines in slurm.conf, and restore them afterwards; daemons restart, jobs continue."""
        before = self.cluster.settings().overrides
        self.cluster.up(set_values=values)
        try:
            yield
        finally:
            self.cluster.up(set_values={key: before.get(key) for key in values})

    def fail_node(self, name: str, *, is_noticed: bool = True) -> None:
        """Cut a node's power; the controller notices at once, or only later."""
        self.cluster.fail_node(name, is_noticed=is_noticed)

    def restore_node(self, name: str) -> None:
        """Bring a failed node back; returns when it takes jobs."""
        self.cluster.restore_node(name)

    def stop_controller(self) -> None:
        """Stop slurmctld; jobs go on."""
        self.cluster.stop_controller()

    def start_controller(self) -> None:
        """Start slurmctld again."""
        self.cluster.start_controller()

    def stop_accounting(self) -> None:
        """Stop slurmdbd; sacct fails."""
        self.cluster.stop_accounting()

    def start_accounting(self) -> None:
        """Start slurmdbd again."""
        self.cluster.start_accounting()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give these tests more time: Slurm is slow on a busy machine, and the first test may have to install it."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(autouse=True)
def _nothing_left_behind(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[None]:
    """End the sweeps and jobs of a test that failed, so that the next one begins clean."""
    yield
    for process in psutil.process_iter(["cmdline", "cwd"]):
        arguments = process.info["cmdline"] or []
        if "sweep" in arguments and str(process.info["cwd"] or "").startswith(str(tmp_path)):
            with suppress(psutil.NoSuchProcess):
                process.kill()
    if "slurm" in request.fixturenames:
        slurm: SlurmUnderTest = request.getfixturevalue("slurm")
        subprocess.run(["scancel", "--user=root"], env=dict(slurm.env), capture_output=True, check=False, timeout=60)


def environment_for(cluster: Cluster) -> dict[str, str]:
    """This process's environment, with the Slurm variables of the cluster and no others."""
    foreign = ("SLURM_", "SBATCH_", "SRUN_", "SALLOC_", "SQUEUE_", "SINFO_", "SACCT_")
    return {k: v for k, v in os.environ.items() if not k.startswith(foreign)} | cluster.env()


def bring_up(cluster: Cluster) -> None:
    """Bring a cluster up; skip the test (or fail it, under REQUIRE_SLURM=1) where that is impossible."""
    try:
        cluster.up()
    except CannotRunHereError as error:
        reason = str(error)
    else:
        return
    if os.environ.get("REQUIRE_SLURM") == "1":
        pytest.fail(f"REQUIRE_SLURM=1, but there is no Slurm: {reason}", pytrace=False)
    pytest.skip(f"no Slurm: {reason}")


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmUnderTest]:
    """A real Slurm of four virtual nodes with eight fake GPUs each."""
    given = os.environ.get("SWEEP_TEST_SLURM_DIR")
    directory = Path(given) if given else tmp_path_factory.mktemp("slurm") / "cluster"
    cluster = Cluster(directory)
    was_up = cluster.status().up
    try:
        bring_up(cluster)
        yield SlurmUnderTest(
            cluster=cluster,
            dir=cluster.layout.root,
            env=environment_for(cluster),
            nodes=tuple(cluster.settings().node_names),
        )
    finally:
        if os.geteuid() == 0 and not was_up:
            cluster.down(purge=not given)
